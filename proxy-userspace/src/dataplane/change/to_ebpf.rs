//! From IPVS to eBPF.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{INTERVAL, is_fatal, is_filled, readable};
use crate::dataplane::ebpf::{EbpfDataplane, Share};
use crate::dataplane::ipvs::{self, Retreat};
use crate::dataplane::{Check, Dataplane, SyncReport};
use crate::model::{Desired, Dirty};
use crate::node::Topology;

/// eBPF serves what begins, IPVS keeps what it has.
#[derive(Debug)]
pub struct ToEbpf {
    dataplane: EbpfDataplane,
    former: Former,
    settings: ipvs::Settings,
    drain: Duration,
    /// Whether the programs are attached where they have to be.
    is_attached: bool,
    /// When the former mode is asked again.
    next_check: Instant,
}

/// Where the former mode is.
#[derive(Debug)]
enum Former {
    /// It serves, since the new one is not filled yet.
    Serves,
    /// It can't be worked with yet.
    Pending,
    /// It gets nothing new.
    Retreats(Box<Retreat>),
    /// It is gone, and the programs still think that it may be there.
    Gone,
    /// It is gone.
    Forgotten,
}

impl ToEbpf {
    /// Of a data plane that shares with IPVS.
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

    /// The next step of the former mode's way out.
    fn advance(&mut self) {
        let rest = self.drain.saturating_sub(self.dataplane.shared_for());
        // What is over and could not be removed is not tried more often.
        self.next_check = Instant::now() + if rest.is_zero() { INTERVAL } else { rest.min(INTERVAL) };
        if matches!(self.former, Former::Pending) {
            match Retreat::begin(&self.settings) {
                Ok(retreat) => self.former = Former::Retreats(Box::new(retreat)),
                Err(error) => {
                    warn!("IPVS serves existing connections, and can't be told to take no more: {error}");
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
                Err(error) => warn!("the programs still leave connections to IPVS, which is gone: {error}"),
            }
        }
    }

    /// Whether nobody waits for the former mode any more.
    fn is_over(&mut self) -> bool {
        let shared_for = self.dataplane.shared_for();
        if let Former::Retreats(retreat) = &mut self.former {
            match retreat.go_on() {
                Ok(left) if left.is_nothing() => {
                    info!("the last connection of IPVS has ended");
                    return true;
                }
                Ok(left) => info!(services = left.services, "IPVS has connections left"),
                Err(error) => warn!("IPVS goes: {error}"),
            }
        }
        let is_over = shared_for >= self.drain;
        if is_over {
            info!("IPVS has served existing connections for {}: the others end", readable(shared_for));
        }
        is_over
    }

    fn remove(&mut self) {
        // Its lock goes first.
        self.former = Former::Pending;
        match ipvs::cleanup() {
            Ok(_) if ipvs::is_here() => {
                warn!("what IPVS left can't be removed: that takes the program nft");
            }
            Ok(cleaned) => {
                info!(removed = cleaned.removed.join(", "), "IPVS is removed");
                self.former = Former::Gone;
            }
            Err(error) => warn!("what IPVS left can't be removed: {error}"),
        }
    }
}

impl Dataplane for ToEbpf {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let report = self.dataplane.sync(desired, dirty);
        if matches!(self.former, Former::Serves) && is_filled(self.is_attached, &report, dirty) {
            self.dataplane.record_share();
            info!(
                "eBPF serves new connections and datagrams; IPVS keeps its connections for at most {} (--drain)",
                readable(self.drain)
            );
            self.former = Former::Pending;
            self.advance();
        }
        report
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        let report = self.dataplane.set_topology(topology);
        self.is_attached = !is_fatal(&report) && topology.has_uplink();
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
}
