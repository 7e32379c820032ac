//! The problems with the API server. Each cause is reported once, however many watches meet it, and
//! so is its end.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::failure::Failure;
use super::resource::Resources;
use crate::source::feed::Fault;
use crate::source::{Severity, Signs};

/// The problems that were reported.
#[derive(Debug)]
pub(super) struct Reports<F: Resources> {
    server: String,
    /// A hint for the case that the server can't be reached.
    hint: Option<&'static str>,
    signs: Signs,
    /// The present trouble of each watch.
    troubles: Mutex<BTreeMap<F::Kind, String>>,
}

impl<F: Resources> Reports<F> {
    pub fn of(server: String, hint: Option<&'static str>, signs: Signs) -> Self {
        Self { server, hint, signs, troubles: Mutex::default() }
    }

    /// Counts a listing or watch that ended in an error, reported or not.
    pub fn count_error(&self, kind: F::Kind) {
        self.signs.count_error(F::resource(kind));
    }

    /// Records a sign of life from the server, such as a bookmark.
    pub fn hear(&self) {
        self.signs.hear();
    }

    /// Records that a watch can't go on. Returns the problem if it is new.
    pub fn failed(&self, kind: F::Kind, failure: &Failure) -> Option<F::Problem> {
        let message = self.message(failure);
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = troubles.values().any(|known| *known == message);
        if matches!(failure, Failure::Older { .. }) {
            // All kinds are listed again, and the server works once all of them are.
            for other in F::KINDS {
                troubles.entry(*other).or_insert_with(|| message.clone());
            }
        }
        troubles.insert(kind, message.clone());
        self.signs.set_trouble_of(F::NAME, Some(message.clone()));
        (!is_known).then(|| whole::<F>(message, Severity::Warning))
    }

    /// Records that a watch goes on. Returns the message if it was the last one in trouble.
    pub fn well(&self, kind: F::Kind) -> Option<F::Problem> {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let was_in_trouble = troubles.remove(&kind).is_some();
        self.signs.set_trouble_of(F::NAME, troubles.values().next().cloned());
        let message = || format!("the API server at {} works again", self.server);
        (was_in_trouble && troubles.is_empty()).then(|| whole::<F>(message(), Severity::Info))
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

/// Returns a problem of the server.
fn whole<F: Resources>(message: String, severity: Severity) -> F::Problem {
    F::problem(Fault { file: None, object: None, field: String::new(), message, severity })
}
