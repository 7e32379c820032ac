//! From eBPF to IPVS.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::{INTERVAL, everything, is_fatal, is_filled, readable};
use crate::dataplane::ebpf::{self, EbpfDataplane, OpenError};
use crate::dataplane::ipvs::IpvsDataplane;
use crate::dataplane::{Check, Dataplane, SyncReport};
use crate::model::{Desired, Dirty, Forwarding};
use crate::node::Topology;

/// Connections are counted once they are answered; what was being opened at the change has this long for that.
const OPENING: Duration = Duration::from_secs(30);

/// IPVS serves what begins, eBPF keeps what it has.
#[derive(Debug)]
pub struct ToIpvs {
    dataplane: IpvsDataplane,
    former: Former,
    settings: ebpf::Settings,
    drain: Duration,
    topology: Option<Topology>,
    /// Whether IPVS could serve when it was last told of devices.
    is_attached: bool,
    /// What the former mode was told last could not be done.
    former_failed: bool,
    /// When what failed is tried again.
    retry_at: Instant,
    /// Whether there are connections of which directors keep nothing, so that nobody knows when the last one has ended.
    has_untracked: bool,
}

/// Where the former mode is.
#[derive(Debug)]
enum Former {
    /// It serves as its agent left it, and can't be told anything.
    Unmanaged,
    /// It serves and follows the cluster, since the new mode is not filled yet.
    Serves(Box<EbpfDataplane>),
    /// It gets nothing new, and follows the cluster: other nodes' directors send to endpoints here.
    Retreats(Box<EbpfDataplane>),
    /// It is to be removed.
    Leftover,
    /// It is gone.
    Gone,
}

impl Former {
    /// What can be told something.
    fn dataplane(&mut self) -> Option<&mut EbpfDataplane> {
        match self {
            Self::Serves(former) | Self::Retreats(former) => Some(former),
            Self::Unmanaged | Self::Leftover | Self::Gone => None,
        }
    }
}

impl ToIpvs {
    /// Of a data plane beside which programs are attached; they go on as they are until it is filled.
    #[must_use]
    pub fn new(dataplane: IpvsDataplane, settings: ebpf::Settings, drain: Duration) -> Self {
        let share = ebpf::recorded(&settings.bpffs_path);
        let settings = ebpf::Settings { share, ..settings };
        let former = match EbpfDataplane::open(settings.clone()) {
            Ok(former) => Former::Serves(Box::new(former)),
            Err(error) => {
                warn!("eBPF serves as it was left until IPVS is filled: {error}");
                Former::Unmanaged
            }
        };
        Self {
            dataplane,
            former,
            settings,
            drain,
            topology: None,
            is_attached: false,
            former_failed: false,
            retry_at: Instant::now(),
            has_untracked: false,
        }
    }

    /// IPVS is filled: takes what begins away from the former mode.
    fn take_over(&mut self, desired: &Desired, dirty: &Dirty) {
        if Instant::now() < self.retry_at {
            return;
        }
        self.retry_at = Instant::now() + INTERVAL;
        match std::mem::replace(&mut self.former, Former::Unmanaged) {
            Former::Serves(former) => self.restrict(former),
            Former::Unmanaged => match EbpfDataplane::open(self.settings.clone()) {
                Ok(mut former) => {
                    if let Some(topology) = &self.topology {
                        self.former_failed = failed(&former.set_topology(topology));
                    }
                    self.former_failed |= failed(&former.sync(desired, &everything(desired, dirty)));
                    self.restrict(Box::new(former));
                }
                Err(error) => self.give_up(&error),
            },
            other => self.former = other,
        }
    }

    fn restrict(&mut self, mut former: Box<EbpfDataplane>) {
        match former.change_share(former.share().to_older()) {
            Ok(()) => {
                info!(
                    "IPVS serves new connections and datagrams; eBPF keeps its connections for at most {} (--drain)",
                    readable(self.drain)
                );
                self.former = Former::Retreats(former);
            }
            Err(error) => {
                self.former = Former::Serves(former);
                self.give_up(&error);
            }
        }
    }

    /// What this kernel refuses it will refuse again; anything else is tried again.
    fn give_up(&mut self, error: &OpenError) {
        if error.is_of_the_kernel() {
            warn!("eBPF can't be told to keep its connections, which end: {error}");
            self.remove();
        } else {
            warn!("eBPF serves yet, and can't be told to give way: {error}");
        }
    }

    fn remove(&mut self) {
        // Its lock goes first.
        self.former = Former::Leftover;
        self.retry_at = Instant::now() + INTERVAL;
        match ebpf::cleanup(&self.settings.bpffs_path) {
            Ok(_) => {
                info!("eBPF is gone, IPVS serves alone");
                self.former = Former::Gone;
            }
            Err(error) => warn!("what eBPF left can't be removed: {error}"),
        }
    }

    /// Whether nobody waits for the former mode any more.
    fn is_over(&self) -> bool {
        let former = match &self.former {
            Former::Retreats(former) => former,
            Former::Leftover => return Instant::now() >= self.retry_at,
            Former::Unmanaged | Former::Serves(_) | Former::Gone => return false,
        };
        let shared_for = former.shared_for();
        if !self.has_untracked && shared_for >= OPENING && former.connections() == Some(0) {
            info!("the last connection of eBPF has ended");
            return true;
        }
        if shared_for >= self.drain {
            info!("eBPF has served existing connections for {}: the others end", readable(shared_for));
        }
        shared_for >= self.drain
    }
}

/// What the former mode fails on is told to nobody but the log: its connections are few, and go on as far as they can.
fn failed(report: &SyncReport) -> bool {
    for failure in &report.failures {
        warn!("eBPF, which goes: {failure}");
    }
    for (port, why) in &report.pending {
        debug!("eBPF, which goes: {port:?}: {why}");
    }
    !report.failures.is_empty()
}

impl Dataplane for ToIpvs {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let mut report = self.dataplane.sync(desired, dirty);
        self.has_untracked |= desired.ports.values().any(|port| port.forwarding == Forwarding::Dsr);
        if let Some(former) = self.former.dataplane() {
            let of_former = former.sync(desired, dirty);
            self.former_failed |= failed(&of_former);
            report.due_in = report.due_in.into_iter().chain(of_former.due_in).min();
        }
        let serves = matches!(self.former, Former::Serves(_) | Former::Unmanaged);
        if serves && is_filled(self.is_attached, &report, dirty) {
            self.take_over(desired, dirty);
        }
        report
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        self.topology = Some(topology.clone());
        if let Some(former) = self.former.dataplane() {
            self.former_failed = failed(&former.set_topology(topology));
        }
        let report = self.dataplane.set_topology(topology);
        self.is_attached = !is_fatal(&report);
        report
    }

    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration> {
        let due_in = self.dataplane.housekeep(now_monotonic_seconds);
        let mut of_former = None;
        if let Some(former) = self.former.dataplane() {
            of_former = former.housekeep(now_monotonic_seconds);
            if self.former_failed
                && let Some(topology) = &self.topology
            {
                self.former_failed = failed(&former.set_topology(topology));
            }
        }
        if self.is_over() {
            self.remove();
        }
        due_in.into_iter().chain(of_former).min()
    }

    fn check(&mut self) -> Check {
        if let Some(fault) = self.former.dataplane().and_then(|former| former.check().fault) {
            warn!("eBPF, which goes: {fault}");
            self.former_failed = true;
        }
        self.dataplane.check()
    }
}
