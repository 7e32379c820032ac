//! The end of Direct Server Return, or of policy Cluster with it: what is needed by connections that began so.
//!
//! Their packets come to this node as before, from clients or encapsulated by directors. So the frontends keep
//! a flag, and the backends of this node their hints. Both go once the established time-out has passed, those of
//! Direct Server Return not before the last connection that directors encapsulate for this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proxy_common::frontend::{
    FRONTEND_DSR, FRONTEND_DSR_ENDS, FRONTEND_LOCAL, FRONTEND_WAS_CLUSTER, Frontend,
};

use super::Plan;
use super::change::FrontendAt;
use super::frontends::{self, ListIds};
use crate::model::{Forwarding, List, PortKey, ServicePort};

/// The end of Direct Server Return for a port, or of policy Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Its begin, as far as this agent knows.
    since: Duration,
    /// The flags that are still needed: [`FRONTEND_DSR_ENDS`], [`FRONTEND_WAS_CLUSTER`].
    flags: u32,
}

impl Plan {
    /// Records what of Direct Server Return ends with the next change of a port's frontends: what those in
    /// the map have, and the port wants no more.
    pub(super) fn review_dsr(&mut self, key: &Arc<PortKey>, port: Option<&ServicePort>, now: Duration) {
        let Some(port) = port else {
            self.dsr_endings.remove(key);
            return;
        };
        let (mut begins, mut goes_on) = (0, 0);
        for frontend in &port.frontends {
            let Some(value) = self.dsr_frontend(key, &frontends::at(port, frontend)) else { continue };
            let ended = ended(value, port.forwarding == Forwarding::Dsr, frontend.list == List::Local);
            begins |= ended & !value.flags;
            goes_on |= ended & value.flags;
        }
        let found = self.dsr_endings.get(key).copied();
        // After a restart the begin is not known.
        let kept = found.map_or(goes_on, |ending| ending.flags & goes_on);
        let since = found.filter(|_| begins == 0).map_or(now, |ending| ending.since);
        if begins | goes_on == 0 {
            self.dsr_endings.remove(key);
        } else {
            self.dsr_endings.insert(Arc::clone(key), Ending { since, flags: kept | begins });
        }
    }

    /// Returns a frontend of a port in the map if it may have connections by Direct Server Return.
    fn dsr_frontend(&self, key: &PortKey, at: &FrontendAt) -> Option<Frontend> {
        self.frontends.value(at).filter(|value| value.may_have_dsr() && self.is_of(value, key))
    }

    fn ending_flags(&self, key: &PortKey) -> u32 {
        self.dsr_endings.get(key).map_or(0, |ending| ending.flags)
    }

    /// Returns whether a port may have connections by Direct Server Return: new ones, or older ones.
    pub(super) fn may_have_dsr(&self, key: &PortKey, port: &ServicePort) -> bool {
        port.forwarding == Forwarding::Dsr || self.ending_flags(key) & FRONTEND_DSR_ENDS != 0
    }

    /// Returns the wanted frontends of a port, with the flags of older connections, and with those for
    /// NodePorts of other nodes while Direct Server Return ends.
    pub(super) fn wanted_frontends(
        &self,
        key: &PortKey,
        port: &ServicePort,
        ids: ListIds,
    ) -> BTreeMap<FrontendAt, Frontend> {
        let mut wanted = frontends::wanted(port, ids);
        let flags = self.ending_flags(key);
        if flags & FRONTEND_DSR_ENDS != 0 {
            for frontend in frontends::encapsulated(port) {
                let at = frontends::at(port, &frontend);
                if self.dsr_frontend(key, &at).is_some() {
                    wanted.entry(at).or_insert_with(|| frontends::value(port, &frontend, ids));
                }
            }
        }
        for (at, value) in &mut wanted {
            let has = |flag: u32| value.flags & flag != 0;
            let ended = |found| ended(found, has(FRONTEND_DSR), has(FRONTEND_LOCAL));
            value.flags |= self.dsr_frontend(key, at).map_or(0, ended) & flags;
        }
        wanted
    }

    /// Returns the service ids of all ports with an ending.
    pub(super) fn services_with_dsr_ending(&self) -> impl Iterator<Item = u32> {
        let endings = self.dsr_endings.iter().filter(|(_, ending)| ending.flags != 0);
        endings.filter_map(|(key, _)| self.ports.get(key)).flat_map(|port| port.services.iter().copied())
    }

    /// Ends what a walk found to be over, for the port of a service. The walk `started` after `silence`, and
    /// found `returning` connections. The next sync changes the frontends.
    ///
    /// Policy Cluster is over then: all its connections have entries, on this node. Direct Server Return is not
    /// while this node gets packets of its connections from directors.
    pub(super) fn end_dsr(
        &mut self,
        service: u32,
        started: Duration,
        silence: Duration,
        returning: &BTreeSet<u32>,
    ) {
        let Some(key) = self.services.get(service).and_then(|state| state.owner.clone()) else { return };
        let Some(ending) = self.dsr_endings.get_mut(&key) else { return };
        if started.checked_sub(ending.since).is_none_or(|age| age <= silence) {
            return;
        }
        let is_used = self.ports.get(&key).is_some_and(|port| !port.services.is_disjoint(returning));
        let left = if is_used { ending.flags & FRONTEND_DSR_ENDS } else { 0 };
        if left != ending.flags {
            ending.flags = left;
            self.pending.insert(key);
        }
    }
}

/// Returns the flags of older connections for a frontend that is to have Direct Server Return, or policy Local,
/// or not. `value` is that in the map, and may have connections by Direct Server Return.
const fn ended(value: Frontend, has_dsr: bool, is_local: bool) -> u32 {
    let was_cluster = value.flags & FRONTEND_LOCAL == 0 || value.flags & FRONTEND_WAS_CLUSTER != 0;
    let dsr_ends = if has_dsr { 0 } else { FRONTEND_DSR_ENDS };
    dsr_ends | if is_local && was_cluster { FRONTEND_WAS_CLUSTER } else { 0 }
}
