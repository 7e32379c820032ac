//! Who owns which frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_DSR, FRONTEND_INSIDE_ONLY, FRONTEND_KIND_CLUSTER_IP,
    FRONTEND_KIND_EXTERNAL_IP, FRONTEND_KIND_LOAD_BALANCER, FRONTEND_KIND_NODE_PORT, FRONTEND_KIND_SHIFT,
    FRONTEND_LISTENER, FRONTEND_LOCAL, FRONTEND_NODE_ONLY, FRONTEND_SOURCE_RANGES, Frontend,
    SCOPE_ENCAPSULATED, SCOPE_EXTERNAL, SCOPE_INTERNAL,
};

use super::change::FrontendAt;
use crate::model::{self, Forwarding, FrontendKind, List, PortKey, Scope, ServicePort};

/// What is in FRONTENDS, and which service port each entry is for.
#[derive(Clone, Debug, Default)]
pub struct Frontends {
    written: BTreeMap<FrontendAt, Frontend>,
    owners: BTreeMap<FrontendAt, Arc<PortKey>>,
    claims: BTreeMap<Arc<PortKey>, Box<[FrontendAt]>>,
    /// Written, and owned by nobody.
    unowned: BTreeSet<FrontendAt>,
    /// Found, and not claimed so far by anybody.
    unclaimed: BTreeSet<FrontendAt>,
}

impl Frontends {
    /// Takes over an entry found in the map.
    pub fn adopt(&mut self, at: FrontendAt, value: Frontend) {
        self.written.insert(at, value);
        self.unclaimed.insert(at);
    }

    /// What was found and nobody has claimed is owned by nobody.
    pub fn release_unclaimed(&mut self) {
        self.unowned.append(&mut self.unclaimed);
    }

    /// Makes `owner` the owner of exactly `wanted`, and returns those that must be written.
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

    /// The service port an entry is for.
    #[must_use]
    pub fn owner(&self, at: &FrontendAt) -> Option<&Arc<PortKey>> {
        self.owners.get(at)
    }

    /// What is in the map for a frontend.
    #[must_use]
    pub fn value(&self, at: &FrontendAt) -> Option<Frontend> {
        self.written.get(at).copied()
    }

    /// What is in the map.
    pub fn written(&self) -> impl Iterator<Item = (FrontendAt, Frontend)> {
        self.written.iter().map(|(at, value)| (*at, *value))
    }

    /// Entries nobody names any more.
    pub fn unowned(&self) -> impl Iterator<Item = FrontendAt> {
        self.unowned.iter().copied()
    }

    /// Records that an entry was written or removed; returns what it was before.
    pub fn record(&mut self, at: FrontendAt, value: Option<Frontend>) -> Option<Frontend> {
        if let Some(value) = value {
            return self.written.insert(at, value);
        }
        self.unowned.remove(&at);
        self.written.remove(&at)
    }
}

/// The service ids of a port's two lists; 0 where a list is not in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListIds {
    /// The Cluster list.
    pub cluster: u32,
    /// The Local list.
    pub local: u32,
}

/// What a port's frontends shall be.
pub fn wanted(port: &ServicePort, ids: ListIds) -> BTreeMap<FrontendAt, Frontend> {
    port.frontends.iter().map(|frontend| (at(port, frontend), value(port, frontend, ids))).collect()
}

/// The key of a frontend.
pub fn at(port: &ServicePort, frontend: &model::Frontend) -> FrontendAt {
    let scope = match frontend.scope {
        Scope::Internal => SCOPE_INTERNAL,
        Scope::External | Scope::ExternalInside => SCOPE_EXTERNAL,
        Scope::Encapsulated => SCOPE_ENCAPSULATED,
    };
    FrontendAt { address: frontend.address, protocol: port.protocol.number(), scope }
}

fn value(port: &ServicePort, frontend: &model::Frontend, ids: ListIds) -> Frontend {
    let kind = match frontend.kind {
        FrontendKind::ClusterIp => FRONTEND_KIND_CLUSTER_IP,
        FrontendKind::NodePort => FRONTEND_KIND_NODE_PORT,
        FrontendKind::ExternalIp => FRONTEND_KIND_EXTERNAL_IP,
        FrontendKind::LoadBalancer => FRONTEND_KIND_LOAD_BALANCER,
    };
    // Whoever sends to a cluster IP is near, and may well not know a way for replies from the backend's node.
    let is_for_clients = frontend.kind != FrontendKind::ClusterIp && frontend.scope != Scope::Internal;
    let dsr = port.forwarding == Forwarding::Dsr && is_for_clients;
    Frontend {
        service: match frontend.list {
            List::Cluster => ids.cluster,
            List::Local => ids.local,
        },
        cluster_service: ids.cluster,
        flags: kind << FRONTEND_KIND_SHIFT
            | restriction(port, frontend)
            | flag(is_listener(port, frontend), FRONTEND_LISTENER)
            | flag(dsr, FRONTEND_DSR)
            | flag(frontend.scope == Scope::ExternalInside, FRONTEND_INSIDE_ONLY)
            | flag(frontend.address.ip().is_loopback(), FRONTEND_NODE_ONLY)
            | flag(frontend.list == List::Local, FRONTEND_LOCAL)
            | flag(port.affinity_seconds > 0, FRONTEND_AFFINITY),
        affinity_seconds: port.affinity_seconds,
    }
}

/// A value that is in the map already, open or closed as the port wants it now.
pub fn restricted(value: Frontend, port: &ServicePort, frontend: &model::Frontend) -> Frontend {
    Frontend { flags: value.flags & !FRONTEND_SOURCE_RANGES | restriction(port, frontend), ..value }
}

/// Whether a frontend lets in source ranges only. `loadBalancerSourceRanges` is about load balancer addresses only.
pub fn is_restricted(port: &ServicePort, frontend: &model::Frontend) -> bool {
    frontend.kind == FrontendKind::LoadBalancer && port.source_ranges.is_some()
}

/// Whether a backend on this node has the frontend's own address and port: a host-network pod behind the node's address.
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
