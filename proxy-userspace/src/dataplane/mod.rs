//! The data plane: what makes the kernel serve the desired state.

pub mod ebpf;
pub mod fake;

use std::time::Duration;

use crate::model::{Desired, Dirty, PortKey};
use crate::node::Topology;

/// Something that can serve a [`Desired`] state. Two real implementations (eBPF now, IPVS later) and a fake.
///
/// Both calls may be repeated at will: told the same twice, the second changes nothing.
pub trait Dataplane {
    /// Brings the kernel to `desired` for everything `dirty` names, and tries again what stayed pending.
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport;

    /// Attaches to, and detaches from, devices, and writes the ways to other nodes.
    fn set_topology(&mut self, topology: &Topology) -> SyncReport;

    /// Called every few seconds, whether anything changed or not: a sign of life towards the kernel, and what
    /// has expired goes.
    fn housekeep(&mut self, now_monotonic_seconds: u64);

    /// Looks whether the kernel still does what it was told. Called as often as housekeeping, while nothing is due.
    fn check(&mut self) -> Check {
        Check::default()
    }
}

/// What a data plane finds out about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// What is wrong, in one line.
    pub fault: Option<String>,
    /// Flow entries that were removed since the start because they had expired.
    pub expired_flows: u64,
}

/// What a sync did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Operations that changed something in the kernel.
    pub writes: usize,
    /// Service ports with an operation that failed; it is tried again at the next sync.
    pub pending: Vec<(PortKey, String)>,
    /// Failures that belong to no service port (a device that can't be attached to, a full map of ways).
    pub failures: Vec<String>,
    /// After this time a sync has something to do though nothing changed.
    pub due_in: Option<Duration>,
}

impl SyncReport {
    /// Whether everything asked for is in the kernel.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.pending.is_empty() && self.failures.is_empty()
    }
}
