//! The needs of one service port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proxy_common::frontend::Frontend;
use proxy_common::selection::{BackendRef, HintKey};

use super::backends::{Target, View, hint_losers};
use super::change::{BackendId, Change, FrontendAt, Op};
use super::frontends::{self, ListIds};
use super::{Outcome, Plan};
use crate::dataplane::ebpf::settings::Dispatch;
use crate::model::{Desired, Family, Forwarding, List, PortKey, ServicePort};

impl Plan {
    /// Claims ids for the endpoints of a port and releases those of lost endpoints. Adds all
    /// backends with a possible change to `touched`.
    pub(super) fn claim_endpoints(
        &mut self,
        key: &Arc<PortKey>,
        port: Option<&ServicePort>,
        now: Duration,
        touched: &mut BTreeSet<BackendId>,
        outcome: &mut Outcome,
    ) {
        let family = key.family;
        let losers = port.map(|port| self.hints_lost(key, port)).unwrap_or_default();
        let endpoints = port.into_iter().flat_map(|port| {
            port.endpoints.iter().map(|(address, endpoint)| (self.target(port, *address), endpoint))
        });
        let wanted: Vec<_> =
            endpoints.filter(|(target, _)| Family::of(target.address.ip()) == family).collect();
        let backends = self.backends_mut(family);
        let mut claimed = Vec::with_capacity(wanted.len());
        for (target, endpoint) in wanted {
            let address = target.address;
            let Some(id) = backends.claim(target, now) else {
                let room = backends.capacity().saturating_sub(1);
                outcome.degraded(key, format!("no room for endpoint {address}: BACKENDS holds {room}"));
                continue;
            };
            let view = View { endpoint: endpoint.clone(), hint_lost: losers.contains(&address) };
            // New connections, and datagrams without a connection, use the wanted destination. The
            // former one only serves.
            let former = backends.former(target).map(|id| (id, view.leaving()));
            for (id, view) in [Some((id, view)), former].into_iter().flatten() {
                backends.set_view(id, key, Some(view), now);
                touched.insert(BackendId { family, id });
                claimed.push(id);
            }
        }
        claimed.sort_unstable();
        let state = self.ports.entry(Arc::clone(key)).or_default();
        let before = std::mem::replace(&mut state.endpoints, claimed.clone().into_boxed_slice());
        for id in before.into_iter().filter(|id| claimed.binary_search(id).is_err()) {
            self.backends_mut(family).set_view(id, key, None, now);
            touched.insert(BackendId { family, id });
        }
    }

    /// Returns the target of a port's new connections to an endpoint.
    ///
    /// A pod gets only packets without a port translation. An endpoint with the node's address has
    /// no network namespace of its own that could remove the outer header.
    pub(super) fn target(&self, port: &ServicePort, address: SocketAddr) -> Target {
        let keeps_port = || port.frontends.iter().any(|frontend| frontend.address.port() == address.port());
        let is_pod = self.dispatch == Dispatch::Pod
            && port.forwarding == Forwarding::Dsr
            && keeps_port()
            && !self.nodes.is_node(address.ip());
        Target { address, dispatch: if is_pod { Dispatch::Pod } else { Dispatch::Node } }
    }

    /// Plans the lists, names, hints and frontends of a port. Its backends are planned before.
    pub(super) fn plan_port(
        &mut self,
        key: &Arc<PortKey>,
        desired: &Desired,
        now: Duration,
        ops: &mut Vec<Op>,
        outcome: &mut Outcome,
    ) {
        let Some(port) = desired.ports.get(&**key) else {
            self.frontends.claim(key, &BTreeMap::new());
            self.keep_services(key, ListIds::default());
            self.ports.remove(key);
            return;
        };
        let awaits_endpoints = self.awaits_endpoints(key, desired);
        let ids = if awaits_endpoints {
            self.unclaimed_lists(key, port)
        } else {
            self.plan_lists(key, port, now, ops, outcome)
        };
        let Some(ids) = ids else {
            self.plan_frontends(key, port, &self.served(key, port), ops);
            return;
        };
        let wanted = self.uncontested(key, self.wanted_frontends(key, port, ids), desired, outcome);
        self.plan_frontends(key, port, &wanted, ops);
        if !awaits_endpoints {
            self.plan_hints(key, port, ids, now, ops);
            self.keep_services(key, ids);
        }
    }

    fn plan_frontends(
        &mut self,
        key: &Arc<PortKey>,
        port: &ServicePort,
        wanted: &BTreeMap<FrontendAt, Frontend>,
        ops: &mut Vec<Op>,
    ) {
        let closed = self.plan_ranges(key, port, wanted, ops);
        let writes = self.frontends.claim(key, wanted).into_iter();
        let writes = writes.filter(|(at, value)| closed.get(at) != Some(value));
        ops.extend(
            writes
                .map(|(at, value)| Op { change: Change::Frontend(at, value), owner: Some(Arc::clone(key)) }),
        );
    }

    /// Returns the wanted frontends of a port that the map already serves for it, with the source
    /// range flag of now.
    ///
    /// They stay while one of the port's lists finds no room, even if an earlier agent wrote them.
    fn served(&self, key: &PortKey, port: &ServicePort) -> BTreeMap<FrontendAt, Frontend> {
        let is_free = |at: &FrontendAt| self.frontends.owner(at).is_none_or(|owner| **owner == *key);
        let served = |frontend| {
            let at = frontends::at(port, frontend);
            let value = self.frontends.value(&at).filter(|value| is_free(&at) && self.is_of(value, key))?;
            Some((at, frontends::restricted(value, port, frontend)))
        };
        let of_other_nodes = frontends::encapsulated(port);
        port.frontends.iter().chain(&of_other_nodes).filter_map(served).collect()
    }

