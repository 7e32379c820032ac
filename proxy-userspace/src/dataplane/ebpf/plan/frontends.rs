//! Frontends and the service ports that own them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_DSR, FRONTEND_INSIDE_ONLY, FRONTEND_KIND_CLUSTER_IP,
    FRONTEND_KIND_EXTERNAL_IP, FRONTEND_KIND_LOAD_BALANCER, FRONTEND_KIND_NODE_PORT, FRONTEND_KIND_SHIFT,
    FRONTEND_LISTENER, FRONTEND_LOCAL, FRONTEND_NODE_ONLY, FRONTEND_SOURCE_RANGES, Frontend,
    SCOPE_ENCAPSULATED, SCOPE_EXTERNAL, SCOPE_INTERNAL,
};

use super::change::FrontendAt;
use crate::model::{self, Forwarding, FrontendKind, List, PortKey, Scope, ServicePort};

/// The entries in FRONTENDS and their service ports.
#[derive(Clone, Debug, Default)]
pub struct Frontends {
    written: BTreeMap<FrontendAt, Frontend>,
    owners: BTreeMap<FrontendAt, Arc<PortKey>>,
    claims: BTreeMap<Arc<PortKey>, Box<[FrontendAt]>>,
    /// Entries in the map without an owner.
    unowned: BTreeSet<FrontendAt>,
    /// Entries found in the map and not claimed yet.
    unclaimed: BTreeSet<FrontendAt>,
}

impl Frontends {
    /// Takes over an entry found in the map.
    pub fn adopt(&mut self, at: FrontendAt, value: Frontend) {
        self.written.insert(at, value);
        self.unclaimed.insert(at);
    }

    /// Treats entries found in the map and not claimed as entries without an owner.
    pub fn release_unclaimed(&mut self) {
        self.unowned.append(&mut self.unclaimed);
    }

    /// Makes `owner` the owner of exactly `wanted` and returns the entries to write.
    pub fn claim(
        &mut self,
        owner: &Arc<PortKey>,
        wanted: &BTreeMap<FrontendAt, Frontend>,
    ) -> Vec<(FrontendAt, Frontend)> {
        let claims = self.claims.remove(owner).unwrap_or_default();
        for at in claims.iter().filter(|at| !wanted.contains_key(at)) {
            self.owners.remove(at);
            if self.written.contains_key(at) {
                self.unowned.insert(*at);
            }
        }
        for at in wanted.keys() {
            self.unowned.remove(at);
            self.unclaimed.remove(at);
            if let Some(former) = self.owners.insert(*at, Arc::clone(owner))
                && let Some(claims) = self.claims.get_mut(&former)
            {
                *claims = claims.iter().filter(|claimed| *claimed != at).copied().collect();
            }
        }
        if !wanted.is_empty() {
            self.claims.insert(Arc::clone(owner), wanted.keys().copied().collect());
        }
        let changed = |(at, value): (&FrontendAt, &Frontend)| self.written.get(at) != Some(value);
        wanted.iter().filter(|entry| changed(*entry)).map(|(at, value)| (*at, *value)).collect()
    }

    /// Returns the service port of an entry.
    #[must_use]
    pub fn owner(&self, at: &FrontendAt) -> Option<&Arc<PortKey>> {
        self.owners.get(at)
    }

    /// Returns the value of a frontend in the map.
    #[must_use]
    pub fn value(&self, at: &FrontendAt) -> Option<Frontend> {
        self.written.get(at).copied()
    }

    /// Returns the entries in the map.
    pub fn written(&self) -> impl Iterator<Item = (FrontendAt, Frontend)> {
        self.written.iter().map(|(at, value)| (*at, *value))
    }

    /// Returns the entries without an owner.
    pub fn unowned(&self) -> impl Iterator<Item = FrontendAt> {
        self.unowned.iter().copied()
    }

    /// Records a written or removed entry and returns the previous value.
    pub fn record(&mut self, at: FrontendAt, value: Option<Frontend>) -> Option<Frontend> {
        if let Some(value) = value {
            return self.written.insert(at, value);
        }
        self.unowned.remove(&at);
        self.written.remove(&at)
    }
}

/// The service ids of a port's two lists; 0 = the list is not in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListIds {
    /// The Cluster list.
    pub cluster: u32,
    /// The Local list.
    pub local: u32,
}

/// Returns the wanted frontends of a port.
pub fn wanted(port: &ServicePort, ids: ListIds) -> BTreeMap<FrontendAt, Frontend> {
    port.frontends.iter().map(|frontend| (at(port, frontend), value(port, frontend, ids))).collect()
}

