//! The data plane: what makes the kernel serve the desired state.

pub mod change;
pub mod ebpf;
pub mod fake;
pub mod ipvs;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::model::{Desired, Dirty, PortKey, ServiceKey};
use crate::node::Topology;

/// Something that can serve a [`Desired`] state. Two real implementations (eBPF and IPVS) and a fake.
///
/// Both calls may be repeated at will: told the same twice, the second changes nothing.
pub trait Dataplane {
    /// Brings the kernel to `desired` for everything `dirty` names, and tries again what stayed pending.
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport;

    /// Attaches to, and detaches from, devices, and writes the ways to other nodes.
    fn set_topology(&mut self, topology: &Topology) -> SyncReport;

    /// Called every few seconds, whether anything changed or not: a sign of life towards the kernel, and what
    /// has expired goes. Returns when it shall be called again, if that is earlier.
    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration>;

    /// Looks whether the kernel still does what it was told. Called as often as housekeeping, while nothing is due.
    fn check(&mut self) -> Check {
        Check::default()
    }
}

/// Which implementation serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// XDP and TC programs.
    Ebpf,
    /// IPVS and nftables.
    Ipvs,
}

impl Mode {
    /// As `--proxy-mode` and /proxyMode have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Ipvs => "ipvs",
        }
    }
}

impl<D: Dataplane + ?Sized> Dataplane for Box<D> {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        (**self).sync(desired, dirty)
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        (**self).set_topology(topology)
    }

    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration> {
        (**self).housekeep(now_monotonic_seconds)
    }

    fn check(&mut self) -> Check {
        (**self).check()
    }
}

/// What a data plane finds out about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// What is wrong, in one line.
    pub fault: Option<String>,
    /// Flow entries that were removed since the start because they had expired.
    pub expired_flows: u64,
    /// Ports that connections to backends on other nodes have.
    pub snat: SnatPorts,
}

/// Ports of this node that connections to backends on other nodes have (SNAT). Each can be used once for each backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnatPorts {
    /// How many there are.
    pub size: u32,
    /// How many of them connections to the backend with most of them have.
    pub most_used: u32,
    /// The backends for which few are left, sorted.
    pub crowded: Vec<Crowded>,
}

/// A backend to which most of the ports are in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crowded {
    /// Its address and port.
    pub backend: SocketAddr,
    /// The Services that have it.
    pub services: BTreeSet<ServiceKey>,
    /// Ports in use.
    pub used: u32,
}

/// What a sync did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Operations that changed something in the kernel.
    pub writes: usize,
    /// Service ports with an operation that failed; it is tried again at the next sync.
    pub pending: Vec<(PortKey, String)>,
    /// Failures that belong to no service port.
    pub failures: Vec<SyncFailure>,
    /// After this time a sync has something to do though nothing changed.
    pub due_in: Option<Duration>,
}

/// What could not be done and belongs to no service port, by whom it concerns. It is tried again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncFailure {
    /// This node: it serves nobody, since no program is attached where one has to be.
    Node(String),
    /// One device: it is not served, or not in the way that was asked for.
    Device(String),
    /// Every node alike, as a rule: a map has no room for a way, a node's address or a range of the cluster.
    Map(String),
}

impl SyncFailure {
    /// All words of [`concern`](Self::concern).
    pub const CONCERNS: [&str; 3] = ["node", "device", "map"];

    /// Whom it concerns, in one word.
    #[must_use]
    pub const fn concern(&self) -> &'static str {
        match self {
            Self::Node(_) => "node",
            Self::Device(_) => "device",
            Self::Map(_) => "map",
        }
    }

    /// Whether this node can't serve at all.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        matches!(self, Self::Node(_))
    }
}

impl fmt::Display for SyncFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Node(text) | Self::Device(text) | Self::Map(text)) = self;
        f.write_str(text)
    }
}

impl SyncReport {
    /// Something failed, on behalf of a service port or of none.
    pub(crate) fn fail(&mut self, port: Option<&PortKey>, why: String) {
        match port {
            Some(port) => self.pending.push((port.clone(), why)),
            None => self.failures.push(SyncFailure::Node(why)),
        }
    }

    /// Whether everything asked for is in the kernel.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.pending.is_empty() && self.failures.is_empty()
    }
}
