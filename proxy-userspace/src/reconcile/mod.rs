//! Brings the data plane to what the model says: one task owns both.
//!
//! Events only mark what is dirty. A sync happens at once when nothing was synced for the shortest interval, and
//! after the retry interval while something failed. After the longest interval a round through everything begins,
//! in parts, so that a change in between does not wait for it.

mod heap;
mod journal;
mod observer;
mod patience;
mod uplinks;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use crate::dataplane::{Dataplane, SyncFailure, SyncReport};
use crate::model::{Dirty, Model, PortKey, Problem};
use crate::node::Topology;
use crate::source::{Batch, Listing, SourceEvent};
use journal::Journal;
pub use observer::{Observer, Synced};
use patience::Patience;

/// Failed operations are tried again after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a sync waits for an endpoint that has left one slice and may come into another: some calls of the controller's.
const MOVE_INTERVAL: Duration = Duration::from_millis(50);
/// Service ports in one part of a round through everything, and the time between two parts.
const PART: usize = 256;
/// A sync of so many service ports, the first one as a rule, leaves much memory behind.
const LARGE: usize = 1_000;
const PART_INTERVAL: Duration = Duration::from_millis(10);
/// A sixth of the age at which the programs stop believing the agent.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// What the task listens to and tells.
#[derive(Debug)]
pub struct Channels {
    /// What the source tells.
    pub events: mpsc::Receiver<Batch>,
    /// What the node monitor makes of this node's network; `None` until it knows the cluster's nodes.
    pub topology: watch::Receiver<Option<Topology>>,
    /// Addresses of the cluster's nodes; `None` until everything was listed.
    pub targets: watch::Sender<Option<BTreeSet<IpAddr>>>,
    /// Is closed when the task shall end.
    pub stop: watch::Receiver<()>,
}

/// How often a sync may and must happen.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Shortest time between two syncs.
    pub min: Duration,
    /// Time between two rounds through everything.
    pub max: Duration,
}

/// Tells `model` all that is there, up to the source's word that this was everything: what is not there from then
/// on counts as deleted. Waits for this node's own addresses then. `None` if source, monitor or caller ended before.
pub async fn list(
    model: &mut Model,
    channels: &mut Channels,
    observers: &mut [Box<dyn Observer>],
) -> Option<Listing> {
    let mut listed = None;
    while listed.is_none() {
        let batch = tokio::select! {
            biased;
            _ = channels.stop.changed() => return None,
            batch = channels.events.recv() => batch?,
        };
        for observer in observers.iter_mut() {
            observer.listing(&batch);
        }
        for event in batch {
            match event {
                SourceEvent::Change(change) => model.apply(change),
                SourceEvent::Problem(problem) => report(&problem, observers),
                SourceEvent::Listed(listing) => listed = Some(listing),
            }
        }
    }
    model.refresh();
    let listing = listed?;
    // NodePorts are where this node's addresses are, and what is opened next asks what the kernel serves there.
    tell_targets(model, &channels.targets);
    // The channel itself stays unread: the task takes the topology as one that is new.
    let mut topology = channels.topology.clone();
    let addresses = tokio::select! {
        biased;
        _ = channels.stop.changed() => return None,
        known = topology.wait_for(Option::is_some) => known.ok()?.as_ref()?.addresses.clone(),
    };
    model.set_node_addresses(addresses);
    model.refresh();
    Some(listing)
}

/// Tells the node's monitor of the addresses of the cluster's nodes.
fn tell_targets(model: &Model, targets: &watch::Sender<Option<BTreeSet<IpAddr>>>) {
    let wanted = Some(model.desired().nodes.values().flatten().copied().collect());
    targets.send_if_modified(|now| {
        let is_new = *now != wanted;
        *now = wanted;
        is_new
    });
}

/// Owner of model and data plane.
#[derive(Debug)]
pub struct Reconciler<D> {
    model: Model,
    dataplane: D,
    channels: Channels,
    intervals: Intervals,
    journal: Journal,
    observers: Vec<Box<dyn Observer>>,
    /// Whether the source could tell of everything.
    listing: Listing,
    /// The model was told something since its last refresh.
    model_due: bool,
    /// Until when endpoints that may only be on the move are waited for.
    move_until: Option<Instant>,
    patience: Patience,
    /// This node's network, and whether the data plane has yet to be told of it.
    topology: Option<Topology>,
    topology_due: bool,
    /// Something failed when it was told, and is tried again by the next sync. Not by every one that waits for
    /// something: to look after all devices is work.
    topology_failed: bool,
    /// What the model says became different and the data plane was not told yet.
    dirty: Dirty,
    /// When to try again what the last sync could not do, or to do what is not due before then.
    retry_at: Option<Instant>,
    last_sync: Instant,
    /// When the next part of a round through everything is due, and the port it goes on after.
    part_at: Instant,
    part_after: Option<PortKey>,
}

