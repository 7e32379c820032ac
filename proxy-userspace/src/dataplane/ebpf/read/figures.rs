//! Figures of Services and endpoints.

use std::collections::BTreeMap;

use millrace_views::{ConnectionsView, HandshakesView, Word};
use proxy_common::Address;
use proxy_common::flow::FLOW_REPLY;
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

/// What is counted by walking through the maps of drops and connections once.
#[derive(Default)]
pub(super) struct Counted {
    drops: BTreeMap<u32, BTreeMap<Word, u64>>,
    services: BTreeMap<u32, Live>,
    backends4: BTreeMap<u32, Live>,
    backends6: BTreeMap<u32, Live>,
}

impl PinnedMaps {
    /// Counts the connections of each Service and endpoint, and the drops of each Service.
    pub(super) fn counted(&self) -> Result<Counted, ReadError> {
        let mut counted = Counted { drops: self.drops()?, ..Counted::default() };
        count(&self.maps.of4, &mut counted.services, &mut counted.backends4)?;
        count(&self.maps.of6, &mut counted.services, &mut counted.backends6)?;
        Ok(counted)
    }

    /// Returns the dropped packets by service id and reason.
    fn drops(&self) -> Result<BTreeMap<u32, BTreeMap<Word, u64>>, ReadError> {
        let mut drops: BTreeMap<u32, BTreeMap<Word, u64>> = BTreeMap::new();
        for entry in &self.maps.figures.drops {
            let (key, values) = entry.map_err(ReadError::Counter)?;
            let Ok(reason) = Reason::try_from(key.reason) else { continue };
            let packets: u64 = values.iter().map(|value| value.packets).sum();
            *drops.entry(key.service).or_default().entry(reason.name().into()).or_default() += packets;
        }
        Ok(drops)
    }

    /// Returns what became of the connections of a service id.
    pub(super) fn service_connections(&self, id: u32, counted: &Counted) -> ConnectionsView {
        let counts = self.maps.figures.connections.get(id).unwrap_or_default();
        let Live { active, pending } = counted.services.get(&id).copied().unwrap_or_default();
        ConnectionsView {
            opened: counts.opened,
            established: counts.established,
            refused: counts.refused,
            reset: counts.reset,
            active,
            pending,
        }
    }

    /// Returns the times to the first answer of a service id.
    pub(super) fn handshakes(&self, id: u32) -> HandshakesView {
        let counts = self.maps.figures.handshakes.get(id).unwrap_or_default().counts;
        HandshakesView::of(counts.into_iter().map(u64::from).collect())
    }
}

impl Counted {
    /// Returns the dropped packets of a service id, by reason.
    pub(super) fn dropped(&self, id: u32) -> BTreeMap<Word, u64> {
        self.drops.get(&id).cloned().unwrap_or_default()
    }

    /// Returns what became of the connections of an endpoint. Counts of another one that had its id are left
    /// out.
    pub(super) fn backend<A: Address>(&self, maps: &FamilyMaps<A>, reference: BackendRef) -> ConnectionsView {
        let counts = maps.backend_connections.get(reference.id()).filter(|counts| counts.is_of(reference));
        let counts = counts.unwrap_or_default();
        let live = if A::WORDS == 1 { &self.backends4 } else { &self.backends6 };
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
}

/// Each connection has two entries, of which that of the client's packets counts.
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
                    live.active += u64::from(!is_new);
                    live.pending += u64::from(is_new);
                }
            }
            true
        })?;
    }
    Ok(())
}
