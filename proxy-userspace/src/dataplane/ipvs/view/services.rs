//! Virtual services and their frontends.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ipnet::IpNet;
use serde::Serialize;

use super::{Scope, Seen, look};
use crate::dataplane::ipvs::OpenError;
use crate::dataplane::ipvs::plan::{PERSISTENT, TUNNEL};
use crate::dataplane::ipvs::state::{Element, Scheduling, Set, Traffic, Virtual};
use crate::model::Protocol;

/// A virtual service. Fields that eBPF mode has, too, mean what they mean there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceView {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The mark by which IPVS finds it, where clients outside are served otherwise than those inside; none =
    /// by its address.
    pub mark: Option<u32>,
    /// The scheduler, by its name in the kernel.
    pub scheduler: String,
    /// It has no server that gets connections, but there are usable endpoints that are not in it.
    pub elsewhere: bool,
    /// Where it is reached, sorted; several where a mark leads to it, none where one is left of a change.
    pub frontends: Vec<FrontendView>,
    /// Servers that get new connections, sorted.
    pub backends: Vec<SocketAddr>,
    /// Servers that get no new connections and still have some, sorted.
    pub draining: Vec<SocketAddr>,
    /// Packets clients sent.
    pub packets: u64,
    /// Bytes clients sent, from the packets' IP headers on.
    pub bytes: u64,
}

/// A frontend of a virtual service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrontendView {
    /// Address and port a client sends to.
    pub address: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `internal` or `external` where these are served apart, else `all`.
    pub scope: &'static str,
    /// `dsr` if servers get packets in tunnels, else `snat`.
    pub forwarding: &'static str,
    /// Session affinity time-out, 0 = none.
    pub affinity_seconds: u32,
    /// Who may use it, sorted; none = everybody.
    pub source_ranges: Option<Vec<IpNet>>,
}

/// Returns our virtual services, those by address first; `None` if IPVS does not serve.
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
