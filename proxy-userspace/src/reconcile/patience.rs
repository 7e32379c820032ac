//! Holds back problems that mostly pass by themselves, until they have lasted.
//!
//! Objects come one by one. For a moment a Service has no EndpointSlice, or a slice names a port
//! that its Service does not have yet.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Model, Problem, Topic};

/// Longer than a controller takes for all objects of one Service.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The problems that may pass before they are reported.
#[derive(Debug, Default)]
pub(super) struct HeldProblems {
    /// For each problem the time at which it has lasted long enough.
    waiting: BTreeMap<Problem, Instant>,
    /// The earliest of these times.
    due: Option<Instant>,
    has_begun: bool,
}

impl HeldProblems {
    /// Holds back the problems that may pass, and returns the others.
    ///
    /// The first call, after the listing, returns all of them: no controller is at work on those
    /// objects.
    pub fn hold_back(&mut self, fresh: Vec<Problem>, now: Instant) -> Vec<Problem> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return fresh;
        }
        let (may_pass, lasting): (Vec<_>, Vec<_>) =
            fresh.into_iter().partition(|problem| problem.topic == Topic::Mismatch);
        for problem in may_pass {
            // A problem that is waiting already was absent in between, so its time begins anew.
            self.waiting.insert(problem, now + PATIENCE);
            self.due.get_or_insert(now + PATIENCE);
        }
        lasting
    }

    /// Returns the time at which [`lasted`](Self::lasted) is to be called.
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the problems that have lasted, and forgets those that are gone.
    pub fn lasted(&mut self, now: Instant, model: &Model) -> Vec<Problem> {
        let due: BTreeMap<Problem, Instant> = self.waiting.extract_if(.., |_, ends| *ends <= now).collect();
        self.due = self.waiting.values().min().copied();
        if due.is_empty() {
            return Vec::new();
        }
        model.problems().filter(|problem| due.contains_key(*problem)).cloned().collect()
    }
}
