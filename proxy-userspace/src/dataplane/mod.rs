//! The data plane: it makes the kernel serve the desired state.

pub mod change;
pub mod ebpf;
pub mod fake;
pub mod growing;
pub mod ipvs;
pub mod kernel_rules;
pub mod netlink;
mod settings;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use ebpf::Sizes;
pub use settings::{Encapsulation, Mark, RejectUnknown};

use crate::model::{Desired, Dirty, Family, PortKey, ServiceKey};
use crate::node::Topology;

/// Serves a [`Desired`] state. The real implementations are eBPF and IPVS, and tests have a fake.
///
/// A caller may repeat each call: the second call with the same arguments changes nothing.
pub trait Dataplane {
    /// Brings the kernel to `desired` for everything in `dirty`, and retries pending operations.
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport;

    /// Attaches to and detaches from devices, and writes the ways to other nodes.
    fn set_topology(&mut self, topology: &Topology) -> SyncReport;

    /// Keeps house every few seconds, with or without changes: writes the heartbeat and deletes
    /// expired entries.
    ///
    /// Returns the time of the next call, if it must be earlier.
    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration>;

    /// Checks that the kernel still serves as planned. The agent calls it as often as housekeeping,
    /// while nothing is due.
    fn check(&mut self) -> Check {
        Check::default()
    }

    /// Returns whether the uplinks still have their programs. That is quick to tell, so the agent asks several times
    /// a second: packets pass a Service by while a program is detached.
    fn is_attached(&self) -> bool {
        true
    }

    /// Returns the room of its maps, if it would have more after it was opened anew with larger ones.
    fn room(&self) -> Option<Sizes> {
        None
    }
}

/// The serving implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// XDP and TC programs.
    Ebpf,
    /// IPVS and nftables.
    Ipvs,
    /// Another proxy's rules.
    None,
}

impl Mode {
    /// Returns the name in `--proxy-mode` and /proxyMode.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Ipvs => "ipvs",
            Self::None => "none",
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

    fn is_attached(&self) -> bool {
        (**self).is_attached()
    }

    fn room(&self) -> Option<Sizes> {
        (**self).room()
    }
}

/// The result of a data plane's self-check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// The fault, in one line.
    pub fault: Option<String>,
    /// Expired flow entries removed since the start.
    pub expired_flows: u64,
    /// Flow entries; none before they were counted.
    pub flows: Vec<FlowCount>,
    /// Ports in use by connections to backends on other nodes.
    pub snat: SnatPorts,
}

/// The flow entries of one table, family and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCount {
    /// `new` or `established`.
    pub table: &'static str,
    /// The family of its addresses.
    pub family: Family,
    /// `syn`, `established`, `closing` or `datagram`.
    pub state: &'static str,
    /// Entries.
    pub entries: u64,
}

/// Ports of this node for connections to backends on other nodes (SNAT). Each port is usable once
/// per backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnatPorts {
    /// The number of ports.
    pub size: u32,
    /// The number of ports in use towards the backend with the most.
    pub most_used: u32,
    /// Backends with few ports left, sorted.
    pub crowded: Vec<Crowded>,
}

/// A backend with most ports in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crowded {
    /// Its address and port.
    pub backend: SocketAddr,
    /// The Services of the backend.
    pub services: BTreeSet<ServiceKey>,
    /// Ports in use.
    pub used: u32,
}

/// The result of a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// The number of operations that changed the kernel.
    pub writes: usize,
    /// Service ports with a failed operation. The next sync retries it.
    pub pending: Vec<(PortKey, String)>,
    /// Failures without a service port.
    pub failures: Vec<SyncFailure>,
    /// The time until a sync has work though nothing changed.
    pub due_in: Option<Duration>,
}

impl SyncReport {
    /// Returns whether this node serves: programs are attached, or IPVS has its rules.
    #[must_use]
    pub fn serves(&self) -> bool {
        !self.failures.iter().any(SyncFailure::is_fatal)
    }
}

/// A failure without a service port, by concern. The data plane retries it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncFailure {
    /// This node: it serves no Service, because no program is attached to an uplink.
    Node(String),
    /// One device: it has no program, or not the requested kind of attachment.
    Device(String),
    /// Usually every node: a map has no room for a way, a node's address or a range of the cluster.
    Map(String),
}

impl SyncFailure {
    /// All values of [`concern`](Self::concern).
    pub const CONCERNS: [&str; 3] = ["node", "device", "map"];

    /// Returns the concern in one word.
    #[must_use]
    pub const fn concern(&self) -> &'static str {
        match self {
            Self::Node(_) => "node",
            Self::Device(_) => "device",
            Self::Map(_) => "map",
        }
    }

    /// Returns whether this node can't serve at all.
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
    /// Adds the report of a later call of the same sync, which also says when work is due.
    #[must_use]
    pub(crate) fn then(mut self, later: Self) -> Self {
        self.writes += later.writes;
        self.pending.extend(later.pending);
        self.failures.extend(later.failures);
        self.due_in = later.due_in;
        self
    }

    /// Records a failure of a service port, or of none.
    pub(crate) fn fail(&mut self, port: Option<&PortKey>, why: String) {
        match port {
            Some(port) => self.pending.push((port.clone(), why)),
            None => self.failures.push(SyncFailure::Node(why)),
        }
    }

    /// Returns whether the kernel has everything requested.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.pending.is_empty() && self.failures.is_empty()
    }
}
