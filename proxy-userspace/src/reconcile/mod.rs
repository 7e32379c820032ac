//! Brings the data plane to the model's desired state. One task owns both.
//!
//! A change only marks service ports as dirty. A sync begins at once if the last one is older than
//! the shortest interval. After a failure the next sync begins after the retry interval. After the
//! longest interval the task marks all ports as dirty, part by part, so that a change does not wait
//! long.

mod journal;
mod listing;
mod observer;
mod patience;
mod sockets;
mod uplinks;

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use crate::dataplane::{Dataplane, SyncFailure, SyncReport};
use crate::heap;
use crate::model::{Dirty, Model, PortKey, Problem};
use crate::node::Topology;
use crate::source::{Batch, Listing, SourceEvent};
use journal::Journal;
pub use listing::list;
use listing::publish_targets;
pub use observer::{Observer, Synced};
use patience::HeldProblems;
use sockets::Sockets;

/// Time between two attempts of a failed operation.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Wait for an endpoint that left one slice and may appear in another: some API calls of the
/// controller.
const MOVE_INTERVAL: Duration = Duration::from_millis(50);
/// Service ports in one part of a full round.
const PART: usize = 256;
/// A sync of this many service ports, as a rule the first one, leaves much free memory behind.
const LARGE: usize = 1_000;
const PART_INTERVAL: Duration = Duration::from_millis(10);
/// A sixth of the age at which the BPF programs treat the agent as dead.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two looks at the links of uplinks. The kernel tells nobody when one is detached, and a client that gets
/// a pod's own answer meanwhile ends its connection.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The channels of the task.
#[derive(Debug)]
pub struct Channels {
    /// Batches from the source.
    pub events: mpsc::Receiver<Batch>,
    /// The node's network from the node monitor; `None` until the monitor knows the cluster's
    /// nodes.
    pub topology: watch::Receiver<Option<Topology>>,
    /// Addresses of the cluster's nodes, for the node monitor; `None` until everything was listed.
    pub targets: watch::Sender<Option<BTreeSet<IpAddr>>>,
    /// Closed when the task is to end.
    pub stop: watch::Receiver<()>,
}

/// Bounds on the time between syncs.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Shortest time between two syncs.
    pub min: Duration,
    /// Time between two full rounds.
    pub max: Duration,
    /// Time for which an address of this node is served after it has left a Service's status.
    pub drain: Duration,
}

/// The task that owns model and data plane.
#[derive(Debug)]
pub struct Reconciler<D> {
    model: Model,
    dataplane: D,
    channels: Channels,
    intervals: Intervals,
    journal: Journal,
    observers: Vec<Box<dyn Observer>>,
    /// Whether the source could read all objects.
    listing: Listing,
    /// Whether the model got changes since its last refresh.
    model_due: bool,
    /// End of the wait for endpoints that may be moving between two slices.
    move_until: Option<Instant>,
    held: HeldProblems,
    sockets: Sockets,
    /// When addresses of this node end that left a Service's status, and their count until then.
    former: VecDeque<(Instant, u64)>,
    /// The count so far.
    former_seen: u64,
    /// This node's network, and whether it has to be handed to the data plane.
    topology: Option<Topology>,
    topology_due: bool,
    /// Whether the data plane failed on the topology. The next sync tries again. Syncs that retry
    /// service ports skip this work unless it failed: it looks at all devices.
    topology_failed: bool,
    /// Changes of the desired state that the data plane has not seen yet.
    dirty: Dirty,
    /// Time of the next retry, or of work that the data plane has deferred.
    retry_at: Option<Instant>,
    last_sync: Instant,
    /// Time of the next part of a full round, and the port before its first one.
    part_at: Instant,
    part_after: Option<PortKey>,
}

