//! A data plane without a kernel, for tests of whatever drives one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dataplane::{Check, Dataplane, SyncFailure, SyncReport};
use crate::model::{Desired, Dirty, PortKey, ServicePort};
use crate::node::Topology;

/// Remembers what it was told, and fails where it is asked to.
#[derive(Clone, Debug, Default)]
pub struct FakeDataplane {
    /// What is served now: what [`Desired::ports`] said of each port when it was last dirty.
    pub served: BTreeMap<PortKey, ServicePort>,
    /// The topology of the last call.
    pub topology: Topology,
    /// How often it was told a topology.
    pub topologies: usize,
    /// Why it can't attach to its devices.
    pub unattached: Option<SyncFailure>,
    /// When a sync has something to do though nothing changed.
    pub due_in: Option<Duration>,
    /// What was dirty at each call of `sync`, in order.
    pub syncs: Vec<Dirty>,
    /// Ports that can't be served, and why.
    pub refused: BTreeMap<PortKey, String>,
    /// What it finds wrong with itself.
    pub fault: Option<String>,
    /// How often it was called to keep house.
    pub housekept: usize,
    /// When it wants to keep house again.
    pub housekeep_in: Option<Duration>,
    pending: Dirty,
}

impl Dataplane for FakeDataplane {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        self.syncs.push(dirty.clone());
        let mut report = SyncReport { due_in: self.due_in, ..SyncReport::default() };
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
}
