//! The view of real servers, each with its frontends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::Serialize;

use super::{Seen, look, method_name};
use crate::dataplane::ipvs::OpenError;
use crate::dataplane::ipvs::state::{Element, Set, State};
use crate::model::Protocol;

/// A real server, summed over all virtual services where it has the same weight and method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackendView {
    /// The address and the port.
    pub address: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Whether it is on this node.
    pub local: bool,
    /// The share of new connections; 0 = it drains.
    pub weight: u32,
    /// The forwarding method: `masq`, or `tunnel` for Direct Server Return.
    pub method: &'static str,
    /// Established connections.
    pub active: u64,
    /// All other connections in IPVS.
    pub inactive: u64,
    /// Its frontends, sorted.
    pub frontends: Vec<SocketAddr>,
}

#[derive(Clone, Debug, Default)]
struct Sum {
    active: u64,
    inactive: u64,
    frontends: BTreeSet<SocketAddr>,
}

/// Returns our real servers, sorted by address; `None` if IPVS does not serve.
pub fn backends() -> Result<Option<Vec<BackendView>>, OpenError> {
    Ok(look()?.map(|seen| of(&seen)))
}

pub(super) fn of(seen: &Seen) -> Vec<BackendView> {
    let places = seen.places();
    let mut sums: BTreeMap<(SocketAddr, Protocol, u32, u32), Sum> = BTreeMap::new();
    for (service, servers) in &seen.servers {
        for (address, server, connections) in servers {
            let key = (*address, service.protocol(), server.method, server.weight);
            let sum = sums.entry(key).or_default();
            sum.active += u64::from(connections.active);
            sum.inactive += u64::from(connections.inactive);
            sum.frontends.extend(places.get(service).into_iter().flatten().map(|(address, _)| *address));
        }
    }
    let view = |((address, protocol, method, weight), sum): (_, Sum)| BackendView {
        address,
        protocol: Protocol::to_string(&protocol),
        local: is_local(&seen.state, protocol, address),
        weight,
        method: method_name(method),
        active: sum.active,
        inactive: sum.inactive,
        frontends: sum.frontends.into_iter().collect(),
    };
    sums.into_iter().map(view).collect()
}

fn is_local(state: &State, protocol: Protocol, address: SocketAddr) -> bool {
    state.members.contains_key(&(Set::Local, Element::Port(protocol, address)))
}
