//! Flow entries.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use nix::time::{ClockId, clock_gettime};
use proxy_common::Address;
use proxy_common::flow::{
    FLOW_CLOSING, FLOW_DATAGRAM, FLOW_DECAPSULATED, FLOW_ENCAPSULATE, FLOW_ESTABLISHED, FLOW_REPLY,
    FLOW_REWRITE_DESTINATION, FLOW_REWRITE_SOURCE, FLOW_SYN, Flow, FlowKey,
};
use proxy_common::selection::BackendRef;

use super::services::{ServiceText, protocol_text};
use super::{PinnedMaps, ReadError};
use crate::dataplane::ebpf::convert::socket;
use crate::dataplane::ebpf::maps::{FamilyMaps, Table};
use millrace_views::FlowView;

/// Returns the entry of the other direction of a connection, if it is here.
pub type Twin<'a> = &'a dyn Fn() -> Option<FlowView>;

impl PinnedMaps {
    /// Returns the flow entries that `keep` chooses, at most `limit`, in no order.
    ///
    /// All entries pass `keep`, as long as the limit is not reached. It may count those that it does not choose.
    pub fn flows(
        &self,
        limit: usize,
        mut keep: impl FnMut(&FlowView, Twin<'_>) -> bool,
    ) -> Result<Vec<FlowView>, ReadError> {
        let reading = Reading { names: self.names()?, now: monotonic_seconds() };
        let mut views = Vec::new();
        let mut visit = |view: FlowView, twin: Twin<'_>| {
            let is_kept = views.len() < limit && keep(&view, twin);
            views.extend(is_kept.then_some(view));
            views.len() < limit
        };
        reading.family(&self.maps.of4, &mut visit)?;
        reading.family(&self.maps.of6, &mut visit)?;
        Ok(views)
    }
}

/// The time of a reading, and the names of Services.
struct Reading {
    names: BTreeMap<u32, ServiceText>,
    now: u32,
}

impl Reading {
    /// Calls `visit` for the entries of both tables until it returns false.
    fn family<A: Address>(
        &self,
        maps: &FamilyMaps<A>,
        visit: &mut impl FnMut(FlowView, Twin<'_>) -> bool,
    ) -> Result<(), ReadError> {
        let mut goes_on = true;
        for (table, entries) in tables(maps) {
            if goes_on {
                entries.for_each(|key, flow| {
                    let view = self.view(maps, table, &key, &flow);
                    goes_on = visit(view, &|| self.twin(maps, &key, &flow));
                    goes_on
                })?;
            }
        }
        Ok(())
    }

    fn view<A: Address>(
        &self,
        maps: &FamilyMaps<A>,
        table: &'static str,
        key: &FlowKey<A>,
        flow: &Flow<A>,
    ) -> FlowView {
        let service = self.names.get(&flow.service).map(ServiceText::label);
        FlowView {
            table: table.into(),
            service: service.unwrap_or_else(|| flow.service.to_string()),
            backend: endpoint(maps, BackendRef(flow.backend)),
            idle_seconds: self.now.saturating_sub(flow.last_seen),
            ..view(key, flow)
        }
    }

    /// Returns the entry of the other direction. A failure to read counts as none: the walk through the table will
    /// fail as well.
    fn twin<A: Address>(&self, maps: &FamilyMaps<A>, key: &FlowKey<A>, flow: &Flow<A>) -> Option<FlowView> {
        let twin_key = flow.twin(key);
        tables(maps).into_iter().find_map(|(table, entries)| {
            let twin = entries.get(&twin_key).ok()?.filter(|twin| twin.is_twin_of(key))?;
            Some(self.view(maps, table, &twin_key, &twin))
        })
    }
}

/// A table of flow entries.
type Entries<A> = Table<FlowKey<A>, Flow<A>>;

/// Returns both tables with their names.
const fn tables<A: Address>(maps: &FamilyMaps<A>) -> [(&'static str, &Entries<A>); 2] {
    [("established", &maps.flows), ("new", &maps.flows_new)]
}

fn endpoint<A: Address>(maps: &FamilyMaps<A>, reference: BackendRef) -> Option<SocketAddr> {
    let backend = maps.backends.get(reference.id())?;
    let is_meant = !reference.is_none() && backend.generation == reference.generation();
    is_meant.then(|| socket(backend.address, backend.port))
}

/// Returns the view of the entry itself.
fn view<A: Address>(key: &FlowKey<A>, flow: &Flow<A>) -> FlowView {
    let has = |flag: u8| flow.flags & flag != 0;
    let new = |flag: u8, address: A, port: u16| has(flag).then(|| socket(address, port));
    FlowView {
        table: "".into(),
        protocol: protocol_text(key.protocol),
        source: socket(key.source, key.source_port),
        destination: socket(key.destination, key.destination_port),
        new_source: new(FLOW_REWRITE_SOURCE, flow.source, flow.source_port),
        new_destination: new(FLOW_REWRITE_DESTINATION, flow.destination, flow.destination_port),
        state: match flow.state {
            FLOW_SYN => "syn".to_owned(),
            FLOW_ESTABLISHED => "established".to_owned(),
            FLOW_CLOSING => "closing".to_owned(),
            FLOW_DATAGRAM => "datagram".to_owned(),
            state => state.to_string(),
        },
        direction: if has(FLOW_REPLY) { "reply" } else { "request" }.into(),
        encapsulated: has(FLOW_ENCAPSULATE),
        decapsulated: has(FLOW_DECAPSULATED) && !flow.is_translated(),
        translated: flow.is_translated(),
        service: String::new(),
        backend: None,
        idle_seconds: 0,
    }
}

/// Returns the second on the programs' clock.
#[must_use]
pub fn monotonic_seconds() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| time.tv_sec());
    u32::try_from(now).unwrap_or(u32::MAX)
}
