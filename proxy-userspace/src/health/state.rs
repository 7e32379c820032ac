//! Whether this proxy does its work, by kube-proxy's rule.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::model::Eligibility;

/// A change may wait this long at least, however short the interval between two rounds is.
const LEAST_TIMEOUT: Duration = Duration::from_mins(1);

/// The state that the reconciler's task writes and the HTTP servers read.
#[derive(Debug)]
pub struct Health {
    clock: Box<dyn Clock>,
    /// How long a change may wait before it counts as late.
    timeout: Duration,
    state: Mutex<State>,
}

/// What time it is.
pub trait Clock: Send + Sync + Debug {
    /// Now.
    fn now(&self) -> Moment;
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// For intervals: never set.
    pub instant: Instant,
    /// For people.
    pub wall: Timestamp,
}

/// The host's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

/// What the servers answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The task goes on, no change waits for longer than it may, and the data plane found no fault in itself. Where that
    /// is not so a new agent may help.
    pub alive: bool,
    /// It is alive, and this node can serve.
    pub healthy: bool,
    /// New clients may be sent to this node.
    pub eligible: bool,
    /// When a sync was over for the last time by which this node could serve. `None` = never.
    pub applied: Option<Timestamp>,
    /// Now.
    pub now: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    /// When the oldest change that no sync has taken yet was received.
    queued: Option<Instant>,
    /// When the task showed for the last time that it goes on.
    seen: Option<Instant>,
    applied: Option<Timestamp>,
    is_unserved: bool,
    fault: Option<String>,
    eligibility: Eligibility,
}

impl Health {
    /// Healthy and eligible, until something says otherwise: what an earlier agent left goes on serving.
    #[must_use]
    pub fn new(clock: impl Clock + 'static, sync_interval: Duration) -> Self {
        let timeout = (sync_interval * 2).max(LEAST_TIMEOUT);
        Self { clock: Box::new(clock), timeout, state: Mutex::default() }
    }

    /// A change was received that no sync has taken yet.
    pub fn queue(&self) {
        let now = self.clock.now().instant;
        self.state().queued.get_or_insert(now);
    }

    /// The task goes on. From the first time on it has to say so again and again: one that hangs receives no change.
    pub fn beat(&self) {
        let now = self.clock.now().instant;
        self.state().seen = Some(now);
    }

    /// A sync has taken everything that was received, and this node can serve.
    pub fn serve(&self) {
        let now = self.clock.now().wall;
        let mut state = self.state();
        state.queued = None;
        state.is_unserved = false;
        state.applied = Some(now);
    }

    /// A sync has taken everything that was received, but this node can't serve.
    pub fn fail(&self) {
        let mut state = self.state();
        state.queued = None;
        state.is_unserved = true;
    }

    /// What the data plane finds wrong with itself. Returns whether that is news.
    pub fn set_fault(&self, fault: Option<&str>) -> bool {
        let mut state = self.state();
        let is_new = state.fault.as_deref() != fault;
        state.fault = fault.map(str::to_owned);
        is_new
    }

    /// What the own Node object says.
    pub fn set_eligibility(&self, eligibility: Eligibility) {
        self.state().eligibility = eligibility;
    }

    /// What to answer now.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let now = self.clock.now();
        let state = self.state();
        let late = |since: &Instant| now.instant.saturating_duration_since(*since) >= self.timeout;
        let alive = state.fault.is_none() && !state.queued.iter().chain(&state.seen).any(late);
        Verdict {
            alive,
            healthy: alive && !state.is_unserved,
            eligible: state.eligibility == Eligibility::Eligible,
            applied: state.applied,
            now: now.wall,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each method leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment { instant: Instant::now(), wall: Timestamp::now() }
    }
}
