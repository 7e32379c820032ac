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
    /// No change waits for longer than it may, and the data plane found no fault in itself.
    pub healthy: bool,
    /// New clients may be sent to this node.
    pub eligible: bool,
    /// When the last change was applied; now if healthy, as kube-proxy has it. `None` = never.
    pub last_updated: Option<Timestamp>,
    /// Now.
    pub now: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    /// When the oldest change that is not applied yet was received.
    queued: Option<Instant>,
    applied: Option<Timestamp>,
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

    /// A change was received that is not applied yet.
    pub fn queue(&self) {
        let now = self.clock.now().instant;
        self.state().queued.get_or_insert(now);
    }

    /// Everything that was received is applied.
    pub fn apply(&self) {
        let now = self.clock.now().wall;
        let mut state = self.state();
        state.queued = None;
        state.applied = Some(now);
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
        let late = |queued: Instant| now.instant.saturating_duration_since(queued) >= self.timeout;
        let healthy = state.fault.is_none() && !state.queued.is_some_and(late);
        Verdict {
            healthy,
            eligible: state.eligibility == Eligibility::Eligible,
            last_updated: if healthy { Some(now.wall) } else { state.applied },
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
