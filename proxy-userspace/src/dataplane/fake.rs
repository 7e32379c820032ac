//! A data plane without a kernel, for tests of its callers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dataplane::ebpf::Sizes;
use crate::dataplane::{Check, Dataplane, SyncFailure, SyncReport};
use crate::model::{Desired, Dirty, PortKey, ServicePort};
use crate::node::Topology;

/// Records its calls and fails on request.
#[derive(Clone, Debug, Default)]
pub struct FakeDataplane {
    /// The served ports: the state in [`Desired::ports`] when each was last dirty.
    pub served: BTreeMap<PortKey, ServicePort>,
    /// The topology of the last call.
    pub topology: Topology,
    /// The number of `set_topology` calls.
    pub topologies: usize,
    /// The failure of the attachment to devices.
    pub unattached: Option<SyncFailure>,
    /// The time until a sync has work though nothing changed.
    pub due_in: Option<Duration>,
    /// The dirty set of each call of `sync`, in order.
    pub syncs: Vec<Dirty>,
    /// Ports that can't be served, and the reasons.
    pub refused: BTreeMap<PortKey, String>,
    /// The fault of the self-check.
    pub fault: Option<String>,
    /// The number of `housekeep` calls.
    pub housekept: usize,
    /// Whether an uplink lost its program.
    pub is_detached: bool,
    /// The room of the maps, if larger ones can be made.
    pub room: Option<Sizes>,
    /// A failure of each sync, without a port.
    pub failure: Option<SyncFailure>,
    /// The requested time of the next `housekeep` call.
    pub housekeep_in: Option<Duration>,
    pending: Dirty,
}

impl Dataplane for FakeDataplane {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        self.syncs.push(dirty.clone());
        let failures = self.failure.iter().cloned().collect();
        let mut report = SyncReport { due_in: self.due_in, failures, ..SyncReport::default() };
        let mut due = std::mem::take(&mut self.pending);
        due.merge(dirty.clone());
        for key in due.ports {
            if let Some(reason) = self.refused.get(&key) {
                report.pending.push((key.clone(), reason.clone()));
                self.pending.ports.insert(key);
                continue;
            }
            let before = match desired.ports.get(&key) {
                Some(port) => self.served.insert(key.clone(), port.clone()),
                None => self.served.remove(&key),
            };
            report.writes += usize::from(before.as_ref() != desired.ports.get(&key));
        }
        report
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        let writes = usize::from(self.topology != *topology);
        self.topology = topology.clone();
        self.topologies += 1;
        SyncReport { writes, failures: self.unattached.iter().cloned().collect(), ..SyncReport::default() }
    }

    fn housekeep(&mut self, _now_monotonic_seconds: u64) -> Option<Duration> {
        self.housekept += 1;
        self.housekeep_in
    }

    fn check(&mut self) -> Check {
        Check { fault: self.fault.clone(), ..Check::default() }
    }

    fn is_attached(&self) -> bool {
        !self.is_detached
    }

    fn room(&self) -> Option<Sizes> {
        self.room
    }
}
