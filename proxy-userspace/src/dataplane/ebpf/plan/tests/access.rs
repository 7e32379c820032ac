//! Checks at every single operation which clients may use a frontend.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use proxy_common::frontend::FRONTEND_SOURCE_RANGES;

use super::kernel::FakeKernel;
use crate::dataplane::ebpf::plan::services::name_of;
use crate::dataplane::ebpf::plan::{FrontendAt, frontends};
use crate::model::{Desired, FrontendKind, List, PortKey};

/// The clients that may use a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// No client: the frontend is absent.
    Nobody,
    Everybody,
    Only(BTreeSet<IpNet>),
}

/// The access to frontends when a sync begins and when it ends.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    frontends: BTreeMap<FrontendAt, (Access, Access)>,
    /// Whether operations fail, so that new clients may still be refused.
    refusing: bool,
}

/// The load balancer frontends of a desired state, their ports and their access.
pub fn wanted(desired: &Desired) -> BTreeMap<FrontendAt, (&PortKey, Access)> {
    let ports = desired.ports.iter();
    ports
        .flat_map(|(key, port)| port.frontends.iter().map(move |frontend| (key, port, frontend)))
        .filter(|(_, _, frontend)| frontend.kind == FrontendKind::LoadBalancer)
        .map(|(key, port, frontend)| {
            let access = port.source_ranges.clone().map_or(Access::Everybody, Access::Only);
            (frontends::at(port, frontend), (key, access))
        })
        .collect()
}

impl Guard {
    /// Watches the frontends of `desired`.
    ///
    /// A frontend of another service changes its owner late in the sync, and its ranges may change
    /// until then. For these only the access at the end counts.
    pub fn new(kernel: &FakeKernel, desired: &Desired) -> Self {
        let own = wanted(desired).into_iter().filter(|(at, (key, _))| !kernel.is_of_another(at, key));
        let frontends = own.map(|(at, (_, wanted))| (at, (kernel.access(&at), wanted))).collect();
        Self { frontends, refusing: !kernel.refuse.is_empty() }
    }

    /// Asserts that no client gets in that may use the frontend neither before nor after the sync.
    /// Asserts that no client is refused that may use it before and after.
    pub fn check(&self, kernel: &FakeKernel) {
        for (at, (before, after)) in &self.frontends {
            let now = kernel.access(at);
            let is_right = match (before, after, &now) {
                (_, _, Access::Nobody)
                | (_, Access::Everybody, Access::Everybody)
                | (Access::Everybody, Access::Only(_), Access::Everybody) => true,
                (Access::Nobody, Access::Only(after), Access::Only(now)) => now == after,
                (Access::Everybody, Access::Only(after), Access::Only(now)) => {
                    self.refusing || now.is_superset(after)
                }
                (Access::Only(before), Access::Only(after), Access::Only(now)) => {
                    let kept: BTreeSet<IpNet> = before.intersection(after).copied().collect();
                    let either: BTreeSet<IpNet> = before.union(after).copied().collect();
                    now.is_subset(&either) && now.is_superset(&kept)
                }
                (Access::Only(before), Access::Everybody, Access::Only(now)) => now.is_superset(before),
                (Access::Nobody | Access::Only(_), Access::Only(_), Access::Everybody)
                | (_, Access::Everybody, Access::Only(_))
                | (_, Access::Nobody, _) => false,
            };
            assert!(is_right, "{at:?}: {before:?} -> {after:?}, in between {now:?}");
        }
    }
}

impl FakeKernel {
    /// Returns the access to a frontend now.
    pub fn access(&self, at: &FrontendAt) -> Access {
        match self.frontends.get(at) {
            None => Access::Nobody,
            Some(value) if value.flags & FRONTEND_SOURCE_RANGES == 0 => Access::Everybody,
            Some(value) => Access::Only(self.ranges_of(value.service)),
        }
    }

    /// Returns whether a frontend leads to another service port.
    fn is_of_another(&self, at: &FrontendAt, key: &PortKey) -> bool {
        let Some(name) = self.frontends.get(at).and_then(|value| self.names.get(&value.service)) else {
            return false;
        };
        let own = [List::Cluster, List::Local].map(|list| name_of(key, list));
        !own.iter().any(|own| name.text() == Some(own))
    }

    /// Returns the ranges of a service id.
    pub fn ranges_of(&self, service: u32) -> BTreeSet<IpNet> {
        self.ranges.iter().filter(|range| range.service == service).map(|range| range.net).collect()
    }
}

/// Asserts that every served frontend has the wanted access.
pub fn assert_access(kernel: &FakeKernel, desired: &Desired) {
    for (at, (_, access)) in wanted(desired) {
        let now = kernel.access(&at);
        assert!(now == access || now == Access::Nobody, "{at:?}: {now:?} instead of {access:?}");
    }
}
