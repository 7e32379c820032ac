//! Problems of objects: each one line, while everything else counts.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::ObjectKey;
use crate::model::{Severity, write_problem};

/// A problem in one field of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The manifest, if there is one.
    pub file: Option<Arc<Path>>,
    /// The object; `None` if it is unknown, as in a file that is not YAML.
    pub object: Option<ObjectKey>,
    /// Path of the field, such as `spec.ingress[0].ports[1].endPort`; empty for the whole object.
    pub field: String,
    /// The fault, the accepted values and the consequence.
    pub message: String,
    /// Its weight.
    pub severity: Severity,
}

impl fmt::Display for Problem {
    /// Writes `shop.yaml: NetworkPolicy shop/web: spec.ingress[0].from[0].ipBlock.cidr: ...`, always one plain
    /// line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_problem(f, self.file.as_deref(), self.object.as_ref(), &self.field, &self.message)
    }
}

/// Collects the problems of one object.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    object: ObjectKey,
    file: Option<Arc<Path>>,
    /// The problems so far.
    pub problems: Vec<Problem>,
}

impl Notes {
    pub const fn on(object: ObjectKey, file: Option<Arc<Path>>) -> Self {
        Self { object, file, problems: Vec::new() }
    }

    pub fn warn(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.push(Severity::Warning, field.into(), message.into());
    }

    pub fn info(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.push(Severity::Info, field.into(), message.into());
    }

    fn push(&mut self, severity: Severity, field: String, message: String) {
        let (file, object) = (self.file.clone(), Some(self.object.clone()));
        self.problems.push(Problem { file, object, field, message, severity });
    }
}
