//! The addresses of Services that nodes announce on their links, and the nodes that may.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Candidates, Eligibility, FrontendKind, List, Model, Scope, ServicePort};

impl Model {
    /// Updates the addresses that nodes may announce.
    ///
    /// Looks at every service port, but only if addresses are to be announced at all.
    pub(super) fn refresh_announced(&mut self) {
        let is_wanted = !self.settings.announced_ranges.is_empty() && self.may_announce();
        self.desired.announced = if is_wanted { self.announced() } else { BTreeMap::new() };
    }

    /// Returns whether load balancers may send clients to this node. Another one announces its addresses then.
    fn may_announce(&self) -> bool {
        let own = self.environment.own();
        own.is_some_and(|own| own.own.eligibility == Eligibility::Eligible && !own.gets_no_clients)
    }

    fn announced(&self) -> BTreeMap<IpAddr, Candidates> {
        let mut policies: BTreeMap<IpAddr, Vec<Option<BTreeSet<Arc<str>>>>> = BTreeMap::new();
        for (key, port) in &self.desired.ports {
            let is_wanted = self.index.service(&key.service).and_then(|stored| stored.spec.as_ref());
            if !is_wanted.is_some_and(|spec| spec.overrides.announce.unwrap_or(true)) {
                continue;
            }
            let nodes = LazyCell::new(|| nodes_with_endpoints(port));
            for (address, list) in self.announced_by(port) {
                policies.entry(address).or_default().push((list == List::Local).then(|| nodes.clone()));
            }
        }
        policies.into_iter().map(|(address, policies)| (address, join(policies))).collect()
    }

    /// Returns the addresses of a service port inside the ranges that are no node's own: the kernel of that
    /// node answers for those.
    fn announced_by<'a>(&'a self, port: &'a ServicePort) -> impl Iterator<Item = (IpAddr, List)> + 'a {
        let of_balancer = |kind| matches!(kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIp);
        port.frontends
            .iter()
            .filter(move |frontend| frontend.scope == Scope::External && of_balancer(frontend.kind))
            .map(|frontend| (frontend.address.ip(), frontend.list))
            .filter(|(address, _)| self.settings.announced_ranges.iter().any(|range| range.contains(address)))
            .filter(|(address, _)| {
                !self.environment.is_own(*address) && !self.environment.is_of_node(*address)
            })
    }
}

/// Returns the nodes with a ready endpoint, or else those with one that still serves while it ends.
fn nodes_with_endpoints(port: &ServicePort) -> BTreeSet<Arc<str>> {
    let nodes = |usable: fn(&super::Endpoint) -> bool| -> BTreeSet<Arc<str>> {
        port.endpoints.values().filter(|one| usable(one)).filter_map(|one| one.node.clone()).collect()
    };
    let ready = nodes(|one| one.ready);
    if ready.is_empty() { nodes(|one| one.serving && one.terminating) } else { ready }
}

/// Joins the service ports of one address: a node that serves those with policy Local serves all of them. If none
/// does, one that serves some of them must do.
fn join(policies: Vec<Option<BTreeSet<Arc<str>>>>) -> Candidates {
    let local: Vec<BTreeSet<Arc<str>>> = policies.into_iter().flatten().collect();
    let Some(first) = local.first() else { return Candidates::All };
    let common = local.iter().fold(first.clone(), |common, nodes| &common & nodes);
    if common.is_empty() {
        Candidates::Only(local.into_iter().flatten().collect())
    } else {
        Candidates::Only(common)
    }
}

#[cfg(test)]
#[path = "announced_tests.rs"]
mod tests;
