//! The IPVS data plane: virtual services, a dummy device with the addresses of Services, and an nftables
//! table for everything that IPVS can't do.

mod cleanup;
mod error;
mod kernel;
mod kube_proxy;
mod netlink;
mod nft;
pub mod plan;
mod retreat;
mod state;
mod sysctl;
mod tunnel;
mod view;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as LocalAddress, UnixListener};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use proxy_common::config::DEFAULT_SNAT_PORTS;
use tracing::{debug, warn};

pub use cleanup::{Cleaned, check_unused, cleanup};
pub use error::OpenError;
pub use kube_proxy::traces as traces_of_kube_proxy;
pub use nft::NftError;
pub use plan::{Masquerade, Rules};
pub use retreat::{Left, Retreat, is_here};
pub use state::{Scheduling, Server, State, Virtual};
pub use sysctl::Arp;
pub use view::{
    BackendView, Entry, FlowView, Flows, FrontendView, IpvsAnswer, IpvsStep, Question, ServiceView,
    StatusView, backends, explain, flows, services, status,
};

use self::kernel::Kernel;
use self::plan::Plan;
use crate::dataplane::{Check, Dataplane, Mark, SyncFailure, SyncReport};
use crate::model::{Desired, Dirty};
use crate::node::Topology;

/// The device with the addresses of Services. It replaces kube-proxy's device, so it has the same name.
pub const DEVICE: &str = "kube-ipvs0";
/// The name of the lock. An abstract socket belongs to a network namespace, as IPVS does. It ends with its
/// process.
const LOCK: &[u8] = b"millrace-ipvs";

/// The time between two checks of draining servers for connections.
const DRAIN_INTERVAL: Duration = Duration::from_mins(1);
/// The time between two full reads. They take a while, and other processes rarely change anything.
const READ_BACK_INTERVAL: Duration = Duration::from_mins(5);

/// The settings of the IPVS data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The settings of the plan.
    pub rules: Rules,
    /// The mark of packets for masquerading.
    pub mark: Mark,
    /// The devices that answer ARP requests for addresses of Services.
    pub arp: Arp,
    /// The time-outs of connections.
    pub timeouts: Timeouts,
    /// The SNAT ports of eBPF mode. IPVS mode does not use them, because a node may have connections of both
    /// modes.
    pub kept_ports: RangeInclusive<u16>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            mark: Mark::default(),
            arp: Arp::default(),
            timeouts: Timeouts::default(),
            kept_ports: DEFAULT_SNAT_PORTS,
        }
    }
}

/// Seconds without a packet until IPVS forgets a connection; 0 = the kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// An established TCP connection.
    pub tcp: u32,
    /// A TCP connection after a FIN.
    pub tcp_fin: u32,
    /// A UDP flow.
    pub udp: u32,
}

/// Our state in this network namespace. After a drop, the kernel keeps the state and goes on serving.
#[derive(Debug)]
pub struct IpvsDataplane {
    plan: Plan,
    kernel: Kernel,
    drain_at: Duration,
    read_back_at: Duration,
    _lock: UnixListener,
}

impl IpvsDataplane {
    /// Takes over the state of an earlier agent. Only one agent at a time may serve a network namespace.
    pub fn open(settings: &Settings) -> Result<Self, OpenError> {
        let lock = lock()?;
        let mut kernel = Kernel::open(settings)?;
        kernel.set_timeouts(settings.timeouts)?;
        sysctl::prepare(settings.arp);
        let plan = Plan::new(settings.rules.clone(), kernel.read()?);
        let now = now();
        Ok(Self {
            plan,
            kernel,
            drain_at: now + DRAIN_INTERVAL,
            read_back_at: now + READ_BACK_INTERVAL,
            _lock: lock,
        })
    }

    /// Compares the kernel with the written state. The next sync restores the differences.
    fn read_back(&mut self) {
        self.read_back_at = now() + READ_BACK_INTERVAL;
        match self.kernel.read() {
            Ok(state) => {
                let drift = drift(&self.plan.actual(), &state);
                if !drift.is_empty() {
                    warn!(changed = drift.join(", "), "IPVS state was changed by another process; restored");
                    self.plan.adopt(state);
                }
            }
            Err(error) => warn!(%error, "reading the IPVS state back failed; tried again"),
        }
    }

    /// Removes the servers whose last connection has ended.
    fn drain(&mut self) {
        self.drain_at = now() + DRAIN_INTERVAL;
        let servers: BTreeSet<(Virtual, SocketAddr)> = self.plan.draining().copied().collect();
        if servers.is_empty() {
            return;
        }
        let connections = match self.kernel.connections(&servers) {
            Ok(connections) => connections,
            Err(error) => {
                return warn!(%error, "counting the connections of draining servers failed; tried again");
            }
        };
        for (service, server) in &servers {
            let left = connections.get(&(*service, *server)).copied().unwrap_or_default();
            debug!(%service, %server, active = left.active, inactive = left.inactive, "draining");
            if left.active == 0 && left.inactive == 0 {
                self.plan.has_drained(*service, *server);
            }
        }
        for failure in self.plan.execute(&mut self.kernel).failures {
            warn!(%failure, "removing a drained server failed; tried again");
        }
    }
}

impl Dataplane for IpvsDataplane {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let report = self.plan.sync(desired, dirty, &mut self.kernel);
        if self.kernel.take_doubt() {
            self.read_back();
        }
        report
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        self.plan.set_topology(topology);
        let is_blind = topology.uplinks.is_empty();
        let failure = || SyncFailure::Node("no device is an uplink: name it with --uplinks".to_owned());
        SyncReport { failures: is_blind.then(failure).into_iter().collect(), ..SyncReport::default() }
    }

    fn housekeep(&mut self, _now_monotonic_seconds: u64) -> Option<Duration> {
        if now() >= self.drain_at {
            self.drain();
        }
        if now() >= self.read_back_at {
            self.read_back();
        }
        None
    }

    fn check(&mut self) -> Check {
        let fault = self.kernel.check().err();
        if fault.is_some() {
            self.read_back();
        }
        Check { fault, ..Check::default() }
    }
}

/// Has the kernel load IPVS and the scheduler, and sets wrong settings.
pub fn load(settings: &Settings) -> Result<(), OpenError> {
    Kernel::open(settings)?;
    sysctl::prepare(settings.arp);
    Ok(())
}

/// Returns the kinds of state that differ, in words.
fn drift(ours: &State, found: &State) -> Vec<&'static str> {
    [
        ("virtual services", ours.services != found.services),
        ("real servers", ours.servers != found.servers),
        ("addresses", ours.addresses != found.addresses),
        ("tunnel devices", ours.tunnels != found.tunnels),
        ("sets", ours.members != found.members),
    ]
    .into_iter()
    .filter_map(|(what, differs)| differs.then_some(what))
    .collect()
}

fn lock() -> Result<UnixListener, OpenError> {
    let address = LocalAddress::from_abstract_name(LOCK).map_err(OpenError::Lock)?;
    UnixListener::bind_addr(&address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => OpenError::InUse,
        _ => OpenError::Lock(error),
    })
}

/// Returns the monotonic time. A change of the system clock must not end the draining of a server early.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}
