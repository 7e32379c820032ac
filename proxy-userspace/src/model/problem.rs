//! What is wrong with an object, said once and in one line, while everything else goes on working.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::ObjectKey;

/// How much a problem matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; often passes by itself, such as a Service whose EndpointSlice has not come yet.
    Info,
    /// Something that was asked for is not served.
    Warning,
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
