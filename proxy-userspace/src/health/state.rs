//! Whether this proxy does its work, by kube-proxy's rule.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::ready::{Condition, Failing, Readiness};
use crate::dataplane::SyncFailure;
use crate::model::Eligibility;
use crate::source::Signs;

/// A change may wait this long at least, however short the interval between two rounds is.
const LEAST_TIMEOUT: Duration = Duration::from_mins(1);

/// The state that the reconciler's task writes and the HTTP servers read.
#[derive(Debug)]
pub struct Health {
    clock: Box<dyn Clock>,
    /// How long a change may wait before it counts as late.
    timeout: Duration,
    state: Mutex<State>,
    /// What the source is doing.
    signs: Signs,
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
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an answer of its own, and none follows from another"
)]
pub struct Verdict {
    /// The task goes on, no change waits for longer than it may, and the data plane found no fault in itself. Where that
    /// is not so a new agent may help.
    pub alive: bool,
    /// A sync was over, whatever came of it. Before that the agent may be waiting for its source, and a new one would, too.
    pub started: bool,
    /// It is alive, it has started, and this node can serve.
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
    /// Everything was listed once.
    is_listed: bool,
    /// A sync is over.
    is_synced: bool,
    /// What the last sync failed on beside service ports, in its order.
    failures: Vec<SyncFailure>,
    fault: Option<String>,
    node_name: String,
    eligibility: Eligibility,
}

impl Health {
    /// Alive, but not healthy before the first sync.
    #[must_use]
    pub fn new(clock: impl Clock + 'static, sync_interval: Duration) -> Self {
        let timeout = (sync_interval * 2).max(LEAST_TIMEOUT);
        Self { clock: Box::new(clock), timeout, state: Mutex::default(), signs: Signs::default() }
    }

    /// The same of an agent whose source gives these signs.
    #[must_use]
    pub fn with_signs(self, signs: Signs) -> Self {
        Self { signs, ..self }
    }

    /// Everything was listed once.
    pub fn list(&self) {
        self.state().is_listed = true;
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

    /// A sync has taken everything that was received, and failed on these beside service ports.
    pub fn sync(&self, failures: &[SyncFailure]) {
        let now = self.clock.now().wall;
        let mut state = self.state();
        state.queued = None;
        state.is_synced = true;
        failures.clone_into(&mut state.failures);
        if !state.is_unserved() {
            state.applied = Some(now);
        }
    }

    /// What the data plane finds wrong with itself. Returns whether that is news.
    pub fn set_fault(&self, fault: Option<&str>) -> bool {
        let mut state = self.state();
        let is_new = state.fault.as_deref() != fault;
        state.fault = fault.map(str::to_owned);
        is_new
    }

    /// What the Node object of this name says, which is this node's own.
    pub fn set_node(&self, name: &str, eligibility: Eligibility) {
        let mut state = self.state();
        name.clone_into(&mut state.node_name);
        state.eligibility = eligibility;
    }

    /// What to answer now.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let now = self.clock.now();
        let state = self.state();
        let alive = state.fault.is_none() && !self.is_late(&state, now.instant);
        Verdict {
            alive,
            started: state.is_synced,
            healthy: alive && state.is_synced && !state.is_unserved(),
            eligible: state.eligibility == Eligibility::Eligible,
            applied: state.applied,
            now: now.wall,
        }
    }

    /// What keeps this node from being ready now.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let now = self.clock.now().instant;
        let state = self.state();
        let failing = Condition::ALL.into_iter().filter_map(|condition| {
            let message = self.wrong_with(condition, &state, now)?;
            let cause = (condition == Condition::SourceListed).then(|| self.signs.trouble()).flatten();
            Some(Failing { condition, message, cause })
        });
        Readiness {
            failing: failing.collect(),
            failures: state.failures.iter().map(ToString::to_string).collect(),
        }
    }

    /// Why a condition does not hold.
    fn wrong_with(&self, condition: Condition, state: &State, now: Instant) -> Option<String> {
        match condition {
            Condition::SourceListed => {
                (!state.is_listed).then(|| "not everything was listed by the source yet".to_owned())
            }
            Condition::NodeFound if !state.is_synced => {
                Some("the Node object is not known before the first sync".to_owned())
            }
            Condition::NodeFound => (state.eligibility == Eligibility::Missing)
                .then(|| format!("there is no Node {}: check --hostname-override", state.node_name)),
            Condition::DataPlane if !state.is_synced => Some("nothing was synced yet".to_owned()),
            Condition::DataPlane => {
                state.failures.iter().find(|failure| failure.is_fatal()).map(ToString::to_string)
            }
            Condition::ChangesApplied => self
                .is_late(state, now)
                .then(|| format!("nothing was applied for {} s though it is due", self.timeout.as_secs())),
            Condition::SelfTest => state.fault.clone(),
        }
    }

    /// Whether a change waits, or the task was not seen, for longer than may be.
    fn is_late(&self, state: &State, now: Instant) -> bool {
        let late = |since: &Instant| now.saturating_duration_since(*since) >= self.timeout;
        state.queued.iter().chain(&state.seen).any(late)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each method leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether this node serves nobody.
    fn is_unserved(&self) -> bool {
        self.failures.iter().any(SyncFailure::is_fatal)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment { instant: Instant::now(), wall: Timestamp::now() }
    }
}
