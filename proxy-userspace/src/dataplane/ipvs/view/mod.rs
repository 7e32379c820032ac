//! The views of IPVS mode, with or without an agent.
//!
//! A view writes nothing, keeps no lock and loads no module.

mod backends;
mod connections;
mod services;
mod walk;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

pub use backends::{BackendView, backends};
pub use connections::{FlowView, Flows, flows};
pub use services::{FrontendView, ServiceView, services};
pub use walk::{Entry, IpvsAnswer, IpvsStep, Question, explain};

use super::cleanup::found;
use super::netlink::Ipvs;
use super::state::{Connections, Element, Scheduling, Server, Set, State, Traffic, Virtual};
use super::{OpenError, lock, nft};

/// The state that `millrace status` shows if IPVS serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatusView {
    /// Always `ipvs`.
    pub mode: &'static str,
    /// Whether an agent runs.
    pub agent_alive: bool,
    /// Our virtual services, including those keyed by a mark.
    pub virtual_services: usize,
    /// Their real servers.
    pub servers: usize,
    /// The real servers without new connections.
    pub draining: usize,
    /// The established connections of all real servers.
    pub connections: u64,
    /// The addresses of Services.
    pub addresses: usize,
    /// The forged tunnels that this node has dropped since the agent made the table. nftables counts them.
    pub forged_tunnel: u64,
}

/// Reads the state from the kernel; `None` if the kernel has no IPVS or nothing of ours.
pub fn status() -> Result<Option<StatusView>, OpenError> {
    let Some(seen) = look()? else { return Ok(None) };
    let servers = || seen.servers.values().flatten();
    Ok(Some(StatusView {
        mode: "ipvs",
        agent_alive: matches!(lock(), Err(OpenError::InUse)),
        virtual_services: seen.services.len(),
        servers: servers().count(),
        draining: servers().filter(|(_, server, _)| server.weight == 0).count(),
        connections: servers().map(|(.., connections)| u64::from(connections.active)).sum(),
        addresses: seen.state.addresses.len(),
        forged_tunnel: nft::forged_tunnels()?,
    }))
}

/// Our state in this network namespace.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Members and addresses, which record the virtual services of ours.
    state: State,
    services: BTreeMap<Virtual, (Scheduling, Traffic)>,
    servers: BTreeMap<Virtual, Vec<(SocketAddr, Server, Connections)>>,
}

/// Reads our whole state; `None` if the kernel has no IPVS or nothing of ours.
fn look() -> Result<Option<Seen>, OpenError> {
    let Some((mut ipvs, state)) = record()? else { return Ok(None) };
    let mut seen = Seen { state, ..Seen::default() };
    for (service, scheduling, traffic) in ipvs.counted_services().map_err(OpenError::ipvs)? {
        if seen.state.owns(&service) {
            seen.servers.insert(service, ipvs.servers(&service).map_err(OpenError::ipvs)?);
            seen.services.insert(service, (scheduling, traffic));
        }
    }
    Ok(Some(seen))
}

/// Returns IPVS, and our members and addresses. It looks for IPVS first, because reading the table may load
/// nf_tables.
fn record() -> Result<Option<(Ipvs, State)>, OpenError> {
    let Some(ipvs) = Ipvs::find().map_err(OpenError::ipvs)? else { return Ok(None) };
    Ok(found()?.map(|(state, _)| (ipvs, state)))
}

impl Seen {
    /// Returns the addresses and ports of each virtual service, sorted, each with its clients.
    fn places(&self) -> BTreeMap<Virtual, Vec<(SocketAddr, Scope)>> {
        let by_address = self.services.keys().filter_map(|service| match service {
            Virtual::Address { address, .. } => Some((*service, *address)),
            Virtual::Mark { .. } => None,
        });
        let mut places: BTreeMap<Virtual, Vec<_>> = BTreeMap::new();
        for (service, address) in by_address {
            let outside = self.mark_at(&service).filter(|mark| self.services.contains_key(mark));
            let scope = if outside.is_some() { Scope::Internal } else { Scope::All };
            places.entry(service).or_default().push((address, scope));
            if let Some(mark) = outside {
                places.entry(mark).or_default().push((address, Scope::External));
            }
        }
        places
    }

    /// Returns the marked virtual service for clients outside; `None` if they have none.
    fn mark_at(&self, service: &Virtual) -> Option<Virtual> {
        let Virtual::Address { protocol, address } = service else { return None };
        let mark = (*self.state.members.get(&(Set::Marks, Element::Port(*protocol, *address)))?)?;
        Some(Virtual::Mark { family: service.family(), mark })
    }
}

/// The clients of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// All clients.
    All,
    /// Clients inside the cluster.
    Internal,
    /// Clients outside the cluster.
    External,
}

impl Scope {
    const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Internal => "internal",
            Self::External => "external",
        }
    }
}

/// Returns the name of a forwarding method, `IP_VS_CONN_F_*`. `ipvsadm` and eBPF mode use the same names.
const fn method_name(method: u32) -> &'static str {
    match method {
        0 => "masq",
        1 => "local",
        2 => "tunnel",
        3 => "route",
        4 => "bypass",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests;
