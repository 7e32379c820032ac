//! The mode change from the kernel's own rules to eBPF. kube-proxy has served this node in any of
//! its modes, and may still do so.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{INTERVAL, is_filled, readable};
use crate::dataplane::ebpf::{EbpfDataplane, Frontends, Share, Sizes};
use crate::dataplane::{Check, Dataplane, SyncReport};
use crate::model::{Desired, Dirty};
use crate::node::Topology;

/// A data plane for the change: eBPF serves new connections, and the kernel's rules keep the
/// connections that they translate.
#[derive(Debug)]
pub struct FromKernel {
    dataplane: EbpfDataplane,
    frontends: Frontends,
    former: Former,
    drain: Duration,
    /// Whether the programs are attached to the uplinks.
    is_attached: bool,
    /// The time of the next check of the kernel's connections.
    next_check: Instant,
}

/// The server of existing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Former {
    /// The kernel serves everything, since the maps are not filled yet.
    Serves,
    /// The kernel keeps its connections.
    Drains,
    /// The change is over: all connections are eBPF's.
    Gone,
}

impl FromKernel {
    /// Returns the change of a data plane that shares with the kernel's rules.
    #[must_use]
    pub fn new(dataplane: EbpfDataplane, frontends: Frontends, drain: Duration) -> Self {
        let (former, next_check) = (Former::Serves, Instant::now());
        Self { dataplane, frontends, former, drain, is_attached: false, next_check }
    }

    fn advance(&mut self) {
        let shared_for = self.dataplane.shared_for();
        let rest = self.drain.saturating_sub(shared_for);
        self.next_check = Instant::now() + if rest.is_zero() { INTERVAL } else { rest.min(INTERVAL) };
        if !self.is_over(shared_for) {
            return;
        }
        match self.dataplane.change_share(Share::Alone) {
            Ok(()) => {
                info!("the mode change is over; eBPF serves all connections");
                self.former = Former::Gone;
            }
            Err(error) => {
                warn!(%error, "ending the mode change failed; the programs still share; tried again");
            }
        }
    }

    fn is_over(&self, shared_for: Duration) -> bool {
        if shared_for >= self.drain {
            info!(
                after = readable(shared_for),
                "--drain is over: the remaining connections of the kernel's rules end"
            );
            return true;
        }
        match self.frontends.translated_by_kernel() {
            Ok(0) => {
                info!("the last connection of the kernel's rules has ended");
                true
            }
            Ok(connections) => {
                info!(connections, "the kernel's rules have connections left");
                false
            }
            Err(error) => {
                warn!(%error, "listing the kernel's connections failed; they stay until --drain is over");
                false
            }
        }
    }
}

impl Dataplane for FromKernel {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let report = self.dataplane.sync(desired, dirty);
        if self.former == Former::Serves && is_filled(self.is_attached, &report, dirty) {
            self.dataplane.record_share();
            self.dataplane.note_ports_of_kernel(desired);
            info!(
                drain = readable(self.drain),
                "eBPF serves new connections and datagrams; the kernel's rules keep theirs for at most --drain"
            );
            self.former = Former::Drains;
        }
        report
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        let report = self.dataplane.set_topology(topology);
        self.is_attached = report.serves() && topology.has_uplink();
        report
    }

    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration> {
        let due_in = self.dataplane.housekeep(now_monotonic_seconds);
        if self.former == Former::Drains && Instant::now() >= self.next_check {
            self.advance();
        }
        due_in
    }

    fn check(&mut self) -> Check {
        self.dataplane.check()
    }

    fn is_attached(&self) -> bool {
        self.dataplane.is_attached()
    }

    fn room(&self) -> Option<Sizes> {
        self.dataplane.room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ebpf::scratch::Scratch;

    #[test]
    fn the_kernel_serves_until_there_is_an_uplink() {
        let scratch = Scratch::new("from-kernel");
        let mut change = FromKernel::new(scratch.open(), Frontends::default(), Duration::from_mins(1));
        let desired = Desired::default();
        assert!(change.set_topology(&Topology::default()).is_complete());
        change.sync(&desired, &Dirty::default());
        assert_eq!(change.former, Former::Serves);
        change.is_attached = true;
        change.sync(&desired, &Dirty::default());
        assert_eq!(change.former, Former::Drains);
    }
}
