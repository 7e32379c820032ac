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
use crate::dataplane::ebpf::maps::FamilyMaps;
use millrace_views::FlowView;

impl PinnedMaps {
    /// Returns the flow entries that `keep` chooses, at most `limit`, in no order.
    pub fn flows(&self, limit: usize, keep: impl Fn(&FlowView) -> bool) -> Result<Vec<FlowView>, ReadError> {
        let reading = Reading { names: self.names()?, now: monotonic_seconds(), limit, keep };
        let mut views = Vec::new();
        reading.family(&self.maps.of4, &mut views)?;
        reading.family(&self.maps.of6, &mut views)?;
        Ok(views)
    }
}

/// The choice of entries, and the names of their Services.
struct Reading<F> {
    names: BTreeMap<u32, ServiceText>,
    now: u32,
    limit: usize,
    keep: F,
}

impl<F: Fn(&FlowView) -> bool> Reading<F> {
    fn family<A: Address>(&self, maps: &FamilyMaps<A>, views: &mut Vec<FlowView>) -> Result<(), ReadError> {
        for (table, entries) in [("established", &maps.flows), ("new", &maps.flows_new)] {
            if views.len() >= self.limit {
                return Ok(());
            }
            entries.for_each(|key, flow| {
                let service = self.names.get(&flow.service).map(ServiceText::label);
                let view = FlowView {
                    table: table.into(),
                    service: service.unwrap_or_else(|| flow.service.to_string()),
                    backend: endpoint(maps, BackendRef(flow.backend)),
                    idle_seconds: self.now.saturating_sub(flow.last_seen),
                    ..view(&key, &flow)
                };
                views.extend(Some(view).filter(&self.keep));
                views.len() < self.limit
            })?;
        }
        Ok(())
    }
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
