//! The state behind /healthz, /livez and /readyz, by kube-proxy's rules.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::ready::{Condition, Failing, Readiness};
use crate::dataplane::SyncFailure;
use crate::firewall::Statuses;
use crate::model::Eligibility;
use crate::source::Signs;

/// The least time that a change may wait, however short the interval between two full rounds is.
const LEAST_TIMEOUT: Duration = Duration::from_mins(1);

/// The state. The reconcile task writes it, the HTTP servers read it.
#[derive(Debug)]
pub struct Health {
    clock: Box<dyn Clock>,
    /// The time after which a waiting change is late.
    timeout: Duration,
    state: Mutex<State>,
    /// The state of the source.
    signs: Signs,
    /// The state of the firewall, if it is to be in force.
    firewall: Option<Statuses>,
}

/// A source of the current time.
pub trait Clock: Send + Sync + Debug {
    /// Returns the current time.
    fn now(&self) -> Moment;
}

/// A time on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// For intervals: this clock is never set.
    pub instant: Instant,
    /// For people.
    pub wall: Timestamp,
}

/// The host's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

/// The values that the servers answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an answer of its own, and none follows from another"
)]
pub struct Verdict {
    /// The task is running, no change waits too long, and the data plane found no fault in itself.
    /// If this fails, a restart of the agent may help.
    pub alive: bool,
    /// A sync has ended, with or without failures. Before that the agent may be waiting for its
    /// source.
    pub started: bool,
    /// It is alive, it has started, and this node can serve.
    pub healthy: bool,
    /// New clients may be sent to this node.
    pub eligible: bool,
    /// End of the last sync after which this node could serve; `None` = never.
    pub applied: Option<Timestamp>,
    /// Now.
    pub now: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    /// When the oldest change that no sync has taken yet was received.
    queued: Option<Instant>,
    /// When the task gave its last sign of life.
    seen: Option<Instant>,
    applied: Option<Timestamp>,
    /// Whether everything was listed once.
    is_listed: bool,
    /// Whether a sync has ended.
    is_synced: bool,
    /// The failures of the last sync that concern more than one service port, in its order.
    failures: Vec<SyncFailure>,
    fault: Option<String>,
    /// The failures of the node's checks that readiness waits for, in one line.
    node_checks: Option<String>,
    node_name: String,
    eligibility: Eligibility,
}

impl Health {
    /// Returns a state that is alive, and not healthy before the first sync.
    #[must_use]
    pub fn new(clock: impl Clock + 'static, sync_interval: Duration) -> Self {
        let timeout = (sync_interval * 2).max(LEAST_TIMEOUT);
        let (state, signs) = (Mutex::default(), Signs::default());
        Self { clock: Box::new(clock), timeout, state, signs, firewall: None }
    }

    /// Adds the state of the source.
    #[must_use]
    pub fn with_signs(self, signs: Signs) -> Self {
        Self { signs, ..self }
    }

    /// Adds the state of the firewall.
    #[must_use]
    pub fn with_firewall(self, firewall: Option<Statuses>) -> Self {
        Self { firewall, ..self }
    }

    /// Notes that everything was listed once.
    pub fn list(&self) {
        self.state().is_listed = true;
    }

    /// Notes a change that no sync has taken yet.
    pub fn queue(&self) {
        let now = self.clock.now().instant;
        self.state().queued.get_or_insert(now);
    }

    /// Notes a sign of life. After the first one they must keep coming: a task that hangs receives
    /// no change.
    pub fn beat(&self) {
        let now = self.clock.now().instant;
        self.state().seen = Some(now);
    }

    /// Notes a sync that has taken all changes, with its failures that concern more than one
    /// service port.
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

    /// Notes the fault that the data plane found in itself. Returns whether it differs from the
    /// last one.
    pub fn set_fault(&self, fault: Option<&str>) -> bool {
        let mut state = self.state();
        let is_new = state.fault.as_deref() != fault;
        state.fault = fault.map(str::to_owned);
        is_new
    }

    /// Notes the failures of the node's checks that readiness waits for; `None` without any.
    pub fn set_node_checks(&self, failures: Option<String>) {
        self.state().node_checks = failures;
    }

    /// Notes the state of this node's own Node object.
    pub fn set_node(&self, name: &str, eligibility: Eligibility) {
        let mut state = self.state();
        name.clone_into(&mut state.node_name);
        state.eligibility = eligibility;
    }

    /// Returns the values to answer with now.
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

    /// Returns the conditions that keep this node from being ready now.
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

    /// Returns why a condition fails; `None` where it holds.
    fn wrong_with(&self, condition: Condition, state: &State, now: Instant) -> Option<String> {
        match condition {
            Condition::SourceListed => {
                (!state.is_listed).then(|| "the source has not listed everything yet".to_owned())
            }
            Condition::NodeFound if !state.is_synced => {
                Some("the Node object is not known before the first sync".to_owned())
            }
            Condition::NodeFound => (state.eligibility == Eligibility::Missing)
                .then(|| format!("there is no Node {}: check --hostname-override", state.node_name)),
            Condition::DataPlane if !state.is_synced => Some("no sync has ended yet".to_owned()),
            Condition::DataPlane => {
                state.failures.iter().find(|failure| failure.is_fatal()).map(ToString::to_string)
            }
            Condition::ChangesApplied => self.is_late(state, now).then(|| {
                format!("nothing was applied for {} s although a sync is due", self.timeout.as_secs())
            }),
            Condition::SelfTest => state.fault.clone(),
            Condition::NodeChecks => state.node_checks.clone(),
            Condition::NetworkPolicies => self.firewall.as_ref()?.fault(),
        }
    }

    /// Returns whether a change, or the task's next sign of life, is overdue.
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
    /// Returns whether this node can't serve at all.
    fn is_unserved(&self) -> bool {
        self.failures.iter().any(SyncFailure::is_fatal)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment { instant: Instant::now(), wall: Timestamp::now() }
    }
}
