//! Figures of Services and endpoints.

use std::collections::BTreeMap;

use millrace_views::{BackendView, ConnectionsView, HandshakesView, ServiceView, Word};
use proxy_common::Address;
use proxy_common::flow::{FLOW_CLOSING, FLOW_REPLY};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use super::{PinnedMaps, ReadError};
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::maps::FamilyMaps;

/// Connections that are in the tables now.
#[derive(Clone, Copy, Default)]
struct Live {
    active: u64,
    pending: u64,
}

/// The figures of all Services and endpoints, read at once: the tables of connections may be large.
pub struct Figures<'a> {
    maps: &'a PinnedMaps,
    drops: BTreeMap<u32, BTreeMap<Word, u64>>,
    services: BTreeMap<u32, Live>,
    backends4: BTreeMap<u32, Live>,
    backends6: BTreeMap<u32, Live>,
}

impl PinnedMaps {
    /// Counts the connections of each Service and endpoint, and the drops of each Service.
    pub fn figures(&self) -> Result<Figures<'_>, ReadError> {
        let (mut services, mut backends4, mut backends6) = Default::default();
        count(&self.maps.of4, &mut services, &mut backends4)?;
        count(&self.maps.of6, &mut services, &mut backends6)?;
        Ok(Figures { maps: self, drops: self.drops()?, services, backends4, backends6 })
    }

    /// Returns the dropped packets by service id and reason.
    pub(super) fn drops(&self) -> Result<BTreeMap<u32, BTreeMap<Word, u64>>, ReadError> {
        let mut drops: BTreeMap<u32, BTreeMap<Word, u64>> = BTreeMap::new();
        for entry in &self.maps.figures.drops {
            let (key, values) = entry.map_err(ReadError::Counter)?;
            let Ok(reason) = Reason::try_from(key.reason) else { continue };
            let packets: u64 = values.iter().map(|value| value.packets).sum();
            *drops.entry(key.service).or_default().entry(reason.name().into()).or_default() += packets;
        }
        Ok(drops)
    }
}

impl Figures<'_> {
    /// Puts the figures into the views of Services.
    pub fn fill_services(&self, views: &mut [ServiceView]) {
        let figures = &self.maps.maps.figures;
        for view in views {
            let counts = figures.connections.get(view.id).unwrap_or_default();
            let Live { active, pending } = self.services.get(&view.id).copied().unwrap_or_default();
            view.connections = ConnectionsView {
                opened: counts.opened,
                established: counts.established,
                refused: counts.refused,
                reset: counts.reset,
                active,
                pending,
            };
            view.dropped = self.drops.get(&view.id).cloned().unwrap_or_default();
            let times = figures.handshakes.get(view.id).unwrap_or_default().counts;
            view.handshakes = HandshakesView::of(times.into_iter().map(u64::from).collect());
        }
    }

    /// Puts the figures into the views of endpoints. Counts of another one that had its id are left out.
    pub fn fill_backends(&self, views: &mut [BackendView]) {
        for view in views {
            let reference = BackendRef::new(view.id, view.generation);
            view.connections = if view.address.is_ipv6() {
                of_backend(&self.maps.maps.of6, &self.backends6, reference)
            } else {
                of_backend(&self.maps.maps.of4, &self.backends4, reference)
            };
        }
    }
}

fn of_backend<A: Address>(
    maps: &FamilyMaps<A>,
    live: &BTreeMap<u32, Live>,
    reference: BackendRef,
) -> ConnectionsView {
    let counts = maps.backend_connections.get(reference.id()).filter(|counts| counts.is_of(reference));
    let counts = counts.unwrap_or_default();
    let Live { active, pending } = live.get(&reference.0).copied().unwrap_or_default();
    ConnectionsView {
        opened: counts.opened.into(),
        established: counts.established.into(),
        refused: counts.refused.into(),
        reset: counts.reset.into(),
        active,
        pending,
    }
}