impl<D: Dataplane> Reconciler<D> {
    /// Returns a task that has not begun. [`list`] has read `listing` into `model`.
    pub fn new(
        model: Model,
        listing: Listing,
        dataplane: D,
        channels: Channels,
        intervals: Intervals,
    ) -> Self {
        let now = Instant::now();
        let dirty = Dirty::everything(model.desired(), false);
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
            held: HeldProblems::default(),
            sockets: Sockets::default(),
            former: VecDeque::new(),
            former_seen: 0,
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

    /// Adds observers of every later batch, sync and problem. [`list`] tells them of the listing.
    #[must_use]
    pub fn observed_by(mut self, observers: Vec<Box<dyn Observer>>) -> Self {
        self.observers.extend(observers);
        self
    }

    /// Runs until it is stopped, or the source or the monitor ends. Returns the data plane.
    pub async fn run(mut self) -> D {
        let mut housekeep_at = Instant::now();
        let mut look_at = Instant::now() + LOOK_INTERVAL;
        loop {
            let sync_at = self.next_sync();
            tokio::select! {
                // In this order: stop first; sync when it is due, even while events keep coming.
                biased;
                _ = self.channels.stop.changed() => break,
                () = sleep_until(housekeep_at) => housekeep_at = Instant::now() + self.housekeep(),
                () = sleep_until(sync_at) => self.sync(),
                () = sleep_until(look_at) => {
                    self.look();
                    look_at = Instant::now() + LOOK_INTERVAL;
                }
                () = sleep_until_some(self.held.due()) => self.report_lasting(),
                batch = self.channels.events.recv() => match batch {
                    Some(batch) => self.apply_batch(batch),
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
        let former_end = self.former.front().map(|(end, _)| *end);
        self.retry_at.into_iter().chain(former_end).fold(self.part_at, Instant::min)
    }

    /// Returns the end of the wait for an endpoint that may be moving between two slices.
    fn move_ends(&self) -> Option<Instant> {
        self.move_until.filter(|_| self.model.may_miss_endpoints())
    }

    fn apply_batch(&mut self, batch: Batch) {
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
                // A source that had to list again repeats its word.
                SourceEvent::Listed(_) => {}
                SourceEvent::Problem(problem) => report(&problem, &mut self.observers),
            }
        }
        if self.move_until.is_none() && self.model.may_miss_endpoints() {
            self.move_until = Some(Instant::now() + MOVE_INTERVAL);
        }
    }

    /// Takes the batches that are waiting: a deletion in one may be undone by the next.
    ///
    /// Batches that arrive meanwhile are left, so that a sync happens although events keep coming.
    fn apply_waiting(&mut self) {
        for _ in 0..self.channels.events.len() {
            let Ok(batch) = self.channels.events.try_recv() else { return };
            self.apply_batch(batch);
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
        self.apply_waiting();
        let now = Instant::now();
        if self.move_ends().is_some_and(|ends| now < ends) {
            return;
        }
        self.last_sync = now;
        self.move_until = None;
        while let Some((_, count)) = self.former.pop_front_if(|(end, _)| *end <= now) {
            self.model.forget_former(count);
        }
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
        report = report.then(self.dataplane.sync(self.model.desired(), &dirty));
        self.topology_due = false;
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
        // The node monitor has logged missing uplinks already, before the source's listing was
        // complete.
        report.failures.retain(|failure| !missing.contains(failure));
        self.journal.synced(desired, report);
    }

    /// Returns the time until the next call.
    fn housekeep(&mut self) -> Duration {
        let again_in = self.dataplane.housekeep(monotonic_seconds());
        self.sockets.look(&mut self.model);
        self.model_due |= self.model.is_due();
        self.check();
        again_in.unwrap_or(HEARTBEAT_INTERVAL).min(HEARTBEAT_INTERVAL)
    }

    fn report_lasting(&mut self) {
        for problem in self.held.lasted(Instant::now(), &self.model) {
            report(&problem, &mut self.observers);
        }
    }

    fn look(&mut self) {
        // An attachment that failed is tried again at its own pace.
        if !self.topology_failed && !self.dataplane.is_attached() {
            self.check();
        }
    }

    fn check(&mut self) {
        // Before the first sync, programs of an earlier agent run with that agent's settings.
        if self.topology.is_none() || self.topology_due {
            return;
        }
        let check = self.dataplane.check();
        self.topology_due = check.fault.is_some();
        for observer in &mut self.observers {
            observer.checked(&check);
        }
    }

    /// Marks the next part of a full round as dirty. The last part includes devices and nodes.
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

    /// Lets the model compute its changes, and tells the node monitor of new nodes.
    fn refresh(&mut self) {
        self.model_due = false;
        self.sockets.look_if_old(&mut self.model, Instant::now());
        self.dirty.merge(self.model.refresh());
        let former = self.model.former_addresses();
        if former > self.former_seen {
            self.former.push_back((Instant::now() + self.intervals.drain, former));
            self.former_seen = former;
        }
        // Without this node's addresses, everything that needs one would be reported as a problem.
        if self.topology.is_some() {
            for problem in self.held.hold_back(self.model.take_problems(), Instant::now()) {
                report(&problem, &mut self.observers);
            }
        }
        if !self.dirty.nodes {
            return;
        }
        publish_targets(&self.model, &self.channels.targets);
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