/// Returns the frontends for a port's NodePorts of other nodes, which the model has only under Direct
/// Server Return.
pub fn encapsulated(port: &ServicePort) -> Vec<model::Frontend> {
    let is_node_port = |frontend: &&model::Frontend| {
        frontend.kind == FrontendKind::NodePort && frontend.scope == Scope::External
    };
    let any = |frontend: &model::Frontend| {
        let address = match frontend.address {
            SocketAddr::V4(at) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, at.port())),
            SocketAddr::V6(at) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, at.port())),
        };
        model::Frontend { address, scope: Scope::Encapsulated, ..*frontend }
    };
    let found: BTreeSet<_> = port.frontends.iter().filter(is_node_port).map(any).collect();
    found.into_iter().collect()
}

/// Returns the key of a frontend.
pub fn at(port: &ServicePort, frontend: &model::Frontend) -> FrontendAt {
    let scope = match frontend.scope {
        Scope::Internal => SCOPE_INTERNAL,
        Scope::External | Scope::ExternalInside => SCOPE_EXTERNAL,
        Scope::Encapsulated => SCOPE_ENCAPSULATED,
    };
    FrontendAt { address: frontend.address, protocol: port.protocol.number(), scope }
}

/// Returns the value of a frontend.
pub fn value(port: &ServicePort, frontend: &model::Frontend, ids: ListIds) -> Frontend {
    let kind = match frontend.kind {
        FrontendKind::ClusterIp => FRONTEND_KIND_CLUSTER_IP,
        FrontendKind::NodePort => FRONTEND_KIND_NODE_PORT,
        FrontendKind::ExternalIp => FRONTEND_KIND_EXTERNAL_IP,
        FrontendKind::LoadBalancer => FRONTEND_KIND_LOAD_BALANCER,
    };
    let service = match frontend.list {
        List::Cluster => ids.cluster,
        List::Local => ids.local,
    };
    Frontend {
        service,
        cluster_service: if ids.cluster == 0 { service } else { ids.cluster },
        flags: kind << FRONTEND_KIND_SHIFT
            | restriction(port, frontend)
            | flag(is_listener(port, frontend), FRONTEND_LISTENER)
            | flag(has_dsr(port, frontend), FRONTEND_DSR)
            | flag(frontend.scope == Scope::ExternalInside, FRONTEND_INSIDE_ONLY)
            | flag(frontend.address.ip().is_loopback(), FRONTEND_NODE_ONLY)
            | flag(frontend.list == List::Local, FRONTEND_LOCAL)
            | flag(port.affinity_seconds > 0, FRONTEND_AFFINITY),
        affinity_seconds: port.affinity_seconds,
    }
}

/// Returns whether a frontend of a port has Direct Server Return.
///
/// A client of a ClusterIP is inside the cluster. It may have no route for replies from the backend's
/// node.
pub fn has_dsr(port: &ServicePort, frontend: &model::Frontend) -> bool {
    let is_for_clients = frontend.kind != FrontendKind::ClusterIp && frontend.scope != Scope::Internal;
    port.forwarding == Forwarding::Dsr && is_for_clients
}

/// Returns a value in the map with the source range flag that the port wants now.
pub fn restricted(value: Frontend, port: &ServicePort, frontend: &model::Frontend) -> Frontend {
    Frontend { flags: value.flags & !FRONTEND_SOURCE_RANGES | restriction(port, frontend), ..value }
}

/// Returns whether a frontend is restricted to source ranges. `loadBalancerSourceRanges` concerns
/// load balancer addresses only.
pub fn is_restricted(port: &ServicePort, frontend: &model::Frontend) -> bool {
    frontend.kind == FrontendKind::LoadBalancer && port.source_ranges.is_some()
}

/// Returns whether a backend on this node has the address and port of the frontend: a host-network
/// pod behind the node's address.
fn is_listener(port: &ServicePort, frontend: &model::Frontend) -> bool {
    frontend.scope == Scope::External
        && port.endpoints.get(&frontend.address).is_some_and(|endpoint| endpoint.local)
        && port.members(frontend.list).any(|member| *member == frontend.address)
}

fn restriction(port: &ServicePort, frontend: &model::Frontend) -> u32 {
    flag(is_restricted(port, frontend), FRONTEND_SOURCE_RANGES)
}

const fn flag(set: bool, flag: u32) -> u32 {
    if set { flag } else { 0 }
}
