//! Source ranges of frontends and of the cluster: SOURCE_RANGES.
//!
//! A frontend with `FRONTEND_SOURCE_RANGES` accepts the ranges of its service id. New ranges come
//! before any other operation, so that an allowed client is never refused. The ranges of a frontend
//! that opens stay until no frontend asks for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use proxy_common::frontend::{FRONTEND_SOURCE_RANGES, Frontend};
use proxy_common::source_range::{CLUSTER, NEAR};

use super::change::{Change, FrontendAt, Op, RangeAt};
use super::services::name_of;
use super::{Outcome, Plan, frontends};
use crate::model::{Desired, List, PortKey, ServicePort};

/// The entries in SOURCE_RANGES, and the number of frontends that use them.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// The ranges by service id, [`CLUSTER`] or [`NEAR`]. No set is empty.
    written: BTreeMap<u32, BTreeSet<IpNet>>,
    /// The number of frontends restricted to its ranges, by service id.
    restricted: BTreeMap<u32, usize>,
    /// Service ids with ranges that no frontend uses.
    idle: BTreeSet<u32>,
}

impl Ranges {
    /// Records a range found or written.
    pub fn written(&mut self, range: RangeAt) {
        self.written.entry(range.service).or_default().insert(range.net);
        self.update_idle(range.service);
    }

    /// Records a removed range.
    pub fn removed(&mut self, range: RangeAt) {
        if let Some(nets) = self.written.get_mut(&range.service) {
            nets.remove(&range.net);
            if nets.is_empty() {
                self.written.remove(&range.service);
            }
        }
        self.update_idle(range.service);
    }

    /// Counts a written or removed frontend.
    pub fn count_frontend(&mut self, value: Frontend, by: isize) {
        if value.flags & FRONTEND_SOURCE_RANGES == 0 {
            return;
        }
        let count = self.restricted.entry(value.service).or_default();
        *count = count.saturating_add_signed(by);
        if *count == 0 {
            self.restricted.remove(&value.service);
        }
        self.update_idle(value.service);
    }

    fn update_idle(&mut self, service: u32) {
        let is_asked_for = is_of_cluster(service) || self.restricted.contains_key(&service);
        if self.has_any(service) && !is_asked_for {
            self.idle.insert(service);
        } else {
            self.idle.remove(&service);
        }
    }

    /// Returns whether a service id has ranges in the map.
    #[must_use]
    pub fn has_any(&self, service: u32) -> bool {
        self.written.contains_key(&service)
    }

    /// Returns the additions for a service id to have all of `wanted`.
    fn missing(&self, service: u32, wanted: &BTreeSet<IpNet>) -> Vec<Change> {
        let written = self.written.get(&service);
        let missing = wanted.iter().filter(|net| !written.is_some_and(|written| written.contains(net)));
        missing.map(|net| Change::SourceRange(RangeAt { service, net: *net })).collect()
    }

    /// Returns the removals for a service id to have nothing but `wanted`.
    fn surplus(&self, service: u32, wanted: &BTreeSet<IpNet>) -> Vec<Change> {
        let written = self.written.get(&service).into_iter().flatten();
        let surplus = written.filter(|net| !wanted.contains(net));
        surplus.map(|net| Change::RemoveSourceRange(RangeAt { service, net: *net })).collect()
    }

    /// Returns the removals of ranges that no frontend uses.
    pub fn releases(&self) -> impl Iterator<Item = Change> {
        self.idle.iter().flat_map(|service| self.surplus(*service, &BTreeSet::new()))
    }

    /// Returns the ranges in the maps.
    pub fn all(&self) -> impl Iterator<Item = RangeAt> {
        self.written
            .iter()
            .flat_map(|(service, nets)| nets.iter().map(|net| RangeAt { service: *service, net: *net }))
    }
}

