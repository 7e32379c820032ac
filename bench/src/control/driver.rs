//! The agent's own loop. The bench has both of its ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace::dataplane::Dataplane;
use millrace::health::{Health, HealthObserver, SystemClock, Targets};
use millrace::metrics::{Metrics, MetricsObserver};
use millrace::model::{Desired, Model};
use millrace::node::Topology;
use millrace::reconcile::{Channels, Intervals, Observer, Reconciler, Synced};
use millrace::source::{Batch, Listing, SourceEvent};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::clock::thread_cpu;

/// The agent's defaults.
pub const INTERVALS: Intervals =
    Intervals { min: Duration::from_millis(1), max: Duration::from_secs(30), drain: Duration::from_mins(10) };
/// A sync that takes longer fails the measurement.
const PATIENCE: Duration = Duration::from_mins(2);

/// The running loop.
pub struct Driver<D> {
    runtime: Runtime,
    syncs: mpsc::UnboundedReceiver<Sync>,
    topology: watch::Sender<Option<Topology>>,
    desired: Arc<Mutex<DesiredCopy>>,
    stop: watch::Sender<()>,
    task: JoinHandle<D>,
}

/// A finished sync.
#[derive(Clone, Copy, Debug)]
pub struct Sync {
    /// The time of its end.
    pub at: Instant,
    /// CPU time of the loop's thread at its end.
    pub cpu: Duration,
    /// CPU time since the first event of this sync, or zero without events.
    pub spent: Duration,
    /// The number of its events.
    pub events: usize,
    /// Whether it was complete.
    pub complete: bool,
}

/// A copy of the desired state, made only on request, because it takes a while.
#[derive(Debug, Default)]
enum DesiredCopy {
    #[default]
    NotWanted,
    Wanted,
    Made(Box<Desired>),
}

impl<D: Dataplane + Send + 'static> Driver<D> {
    /// Starts the loop with a complete model, and waits for its first sync.
    pub fn start(
        model: Model,
        topology: Topology,
        dataplane: D,
        events: mpsc::Receiver<Batch>,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let (topology_sender, topology_receiver) = watch::channel(None);
        let (targets, _) = watch::channel(None);
        let (stop, stopped) = watch::channel(());
        let (sync_sender, syncs) = mpsc::unbounded_channel();
        let channels = Channels { events, topology: topology_receiver, targets, stop: stopped };
        let desired = Arc::new(Mutex::new(DesiredCopy::NotWanted));
        let watcher = Watcher { syncs: sync_sender, desired: Arc::clone(&desired), events: 0, began: None };
        let handle = runtime.handle().clone();
        let task = runtime.spawn_blocking(move || {
            let reconciler = Reconciler::new(model, Listing::Complete, dataplane, channels, INTERVALS);
            let mut observers = observers();
            observers.push(Box::new(watcher));
            handle.block_on(reconciler.observed_by(observers).run())
        });
        topology_sender.send_replace(Some(topology));
        let mut driver = Self { runtime, syncs, topology: topology_sender, desired, stop, task };
        driver.next_sync()?;
        Ok(driver)
    }

    /// Waits for the next sync.
    pub fn next_sync(&mut self) -> Result<Sync> {
        let next = async { timeout(PATIENCE, self.syncs.recv()).await };
        self.runtime.block_on(next).context("no sync within two minutes")?.context("the loop has ended")
    }

    /// Copies the desired state after each sync with events, from now on.
    pub fn keep_desired(&self) {
        *self.desired.lock().unwrap_or_else(PoisonError::into_inner) = DesiredCopy::Wanted;
    }

    /// Ends the loop. Returns its data plane and the copy of the desired state.
    pub fn stop(self) -> Result<(D, Desired)> {
        drop(self.stop);
        let dataplane = self.runtime.block_on(self.task)?;
        drop(self.topology);
        let copy = std::mem::take(&mut *self.desired.lock().unwrap_or_else(PoisonError::into_inner));
        let DesiredCopy::Made(desired) = copy else { anyhow::bail!("no desired state was kept") };
        Ok((dataplane, *desired))
    }
}

/// Returns the observers of the agent's loop.
pub fn observers() -> Vec<Box<dyn Observer>> {
    let health = Arc::new(Health::new(SystemClock, INTERVALS.max));
    let targets = watch::Sender::new(Targets::default());
    let metrics = MetricsObserver::new(Metrics::new(), SystemClock);
    vec![Box::new(HealthObserver::new(health, targets)), Box::new(metrics)]
}

/// The bench's own observer of the loop.
#[derive(Debug)]
struct Watcher {
    syncs: mpsc::UnboundedSender<Sync>,
    desired: Arc<Mutex<DesiredCopy>>,
    events: usize,
    began: Option<Duration>,
}

impl Observer for Watcher {
    fn received(&mut self, batch: &[SourceEvent]) {
        self.events += batch.len();
        self.began.get_or_insert_with(thread_cpu);
    }

    fn synced(&mut self, synced: &Synced<'_>) {
        let (at, cpu) = (Instant::now(), thread_cpu());
        let events = std::mem::take(&mut self.events);
        let spent = self.began.take().map_or(Duration::ZERO, |began| cpu.saturating_sub(began));
        let mut copy = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        if events > 0 && !matches!(*copy, DesiredCopy::NotWanted) {
            *copy = DesiredCopy::Made(Box::new(synced.desired.clone()));
        }
        let complete = synced.report.is_complete();
        // The receiver is gone once the measurement is over.
        let _ = self.syncs.send(Sync { at, cpu, spent, events, complete });
    }
}