    /// Plans the lists in use; `None` if one of them can't be served.
    fn plan_lists(
        &mut self,
        key: &Arc<PortKey>,
        port: &ServicePort,
        now: Duration,
        ops: &mut Vec<Op>,
        outcome: &mut Outcome,
    ) -> Option<ListIds> {
        let mut of = |list: List| {
            if !needs(port, list) {
                return Some(0);
            }
            self.plan_list(key, port, list, now, ops).map_err(|why| outcome.degraded(key, why)).ok()
        };
        let cluster = of(List::Cluster);
        let local = of(List::Local);
        Some(ListIds { cluster: cluster?, local: local? })
    }

    /// Releases the service ids that a port no longer needs.
    fn keep_services(&mut self, key: &Arc<PortKey>, ids: ListIds) {
        let kept: BTreeSet<u32> = [ids.cluster, ids.local].into_iter().filter(|id| *id != 0).collect();
        let state = self.ports.entry(Arc::clone(key)).or_default();
        let before = std::mem::replace(&mut state.services, kept.clone());
        for id in before.difference(&kept) {
            self.services.disown(*id);
        }
    }

    /// Drops frontends that another port has and still wants.
    ///
    /// The model prevents double claims. If one happens anyway, the first port keeps the frontend.
    fn uncontested(
        &self,
        key: &Arc<PortKey>,
        wanted: BTreeMap<FrontendAt, Frontend>,
        desired: &Desired,
        outcome: &mut Outcome,
    ) -> BTreeMap<FrontendAt, Frontend> {
        let holder = |at: &FrontendAt| {
            let owner = self.frontends.owner(at).filter(|owner| *owner != key)?;
            let port = desired.ports.get(&**owner)?;
            port.frontends.iter().any(|frontend| frontends::at(port, frontend) == *at).then_some(owner)
        };
        let (contested, free): (BTreeMap<_, _>, BTreeMap<_, _>) =
            wanted.into_iter().partition(|(at, _)| holder(at).is_some());
        for at in contested.keys() {
            if let Some(owner) = holder(at) {
                outcome.degraded(key, format!("frontend {} is already served for {owner}", at.address));
            }
        }
        free
    }

    /// Plans the hints of a port: the local backends under Direct Server Return, and the list
    /// members under session affinity.
    ///
    /// A local backend gets its hint under every list, because a frontend on another node may use
    /// either list.
    fn plan_hints(
        &mut self,
        key: &Arc<PortKey>,
        port: &ServicePort,
        ids: ListIds,
        now: Duration,
        ops: &mut Vec<Op>,
    ) {
        let hints = self.wanted_hints(key, port);
        for (list, service) in [(List::Cluster, ids.cluster), (List::Local, ids.local)] {
            let mut wanted = hints.clone();
            wanted.extend(self.wanted_members(key, port, list));
            let gone = self.services.end_hints(service, &wanted, now);
            let Some(state) = self.services.get(service).filter(|_| service != 0) else { continue };
            let at = |hint: u32| HintKey { service, hint };
            let written = wanted
                .iter()
                .filter(|(hint, backend)| state.hints.get(hint) != Some(backend))
                .map(|(hint, backend)| Change::Hint(at(*hint), *backend));
            ops.extend(
                written
                    .chain(gone.into_iter().map(|hint| Change::RemoveHint(at(hint))))
                    .map(|change| Op { change, owner: Some(Arc::clone(key)) }),
            );
        }
    }

    /// Returns the members of a list. A client with session affinity stays only with a member.
    fn wanted_members(
        &self,
        key: &PortKey,
        port: &ServicePort,
        list: List,
    ) -> impl Iterator<Item = (u32, BackendRef)> {
        let members = port.members(list).filter(|_| port.affinity_seconds > 0);
        let members =
            members.filter_map(|address| self.backends(key.family).reference(self.target(port, *address)));
        members.map(|backend| (HintKey::member(0, backend).hint, backend))
    }

    /// Returns the local backends by hint and by pod address. Directors in eBPF mode write the
    /// hint. The pod address finds the pod's lowest endpoint.
    fn wanted_hints(&self, key: &PortKey, port: &ServicePort) -> BTreeMap<u32, BackendRef> {
        if !self.may_have_dsr(key, port) {
            return BTreeMap::new();
        }
        let losers = self.hints_lost(key, port);
        let local = port.endpoints.iter().filter(|(_, endpoint)| endpoint.local);
        let mut hints = BTreeMap::new();
        for (address, _) in local {
            let Some(backend) = self.backends(key.family).reference(self.target(port, *address)) else {
                continue;
            };
            if !losers.contains(address) {
                hints.insert(super::backends::hint_of(*address), backend);
            }
            hints.entry(super::backends::pod_hint_of(address.ip())).or_insert(backend);
        }
        hints
    }

    /// Returns the endpoints that lose their hint to a lower address of the port. Only Direct Server
    /// Return uses hints.
    fn hints_lost(&self, key: &PortKey, port: &ServicePort) -> BTreeSet<SocketAddr> {
        if self.may_have_dsr(key, port) { hint_losers(port.endpoints.keys()) } else { BTreeSet::new() }
    }
}

/// Returns whether a port has a list, or a frontend that needs it.
pub(super) fn needs(port: &ServicePort, list: List) -> bool {
    let has_it = match list {
        List::Cluster => port.cluster.is_some(),
        List::Local => port.local.is_some(),
    };
    has_it || port.frontends.iter().any(|frontend| frontend.list == list)
}