impl Plan {
    /// Plans the source ranges of a port with the frontends `wanted`.
    ///
    /// The plan restricts open frontends before any other operation of the port. So they are
    /// restricted even if a later operation fails. Returns the values of these frontends after
    /// that.
    pub(super) fn plan_ranges(
        &self,
        key: &Arc<PortKey>,
        port: &ServicePort,
        wanted: &BTreeMap<FrontendAt, Frontend>,
        ops: &mut Vec<Op>,
    ) -> BTreeMap<FrontendAt, Frontend> {
        let Some(nets) = &port.source_ranges else { return BTreeMap::new() };
        let nets: BTreeSet<IpNet> = nets.iter().map(IpNet::trunc).collect();
        let is_closed = |value: &Frontend| value.flags & FRONTEND_SOURCE_RANGES != 0;
        let mut services = BTreeSet::new();
        let mut closing = BTreeMap::new();
        for (at, value) in wanted.iter().filter(|(_, value)| is_closed(value)) {
            services.insert(value.service);
            let Some(before) = self.frontends.value(at).filter(|before| self.is_of(before, key)) else {
                continue;
            };
            services.insert(before.service);
            if !is_closed(&before) {
                closing.insert(*at, Frontend { flags: before.flags | FRONTEND_SOURCE_RANGES, ..before });
            }
        }
        let ranges = services.into_iter().flat_map(|service| {
            self.ranges.missing(service, &nets).into_iter().chain(self.ranges.surplus(service, &nets))
        });
        let restrictions = closing.iter().map(|(at, value)| Change::Restrict(*at, *value));
        ops.extend(ranges.chain(restrictions).map(|change| Op { change, owner: Some(Arc::clone(key)) }));
        closing
    }

    /// Plans removals for restricted ports that could not take over their frontends.
    ///
    /// The frontend is still in the map for another Service, the former owner of the address. It is
    /// open to all clients, or to the clients of the other Service.
    pub(super) fn plan_closings(&self, desired: &Desired, outcome: &Outcome) -> Vec<Op> {
        let mut ops = Vec::new();
        for key in outcome.pending.keys() {
            let Some(port) = desired.ports.get(&**key).filter(|port| port.source_ranges.is_some()) else {
                continue;
            };
            let restricted =
                port.frontends.iter().filter(|frontend| frontends::is_restricted(port, frontend));
            let is_free = |at: &FrontendAt| self.frontends.owner(at).is_none_or(|owner| owner == key);
            let is_foreign =
                |at: &FrontendAt| self.frontends.value(at).is_some_and(|value| !self.is_of(&value, key));
            let foreign = restricted.map(|frontend| frontends::at(port, frontend));
            let foreign = foreign.filter(|at| is_free(at) && is_foreign(at));
            ops.extend(
                foreign.map(|at| Op { change: Change::RemoveFrontend(at), owner: Some(Arc::clone(key)) }),
            );
        }
        ops
    }

    /// Plans the sources inside the cluster. The plan removes no source until everything was read.
    pub(super) fn plan_cluster_sources(&self, desired: &Desired, ops: &mut Vec<Op>) {
        for (id, sources) in [(CLUSTER, &desired.cluster_sources), (NEAR, &desired.own_sources)] {
            let wanted: BTreeSet<IpNet> = sources.iter().map(IpNet::trunc).collect();
            let mut changes = self.ranges.missing(id, &wanted);
            if !self.nodes.keeps_unclaimed() {
                changes.extend(self.ranges.surplus(id, &wanted));
            }
            ops.extend(changes.into_iter().map(|change| Op { change, owner: None }));
        }
    }

    /// Returns whether a frontend in the map leads to a list of this port.
    pub(super) fn is_of(&self, value: &Frontend, key: &PortKey) -> bool {
        let is_name =
            |state: &str| [List::Cluster, List::Local].iter().any(|list| state == name_of(key, *list));
        self.services.get(value.service).is_some_and(|state| is_name(&state.name))
    }
}

/// Returns whether an id means the cluster instead of a service.
pub(super) const fn is_of_cluster(service: u32) -> bool {
    service == CLUSTER || service == NEAR
}