impl<D: Dataplane> Reconciler<D> {
    /// A task that has not begun, of a model that was told everything of `listing` by [`list`].
    pub fn new(
        model: Model,
        listing: Listing,
        dataplane: D,
        channels: Channels,
        intervals: Intervals,
    ) -> Self {
        let now = Instant::now();
        let ports = model.desired().ports.keys().cloned().collect();
        let dirty = Dirty { ports, nodes: true, health: true, incomplete: false };
        journal::listed(&listing);
        Self {
            model,
            dataplane,
            channels,
            intervals,
            journal: Journal::default(),
            observers: Vec::new(),
            listing,
            model_due: true,
            move_until: None,
            patience: Patience::default(),
            topology: None,
            topology_due: false,
            topology_failed: false,
            dirty,
            retry_at: None,
            last_sync: now.checked_sub(intervals.min).unwrap_or(now),
            part_at: now + intervals.max,
            part_after: None,
        }
    }

    /// Adds somebody who is told of every batch, sync and problem; to be told of the listing is up to [`list`].
    #[must_use]
    pub fn observed_by(mut self, observers: Vec<Box<dyn Observer>>) -> Self {
        self.observers.extend(observers);
        self
    }

    /// Runs until it is told to stop, or source or monitor have ended; returns the data plane as it is then.
    pub async fn run(mut self) -> D {
        let mut housekeep_at = Instant::now();
        loop {
            let sync_at = self.next_sync();
            tokio::select! {
                // In this order: to stop before all, and to sync when it is due though events keep coming.
                biased;
                _ = self.channels.stop.changed() => break,
                () = sleep_until(housekeep_at) => housekeep_at = Instant::now() + self.housekeep(),
                () = sleep_until(sync_at) => self.sync(),
                () = sleep_until_some(self.patience.due()) => self.tell_what_lasted(),
                batch = self.channels.events.recv() => match batch {
                    Some(batch) => self.take(batch),
                    None => break,
                },
                changed = self.channels.topology.changed() => match changed {
                    Ok(()) => self.take_topology(),
                    Err(_) => break,
                },
            }
        }
        self.dataplane
    }

    fn next_sync(&self) -> Instant {
        if self.model_due || self.topology_due {
            let due = self.last_sync + self.intervals.min;
            return self.move_ends().map_or(due, |ends| due.max(ends));
        }
        if self.topology.is_none() {
            return self.last_sync + self.intervals.max;
        }
        self.retry_at.map_or(self.part_at, |retry_at| retry_at.min(self.part_at))
    }

    /// Until when a sync has to wait for an endpoint that may only be on the move.
    fn move_ends(&self) -> Option<Instant> {
        self.move_until.filter(|_| self.model.may_miss_endpoints())
    }

    fn take(&mut self, batch: Batch) {
        for observer in &mut self.observers {
            observer.received(&batch);
        }
        for event in batch {
            match event {
                SourceEvent::Change(change) => {
                    self.model.apply(change);
                    self.model_due = true;
                }
                SourceEvent::Listed(listing) if listing != self.listing => {
                    journal::listed(&listing);
                    self.listing = listing;
                    self.model_due = true;
                }
                // A source that had to begin again says so again.
                SourceEvent::Listed(_) => {}
                SourceEvent::Problem(problem) => report(&problem, &mut self.observers),
            }
        }
        if self.move_until.is_none() && self.model.may_miss_endpoints() {
            self.move_until = Some(Instant::now() + MOVE_INTERVAL);
        }
    }

    /// Takes what was told already: what leaves in one event may come back in the next. No more than that, so
    /// that a sync happens though events keep coming.
    fn take_waiting(&mut self) {
        for _ in 0..self.channels.events.len() {
            let Ok(batch) = self.channels.events.try_recv() else { return };
            self.take(batch);
        }
    }

    fn take_topology(&mut self) {
        self.topology.clone_from(&self.channels.topology.borrow_and_update());
        if let Some(topology) = &self.topology {
            self.model.set_node_addresses(topology.addresses.clone());
            self.model_due = true;
            self.topology_due = true;
        }
    }

