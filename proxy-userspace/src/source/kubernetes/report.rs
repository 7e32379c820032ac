//! What is said of the API server: each cause once, however many watches meet it, and when it is well again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::failure::Failure;
use super::query::resource;
use crate::source::{Kind, ObjectKey, Problem, Severity, Signs, Topic};

/// Remembers what was said.
#[derive(Debug)]
pub(super) struct Reports {
    server: String,
    /// What to try where the server can't be reached.
    hint: Option<&'static str>,
    signs: Signs,
    /// What keeps each watch from going on now.
    troubles: Mutex<BTreeMap<Kind, String>>,
}

impl Reports {
    pub fn of(server: String, hint: Option<&'static str>, signs: Signs) -> Self {
        Self { server, hint, signs, troubles: Mutex::default() }
    }

    /// A listing or a watch has ended in an error, be it worth a word or not.
    pub fn count_error(&self, kind: Kind) {
        self.signs.count_error(resource(kind));
    }

    /// The server said something, though it be that nothing has changed.
    pub fn hear(&self) {
        self.signs.hear();
    }

    /// A watch can't go on; what to say of it.
    pub fn failed(&self, kind: Kind, failure: &Failure) -> Option<Problem> {
        let message = self.message(failure);
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = troubles.values().any(|known| *known == message);
        troubles.insert(kind, message.clone());
        self.signs.set_trouble(Some(message.clone()));
        (!is_known).then(|| problem(None, String::new(), message, Severity::Warning))
    }

    /// A watch goes on; what to say of it.
    pub fn well(&self, kind: Kind) -> Option<Problem> {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let was_in_trouble = troubles.remove(&kind).is_some();
        self.signs.set_trouble(troubles.values().next().cloned());
        let message = || format!("the API server at {} is well again", self.server);
        (was_in_trouble && troubles.is_empty())
            .then(|| problem(None, String::new(), message(), Severity::Info))
    }

    fn message(&self, failure: &Failure) -> String {
        let hint = match failure {
            Failure::Unreachable(_) | Failure::Silent(_) => self.hint.unwrap_or_default(),
            _ => "",
        };
        format!("the API server at {} {failure}{hint}; what is known stays, tried again", self.server)
    }
}

/// What is wrong with an object, or with none.
pub(super) fn problem(
    object: Option<ObjectKey>,
    field: String,
    message: String,
    severity: Severity,
) -> Problem {
    Problem { file: None, object, field, message, severity, topic: Topic::Field, service: None }
}