/// Each connection has two entries, of which that of the client's packets counts. A closed one is kept for a minute,
/// and is neither active nor pending.
fn count<A: Address>(
    maps: &FamilyMaps<A>,
    services: &mut BTreeMap<u32, Live>,
    backends: &mut BTreeMap<u32, Live>,
) -> Result<(), OpenError> {
    for (table, is_new) in [(&maps.flows, false), (&maps.flows_new, true)] {
        table.for_each(|_, flow| {
            if flow.flags & FLOW_REPLY == 0 {
                for live in [services.entry(flow.service), backends.entry(flow.backend)] {
                    let live = live.or_default();
                    live.active += u64::from(!is_new && flow.state != FLOW_CLOSING);
                    live.pending += u64::from(is_new);
                }
            }
            true
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use aya::maps::PerCpuValues;
    use proxy_common::figures::{BackendConnections, Connections, DropKey, Handshakes};
    use proxy_common::verdict::Counter;

    use super::*;
    use crate::dataplane::ebpf::plan::{Change, Kernel};
    use crate::dataplane::ebpf::scratch::Scratch;

    const SERVICE: u32 = 3;

    fn service() -> ServiceView {
        ServiceView {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            port: String::new(),
            family: "IPv4".to_owned(),
            list: "Cluster".to_owned(),
            id: SERVICE,
            algorithm: "random".into(),
            slots: 0,
            elsewhere: false,
            frontends: Vec::new(),
            backends: Vec::new(),
            here: 0,
            packets: 0,
            bytes: 0,
            dropped: BTreeMap::new(),
            connections: ConnectionsView::default(),
            handshakes: HandshakesView::default(),
        }
    }

    fn shown(scratch: &Scratch) -> ServiceView {
        let maps = PinnedMaps::open(&scratch.path).unwrap();
        let mut views = [service()];
        maps.figures().unwrap().fill_services(&mut views);
        let [view] = views;
        view
    }

    #[test]
    fn figures_are_shown_until_the_id_is_free_for_another_service() {
        let scratch = Scratch::new("figures");
        let mut dataplane = scratch.open();
        let figures = &mut dataplane.maps.figures;
        let counts = Connections { opened: 9, established: 6, refused: 2, reset: 1 };
        figures.connections.set(SERVICE, &counts).unwrap();
        let mut times = Handshakes::default();
        times.counts[2] = 4;
        figures.handshakes.set(SERVICE, &times).unwrap();
        let reasons = [(Reason::NoEndpoint, 5), (Reason::NoWay, 1)];
        for (reason, packets) in reasons {
            let cpus = aya::util::nr_cpus().unwrap();
            let values = PerCpuValues::try_from(vec![Counter { packets, bytes: 0 }; cpus]).unwrap();
            let key = DropKey { service: SERVICE, reason: reason as u32 };
            figures.drops.insert(key, values, 0).unwrap();
        }
        let view = shown(&scratch);
        let cpus = u64::try_from(aya::util::nr_cpus().unwrap()).unwrap();
        let dropped = BTreeMap::from([("no_endpoint".into(), 5 * cpus), ("no_way".into(), cpus)]);
        assert_eq!((view.connections.opened, view.connections.reset), (9, 1));
        assert_eq!((view.dropped, view.handshakes.p50_microseconds), (dropped, Some(256)));

        dataplane.maps.apply(&Change::RemoveName(SERVICE)).unwrap();
        assert_eq!(shown(&scratch), ServiceView { handshakes: HandshakesView::of(vec![0; 16]), ..service() });
    }

    #[test]
    fn an_endpoint_does_not_show_the_counts_of_the_one_that_had_its_id() {
        let scratch = Scratch::new("figures-endpoint");
        let mut dataplane = scratch.open();
        let reference = BackendRef::new(5, 1);
        let counts =
            BackendConnections { reference: reference.0, opened: 7, ..BackendConnections::default() };
        dataplane.maps.of4.backend_connections.set(5, &counts).unwrap();
        let (maps, live) = (PinnedMaps::open(&scratch.path).unwrap(), BTreeMap::new());
        assert_eq!(of_backend(&maps.maps.of4, &live, reference).opened, 7);
        assert_eq!(of_backend(&maps.maps.of4, &live, BackendRef::new(5, 2)).opened, 0);
    }
}
