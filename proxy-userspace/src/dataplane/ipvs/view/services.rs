//! The view of virtual services and their frontends.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ipnet::IpNet;
use serde::Serialize;

use super::{Scope, Seen, look};
use crate::dataplane::ipvs::OpenError;
use crate::dataplane::ipvs::plan::{PERSISTENT, TUNNEL};
use crate::dataplane::ipvs::state::{Element, Scheduling, Set, Traffic, Virtual};
use crate::model::Protocol;

/// A virtual service. Fields that eBPF mode also has mean the same as there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceView {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The mark of a virtual service for clients outside, if they are served differently from clients inside;
    /// none = IPVS finds it by its address.
    pub mark: Option<u32>,
    /// The kernel's name of the scheduler.
    pub scheduler: String,
    /// Whether it has no server for new connections although usable endpoints exist elsewhere.
    pub elsewhere: bool,
    /// Its frontends, sorted. A marked one may have several, or none if it is left over from a change.
    pub frontends: Vec<FrontendView>,
    /// Servers with new connections, sorted.
    pub backends: Vec<SocketAddr>,
    /// Servers without new connections that still have some, sorted.
    pub draining: Vec<SocketAddr>,
    /// Packets from clients.
    pub packets: u64,
    /// Bytes from clients, with IP headers.
    pub bytes: u64,
}

/// A frontend of a virtual service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrontendView {
    /// The address and the port.
    pub address: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The clients: `internal` or `external` if they are served differently, else `all`.
    pub scope: &'static str,
    /// `dsr` if a server gets packets by a tunnel, else `snat`.
    pub forwarding: &'static str,
    /// The time-out of session affinity; 0 = no affinity.
    pub affinity_seconds: u32,
    /// The permitted source ranges, sorted; none = all clients.
    pub source_ranges: Option<Vec<IpNet>>,
}

/// Returns our virtual services, unmarked ones first; `None` if IPVS does not serve.
pub fn services() -> Result<Option<Vec<ServiceView>>, OpenError> {
    Ok(look()?.map(|seen| of(&seen)))
}

pub(super) fn of(seen: &Seen) -> Vec<ServiceView> {
    let places = seen.places();
    let mut views: Vec<ServiceView> = seen
        .services
        .iter()
        .map(|told| view(seen, told, places.get(told.0).map(Vec::as_slice).unwrap_or_default()))
        .collect();
    views.sort_by_cached_key(|view| (view.mark, view.frontends.first().map(|one| one.address)));
    views
}

fn view(
    seen: &Seen,
    (service, (scheduling, traffic)): (&Virtual, &(Scheduling, Traffic)),
    places: &[(SocketAddr, Scope)],
) -> ServiceView {
    let servers = seen.servers.get(service).map(Vec::as_slice).unwrap_or_default();
    let weighing = |wanted: fn(u32) -> bool| {
        let addresses = servers.iter().filter(|(_, server, _)| wanted(server.weight));
        addresses.map(|(address, ..)| *address).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let protocol = service.protocol();
    let is_direct = servers.iter().any(|(_, server, _)| server.method == TUNNEL);
    let frontend = |(address, scope): &(SocketAddr, Scope)| FrontendView {
        address: *address,
        protocol: protocol.to_string(),
        scope: scope.name(),
        forwarding: if is_direct { "dsr" } else { "snat" },
        affinity_seconds: if scheduling.flags & PERSISTENT == 0 { 0 } else { scheduling.timeout },
        source_ranges: source_ranges(seen, protocol, *address),
    };
    let backends: Vec<SocketAddr> = weighing(|weight| weight > 0);
    let mut dropped = places.iter().flat_map(|(address, scope)| {
        let sets: &[Set] = match scope {
            Scope::All => &[Set::DroppedInside, Set::DroppedOutside],
            Scope::Internal => &[Set::DroppedInside],
            Scope::External => &[Set::DroppedOutside],
        };
        sets.iter().map(|set| (*set, Element::Port(protocol, *address)))
    });
    ServiceView {
        family: service.family().to_string(),
        mark: match service {
            Virtual::Mark { mark, .. } => Some(*mark),
            Virtual::Address { .. } => None,
        },
        scheduler: scheduling.scheduler.clone(),
        elsewhere: backends.is_empty() && dropped.any(|member| seen.state.members.contains_key(&member)),
        frontends: places.iter().map(frontend).collect(),
        backends,
        draining: weighing(|weight| weight == 0),
        packets: traffic.packets,
        bytes: traffic.bytes,
    }
}

fn source_ranges(seen: &Seen, protocol: Protocol, address: SocketAddr) -> Option<Vec<IpNet>> {
    let members = &seen.state.members;
    if !members.contains_key(&(Set::Restricted, Element::Port(protocol, address))) {
        return None;
    }
    let ranges = members.keys().filter_map(|member| match member {
        (Set::Allowed(of), Element::Range(at, range)) if (*of, *at) == (protocol, address) => Some(*range),
        _ => None,
    });
    Some(ranges.collect())
}