    fn sync(&mut self) {
        self.take_waiting();
        let now = Instant::now();
        if self.move_ends().is_some_and(|ends| now < ends) {
            return;
        }
        self.last_sync = now;
        self.move_until = None;
        self.refresh();
        if self.topology.is_none() {
            return;
        }
        if self.last_sync >= self.part_at {
            self.add_part();
        }
        let mut report = SyncReport::default();
        if let Some(topology) = &self.topology
            && (self.topology_due || self.topology_failed)
        {
            report = self.dataplane.set_topology(topology);
            self.topology_failed = !report.is_complete();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.incomplete = self.listing != Listing::Complete;
        let of_ports = self.dataplane.sync(self.model.desired(), &dirty);
        report.writes += of_ports.writes;
        report.pending.extend(of_ports.pending);
        report.failures.extend(of_ports.failures);
        self.topology_due = false;
        report.due_in = of_ports.due_in;
        let retry_in = (!report.is_complete()).then_some(RETRY_INTERVAL);
        self.retry_at = retry_in.into_iter().chain(report.due_in).min().map(|wait| self.last_sync + wait);
        let missing: Vec<SyncFailure> = self.topology.iter().flat_map(uplinks::missing).collect();
        report.failures.extend(self.topology.as_ref().and_then(uplinks::none));
        report.failures.extend(missing.iter().cloned());
        if dirty.ports.len() >= LARGE {
            heap::give_back();
        }
        debug!(dirty = dirty.ports.len(), writes = report.writes, took = ?self.last_sync.elapsed(), "synced");
        let desired = self.model.desired();
        let synced = Synced { desired, dirty: &dirty, report: &report, took: self.last_sync.elapsed() };
        for observer in &mut self.observers {
            observer.synced(&synced);
        }
        // The node's monitor has named them, long before in an agent that waits for its source.
        report.failures.retain(|failure| !missing.contains(failure));
        self.journal.synced(desired, report);
    }

    /// Returns how long it is until the next time.
    fn housekeep(&mut self) -> Duration {
        let again_in = self.dataplane.housekeep(monotonic_seconds());
        self.check();
        again_in.unwrap_or(HEARTBEAT_INTERVAL).min(HEARTBEAT_INTERVAL)
    }

    fn tell_what_lasted(&mut self) {
        for problem in self.patience.lasted(Instant::now(), &self.model) {
            report(&problem, &mut self.observers);
        }
    }

    fn check(&mut self) {
        // What an earlier agent left runs as that agent wanted it until the first sync.
        if self.topology.is_none() || self.topology_due {
            return;
        }
        let check = self.dataplane.check();
        self.topology_due = check.fault.is_some();
        for observer in &mut self.observers {
            observer.checked(&check);
        }
    }

    /// Makes the next part of a round through everything dirty; devices and nodes are part of the last one.
    fn add_part(&mut self) {
        let after = self.part_after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let ports = self.model.desired().ports.range((after, Bound::Unbounded));
        let part: Vec<PortKey> = ports.take(PART).map(|(key, _)| key.clone()).collect();
        if part.len() == PART {
            self.part_after = part.last().cloned();
            self.part_at = self.last_sync + PART_INTERVAL;
        } else {
            self.dirty.nodes = true;
            self.topology_due = true;
            self.part_at = self.last_sync + self.intervals.max;
        }
        self.dirty.ports.extend(part);
    }

    /// Lets the model work out what its changes mean, and tells the monitor of the cluster's nodes.
    fn refresh(&mut self) {
        self.model_due = false;
        self.dirty.merge(self.model.refresh());
        // Before this node's addresses are known, what needs one only seems to be wrong.
        if self.topology.is_some() {
            for problem in self.patience.sort(self.model.take_problems(), Instant::now()) {
                report(&problem, &mut self.observers);
            }
        }
        if !self.dirty.nodes {
            return;
        }
        tell_targets(&self.model, &self.channels.targets);
    }
}

async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn report(problem: &Problem, observers: &mut [Box<dyn Observer>]) {
    journal::report(problem);
    for observer in observers {
        observer.problem(problem);
    }
}

fn monotonic_seconds() -> u64 {
    // CLOCK_MONOTONIC always exists, and is never negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .ok()
        .and_then(|now| now.tv_sec().try_into().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
