//! The problems with the API server. Each cause is reported once, however many watches meet it, and
//! so is its end.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::KINDS;
use super::failure::Failure;
use super::resource::resource;
use crate::source::{Kind, ObjectKey, Problem, Severity, Signs, Topic};

/// The problems that were reported.
#[derive(Debug)]
pub(super) struct Reports {
    server: String,
    /// A hint for the case that the server can't be reached.
    hint: Option<&'static str>,
    signs: Signs,
    /// The present trouble of each watch.
    troubles: Mutex<BTreeMap<Kind, String>>,
}

impl Reports {
    pub fn of(server: String, hint: Option<&'static str>, signs: Signs) -> Self {
        Self { server, hint, signs, troubles: Mutex::default() }
    }

    /// Counts a listing or watch that ended in an error, reported or not.
    pub fn count_error(&self, kind: Kind) {
        self.signs.count_error(resource(kind));
    }

    /// Records a sign of life from the server, such as a bookmark.
    pub fn hear(&self) {
        self.signs.hear();
    }

    /// Records that a watch can't go on. Returns the problem if it is new.
    pub fn failed(&self, kind: Kind, failure: &Failure) -> Option<Problem> {
        let message = self.message(failure);
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = troubles.values().any(|known| *known == message);
        if matches!(failure, Failure::Older { .. }) {
            // All kinds are listed again, and the server works once all of them are.
            for other in KINDS {
                troubles.entry(other).or_insert_with(|| message.clone());
            }
        }
        troubles.insert(kind, message.clone());
        self.signs.set_trouble(Some(message.clone()));
        (!is_known).then(|| problem(None, String::new(), message, Severity::Warning))
    }

    /// Records that a watch goes on. Returns the message if it was the last one in trouble.
    pub fn well(&self, kind: Kind) -> Option<Problem> {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let was_in_trouble = troubles.remove(&kind).is_some();
        self.signs.set_trouble(troubles.values().next().cloned());
        let message = || format!("the API server at {} works again", self.server);
        (was_in_trouble && troubles.is_empty())
            .then(|| problem(None, String::new(), message(), Severity::Info))
    }

    fn message(&self, failure: &Failure) -> String {
        let hint = match failure {
            Failure::Unreachable(_) | Failure::Silent(_) => self.hint.unwrap_or_default(),
            _ => "",
        };
        let next = match failure {
            Failure::Older { .. } => "everything is listed again",
            _ => "tried again",
        };
        format!("the API server at {} {failure}{hint}; known objects stay in use; {next}", self.server)
    }
}

/// Returns a problem of an object, or of none.
pub(super) fn problem(
    object: Option<ObjectKey>,
    field: String,
    message: String,
    severity: Severity,
) -> Problem {
    Problem { file: None, object, field, message, severity, topic: Topic::Field, service: None }
}
