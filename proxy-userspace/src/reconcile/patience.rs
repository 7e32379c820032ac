//! Objects come one by one, so for a moment a Service has no EndpointSlice yet, or a slice names a port that its Service is about to have.
//! What mostly passes by itself is told only if it has lasted.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Model, Problem, Topic};

/// Longer than a controller takes for all objects of one Service.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// What is wrong and may be right before anybody is told.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// By problem: when it has lasted long enough.
    waiting: BTreeMap<Problem, Instant>,
    /// When the first of them has.
    due: Option<Instant>,
    has_begun: bool,
}

impl Patience {
    /// Those to be told of at once. What was wrong when everything was listed is not in the making.
    pub fn sort(&mut self, fresh: Vec<Problem>, now: Instant) -> Vec<Problem> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return fresh;
        }
        let (may_pass, lasting): (Vec<_>, Vec<_>) =
            fresh.into_iter().partition(|problem| problem.topic == Topic::Mismatch);
        for problem in may_pass {
            // What waits already was right in between.
            self.waiting.insert(problem, now + PATIENCE);
            self.due.get_or_insert(now + PATIENCE);
        }
        lasting
    }

    /// When to ask for those that have lasted.
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Those that have lasted; whatever is right again by now is forgotten.
    pub fn lasted(&mut self, now: Instant, model: &Model) -> Vec<Problem> {
        let due: BTreeMap<Problem, Instant> = self.waiting.extract_if(.., |_, ends| *ends <= now).collect();
        self.due = self.waiting.values().min().copied();
        if due.is_empty() {
            return Vec::new();
        }
        model.problems().filter(|problem| due.contains_key(*problem)).cloned().collect()
    }
}
