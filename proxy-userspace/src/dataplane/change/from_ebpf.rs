//! The mode change from eBPF to IPVS, or to the rules of kube-proxy.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::{INTERVAL, is_filled, readable};
use crate::dataplane::ebpf::{self, EbpfDataplane, OpenError};
use crate::dataplane::ipvs::IpvsDataplane;
use crate::dataplane::kernel_rules::KernelRules;
use crate::dataplane::{Check, Dataplane, SyncReport};
use crate::model::{Desired, Dirty, Forwarding};
use crate::node::Topology;

/// The time for connections that were opening at the change: the count includes only answered
/// connections.
const OPENING: Duration = Duration::from_secs(30);

/// A data plane that eBPF can give way to.
pub trait Successor: Dataplane {
    /// The name in log lines.
    const NAME: &'static str;
    /// Whether it may take a port of `--snat-ports` for a client.
    const TAKES_ANY_PORT: bool;
}

impl Successor for IpvsDataplane {
    const NAME: &'static str = "IPVS";
    const TAKES_ANY_PORT: bool = false;
}

impl Successor for KernelRules {
    const NAME: &'static str = "kube-proxy";
    const TAKES_ANY_PORT: bool = true;
}

/// A data plane for the change: the successor serves new connections, and eBPF keeps its own.
#[derive(Debug)]
pub struct FromEbpf<S> {
    successor: S,
    former: Former,
    settings: ebpf::Settings,
    drain: Duration,
    topology: Option<Topology>,
    /// Whether the successor could serve at the last `set_topology`.
    is_attached: bool,
    /// Whether the last update of the former mode failed.
    former_failed: bool,
    /// The time of the next retry.
    retry_at: Instant,
    /// Whether directors serve connections without flow entries. The end of these is unknown.
    has_untracked: bool,
}

/// The state of the former mode.
#[derive(Debug)]
enum Former {
    /// It serves as its agent left it, without updates.
    Unmanaged,
    /// It serves and follows the cluster, because the new mode is not filled yet.
    Serves(Box<EbpfDataplane>),
    /// It gets no new connections and follows the cluster: directors on other nodes send packets to
    /// endpoints here.
    Retreats(Box<EbpfDataplane>),
    /// It waits for its removal.
    Leftover,
    /// It is gone.
    Gone,
}

impl Former {
    /// Returns the former data plane, if it takes updates.
    fn dataplane(&mut self) -> Option<&mut EbpfDataplane> {
        match self {
            Self::Serves(former) | Self::Retreats(former) => Some(former),
            Self::Unmanaged | Self::Leftover | Self::Gone => None,
        }
    }
}

impl<S: Successor> FromEbpf<S> {
    /// Returns the change of a data plane beside attached programs. These serve unchanged until
    /// the successor is filled.
    #[must_use]
    pub fn new(successor: S, settings: ebpf::Settings, drain: Duration) -> Self {
        let share = ebpf::recorded(&settings.bpffs_path);
        let settings = ebpf::Settings { share, ..settings };
        let former = match EbpfDataplane::open(settings.clone()) {
            Ok(former) => Former::Serves(Box::new(former)),
            Err(error) => {
                warn!(
                    %error,
                    "opening the former mode eBPF failed; it serves without updates until {} serves", S::NAME
                );
                Former::Unmanaged
            }
        };
        Self {
            successor,
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

    /// Takes new connections away from the former mode: the successor is filled.
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
                    self.former_failed |=
                        failed(&former.sync(desired, &Dirty::everything(desired, dirty.incomplete)));
                    self.restrict(Box::new(former));
                }
                Err(error) => self.give_up(&error),
            },
            other => self.former = other,
        }
    }

    fn restrict(&mut self, mut former: Box<EbpfDataplane>) {
        let older = former.share().to_older();
        // Before, so that the kernel knows most of them at its first connection; and after, because some are new by then.
        if S::TAKES_ANY_PORT && former.share() != older {
            former.hold_ports(self.drain);
        }
        match former.change_share(older) {
            Ok(()) => {
                if S::TAKES_ANY_PORT {
                    former.hold_ports(self.drain.saturating_sub(former.shared_for()));
                }
                info!(
                    drain = readable(self.drain),
                    "{} serves new connections and datagrams; eBPF keeps its connections for at most --drain",
                    S::NAME
                );
                self.former = Former::Retreats(former);
            }
            Err(error) => {
                self.former = Former::Serves(former);
                self.give_up(&error);
            }
        }
    }

    /// Handles a failed opening of the former mode. A refusal by the kernel is final; any other
    /// failure is retried.
    fn give_up(&mut self, error: &OpenError) {
        if error.is_of_the_kernel() {
            warn!(%error, "restricting eBPF to its connections failed; the connections end");
            self.remove();
        } else {
            warn!(%error, "switching eBPF off failed; it is still active; tried again");
        }
    }

    fn remove(&mut self) {
        // This drops the former data plane with its lock first.
        self.former = Former::Leftover;
        self.retry_at = Instant::now() + INTERVAL;
        match ebpf::cleanup(&self.settings.bpffs_path) {
            Ok(_) => {
                info!("eBPF is gone, {} serves alone", S::NAME);
                self.former = Former::Gone;
            }
            Err(error) => warn!(%error, "removing eBPF failed; tried again"),
        }
    }

    /// Returns whether the former mode can be removed.
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
            info!(after = readable(shared_for), "--drain is over: the remaining connections of eBPF end");
        }
        shared_for >= self.drain
    }
}

/// Logs failures of the former mode and returns whether there are any. The sync report omits them:
/// its connections are few and go on as far as possible.
fn failed(report: &SyncReport) -> bool {
    for failure in &report.failures {
        warn!(error = %failure, "updating the former mode eBPF failed; tried again");
    }
    for (port, why) in &report.pending {
        debug!(service = %port, reason = why, "updating a port in the former mode eBPF failed");
    }
    !report.failures.is_empty()
}

impl<S: Successor> Dataplane for FromEbpf<S> {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let mut report = self.successor.sync(desired, dirty);
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
        let report = self.successor.set_topology(topology);
        self.is_attached = report.serves();
        report
    }

    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration> {
        let due_in = self.successor.housekeep(now_monotonic_seconds);
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
            warn!(
                error = fault,
                "the self-test of the former mode eBPF failed; its programs are attached again"
            );
            self.former_failed = true;
        }
        self.successor.check()
    }
}
