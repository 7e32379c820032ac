//! Problems of objects: each one line, reported once, while all other objects are served.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{ObjectKey, ServiceKey};

/// The weight of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Often passes by itself, such as a Service whose EndpointSlice has not come yet.
    Info,
    /// A requested feature is not served.
    Warning,
}

/// The subject of a problem. It decides the reason of the Event, and whether every node sees the
/// problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// A field that can't be read, or has a value that is not accepted.
    Field,
    /// An annotation that can't be read, or requests something impossible.
    Annotation,
    /// An external IP or a load balancer's address that the Service may not have.
    RefusedAddress,
    /// As [`RefusedAddress`](Self::RefusedAddress), where only this node knows that it has the
    /// address.
    RefusedHere,
    /// An address and port that another Service has.
    Conflict,
    /// As [`Conflict`](Self::Conflict), on an address of this node.
    ConflictHere,
    /// Objects that contradict each other, as happens for a moment when they change one after the
    /// other.
    Mismatch,
}

/// A problem in one field of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// The manifest, if there is one.
    pub file: Option<Arc<Path>>,
    /// The object; `None` if it is unknown, as in a file that is not YAML.
    pub object: Option<ObjectKey>,
    /// Path of the field, such as `spec.ports[0].nodePort`; empty for the whole object.
    pub field: String,
    /// The fault, the accepted values and the consequence.
    pub message: String,
    /// Its weight.
    pub severity: Severity,
    /// Its subject.
    pub topic: Topic,
    /// The Service that it affects, if `object` is one of its EndpointSlices.
    pub service: Option<ServiceKey>,
}

impl fmt::Display for Problem {
    /// Writes `web.yaml: Service default/web: spec.ports[0].nodePort: 70000 is not ...`, always one
    /// plain line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_problem(f, self.file.as_deref(), self.object.as_ref(), &self.field, &self.message)
    }
}

/// Writes file, object, field and message of a problem as one plain line.
pub fn write_problem(
    f: &mut fmt::Formatter<'_>,
    file: Option<&Path>,
    object: Option<&impl fmt::Display>,
    field: &str,
    message: &str,
) -> fmt::Result {
    if let Some(file) = file {
        write!(f, "{}: ", plain_line(&file.display().to_string()))?;
    }
    if let Some(object) = object {
        write!(f, "{}: ", plain_line(&object.to_string()))?;
    }
    if !field.is_empty() {
        write!(f, "{}: ", plain_line(field))?;
    }
    f.write_str(&plain_line(message))
}

/// Returns text from a file as one plain line: line breaks become spaces, other control characters their escapes.
///
/// A name in a file could otherwise forge a line of the log, or change the colours of a terminal.
#[must_use]
pub fn plain_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let plain = text.chars().map(|character| match character {
        '\n' | '\r' => " ".to_owned(),
        control if control.is_control() => control.escape_default().to_string(),
        other => other.to_string(),
    });
    Cow::Owned(plain.collect())
}

/// Collects the problems of one object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Notes {
    object: ObjectKey,
    file: Option<Arc<Path>>,
    /// The problems so far.
    pub problems: Vec<Problem>,
}

impl Notes {
    pub fn on(object: ObjectKey, file: Option<Arc<Path>>) -> Self {
        Self { object, file, problems: Vec::new() }
    }
    pub fn warn(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.warn_about(Topic::Field, field, message);
    }
    pub fn warn_about(&mut self, topic: Topic, field: impl Into<String>, message: impl Into<String>) {
        self.push(Severity::Warning, topic, field.into(), message.into());
    }
    pub fn info(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.push(Severity::Info, Topic::Mismatch, field.into(), message.into());
    }
    /// Returns the problems, marked as affecting `service`.
    pub fn affecting(self, service: &ServiceKey) -> impl Iterator<Item = Problem> {
        self.problems.into_iter().map(|problem| Problem { service: Some(service.clone()), ..problem })
    }
    /// Returns an empty collection for the same object.
    pub fn emptied(&self) -> Self {
        Self::on(self.object.clone(), self.file.clone())
    }
    fn push(&mut self, severity: Severity, topic: Topic, field: String, message: String) {
        let (file, object) = (self.file.clone(), Some(self.object.clone()));
        self.problems.push(Problem { file, object, field, message, severity, topic, service: None });
    }
}

/// All current problems, by the unit of their computation, and those that were not reported yet.
#[derive(Debug)]
pub(super) struct ProblemBook<Owner> {
    current: BTreeMap<Owner, Vec<Problem>>,
    fresh: BTreeSet<Problem>,
}

impl<Owner: Ord> ProblemBook<Owner> {
    pub fn new() -> Self {
        Self { current: BTreeMap::new(), fresh: BTreeSet::new() }
    }
    /// Replaces the problems of `owner`. Only new ones are to be reported.
    pub fn set(&mut self, owner: Owner, problems: Vec<Problem>) {
        let old = self.current.remove(&owner).unwrap_or_default();
        for gone in old.iter().filter(|problem| !problems.contains(problem)) {
            self.fresh.remove(gone);
        }
        self.fresh.extend(problems.iter().filter(|problem| !old.contains(problem)).cloned());
        if !problems.is_empty() {
            self.current.insert(owner, problems);
        }
    }
    /// Marks the problems of `owner` to be reported again.
    pub fn repeat(&mut self, owner: &Owner) {
        self.fresh.extend(self.current.get(owner).into_iter().flatten().cloned());
    }
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.current.values().flatten()
    }
    pub fn take_fresh(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.fresh).into_iter().collect()
    }
}

#[cfg(test)]
#[path = "problem_tests.rs"]
mod tests;
