//! The mode change from IPVS to eBPF.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{INTERVAL, is_filled, readable};
use crate::dataplane::ebpf::{EbpfDataplane, Share, Sizes};
use crate::dataplane::ipvs::{self, Retreat};
use crate::dataplane::{Check, Dataplane, SyncReport};
use crate::model::{Desired, Dirty};
use crate::node::Topology;

/// A data plane for the change: eBPF serves new connections, and IPVS keeps its own.
#[derive(Debug)]
pub struct ToEbpf {
    dataplane: EbpfDataplane,
    former: Former,
    settings: ipvs::Settings,
    drain: Duration,
    /// Whether the programs are attached to the uplinks.
    is_attached: bool,
    /// The time of the next check of the former mode.
    next_check: Instant,
}

/// The state of the former mode.
#[derive(Debug)]
enum Former {
    /// It serves, because the new mode is not filled yet.
    Serves,
    /// Its retreat has not begun yet.
    Pending,
    /// It gets no new connections.
    Retreats(Box<Retreat>),
    /// It is gone, and the programs still share with it.
    Gone,
    /// It is gone, and eBPF serves alone.
    Forgotten,
}

impl ToEbpf {
    /// Returns the change of a data plane that shares with IPVS.
    #[must_use]
    pub fn new(dataplane: EbpfDataplane, settings: ipvs::Settings, drain: Duration) -> Self {
        Self {
            dataplane,
            former: Former::Serves,
            settings,
            drain,
            is_attached: false,
            next_check: Instant::now(),
        }
    }

    /// Takes the next step of the former mode's retreat.
    fn advance(&mut self) {
        let rest = self.drain.saturating_sub(self.dataplane.shared_for());
        // A failed removal after the drain is retried at the same interval.
        self.next_check = Instant::now() + if rest.is_zero() { INTERVAL } else { rest.min(INTERVAL) };
        if matches!(self.former, Former::Pending) {
            match Retreat::begin(&self.settings) {
                Ok(retreat) => self.former = Former::Retreats(Box::new(retreat)),
                Err(error) => {
                    warn!(%error, "stopping IPVS from taking new connections failed; tried again");
                }
            }
        }
        if matches!(self.former, Former::Pending | Former::Retreats(_)) && self.is_over() {
            self.remove();
        }
        if matches!(self.former, Former::Gone) {
            match self.dataplane.change_share(Share::Alone) {
                Ok(()) => {
                    info!("IPVS is gone, eBPF serves alone");
                    self.former = Former::Forgotten;
                }
                Err(error) => {
                    warn!(%error, "ending the mode change failed; the programs still leave connections to IPVS");
                }
            }
        }
    }

    /// Returns whether the former mode can be removed.
    fn is_over(&mut self) -> bool {
        let shared_for = self.dataplane.shared_for();
        if let Former::Retreats(retreat) = &mut self.former {
            match retreat.go_on() {
                Ok(left) if left.is_nothing() => {
                    info!("the last connection of IPVS has ended");
                    return true;
                }
                Ok(left) => info!(services = left.services, "IPVS has connections left"),
                Err(error) => warn!(%error, "checking the connections of IPVS failed; tried again"),
            }
        }
        let is_over = shared_for >= self.drain;
        if is_over {
            info!(after = readable(shared_for), "--drain is over: the remaining connections of IPVS end");
        }
        is_over
    }

    fn remove(&mut self) {
        // This drops the former data plane with its lock first.
        self.former = Former::Pending;
        match ipvs::cleanup() {
            Ok(_) if ipvs::is_here() => {
                warn!("removing IPVS failed: it takes the program nft");
            }
            Ok(cleaned) => {
                info!(removed = cleaned.removed.join(", "), "IPVS is removed");
                self.former = Former::Gone;
            }
            Err(error) => warn!(%error, "removing IPVS failed; tried again"),
        }
    }
}

impl Dataplane for ToEbpf {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let report = self.dataplane.sync(desired, dirty);
        if matches!(self.former, Former::Serves) && is_filled(self.is_attached, &report, dirty) {
            self.dataplane.record_share();
            info!(
                drain = readable(self.drain),
                "eBPF serves new connections and datagrams; IPVS keeps its connections for at most --drain"
            );
            self.former = Former::Pending;
            self.advance();
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
        let is_draining = !matches!(self.former, Former::Serves | Former::Forgotten);
        if is_draining && Instant::now() >= self.next_check {
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
