//! What is wrong with an object, said once and in one line, while everything else goes on working.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::{ObjectKey, ServiceKey};

/// How much a problem matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; often passes by itself, such as a Service whose EndpointSlice has not come yet.
    Info,
    /// Something that was asked for is not served.
    Warning,
}

/// What a problem is about: what an Event that tells of it gives as its reason, and whether every node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// A field that can't be read, or has a value that is not accepted.
    Field,
    /// An annotation that can't be read, or asks for what can't be had.
    Annotation,
    /// An external IP or a load balancer's address that the Service may not have.
    RefusedAddress,
    /// As [`RefusedAddress`](Self::RefusedAddress), because of an address that only this node knows to be its own.
    RefusedHere,
    /// An address and port that another Service has.
    Conflict,
    /// As [`Conflict`](Self::Conflict), on an address of this node.
    ConflictHere,
    /// Objects that don't agree with each other, as happens for a moment whenever they change one after the other.
    Mismatch,
}

/// One thing that is wrong in one field of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// The manifest, where there is one.
    pub file: Option<Arc<Path>>,
    /// The object; `None` where it can't be told, as in a file that is not YAML.
    pub object: Option<ObjectKey>,
    /// Path of the field, such as `spec.ports[0].nodePort`; empty where the whole object is meant.
    pub field: String,
    /// What is wrong, what is accepted and what is done instead.
    pub message: String,
    /// How much it matters.
    pub severity: Severity,
    /// What it is about.
    pub topic: Topic,
    /// The Service that suffers from it, where `object` is one of its EndpointSlices.
    pub service: Option<ServiceKey>,
}

impl fmt::Display for Problem {
    /// `web.yaml: Service default/web: spec.ports[0].nodePort: 70000 is not ...`, always one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message.replace(['\n', '\r'], " "))
    }
}

/// Collects what is wrong with one object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Notes {
    object: ObjectKey,
    file: Option<Arc<Path>>,
    /// What was found so far.
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
    /// What was found, as something that `service` suffers from.
    pub fn suffered_by(self, service: &ServiceKey) -> impl Iterator<Item = Problem> {
        self.problems.into_iter().map(|problem| Problem { service: Some(service.clone()), ..problem })
    }
    /// Without what was found so far.
    pub fn emptied(&self) -> Self {
        Self::on(self.object.clone(), self.file.clone())
    }
    fn push(&mut self, severity: Severity, topic: Topic, field: String, message: String) {
        let (file, object) = (self.file.clone(), Some(self.object.clone()));
        self.problems.push(Problem { file, object, field, message, severity, topic, service: None });
    }
}

/// All problems there are, by what is computed at once, and those nobody was told of yet.
#[derive(Debug)]
pub(super) struct ProblemBook<Owner> {
    current: BTreeMap<Owner, Vec<Problem>>,
    fresh: BTreeSet<Problem>,
}

impl<Owner: Ord> ProblemBook<Owner> {
    pub fn new() -> Self {
        Self { current: BTreeMap::new(), fresh: BTreeSet::new() }
    }
    /// Replaces what is wrong with `owner`; only what was not wrong before is fresh.
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
    /// What is wrong with `owner` is fresh again.
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
