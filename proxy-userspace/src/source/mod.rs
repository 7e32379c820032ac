//! The sources of objects. Only this module reads manifests or talks to the API server.

pub mod directory;
mod feed;
pub mod kubernetes;
mod pods;
mod policies;
mod signs;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::policies::{PolicyBatch, PolicyEvent};
pub use self::signs::Signs;
pub use crate::model::{Change, Kind, Object, ObjectKey, Problem, Severity, Topic};

/// The events of one change, in their order.
///
/// A reader that acts only after a whole batch never misses an object that moved from one file to
/// another.
pub type Batch = Vec<SourceEvent>;

/// An event of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceEvent {
    /// An object was added, changed or removed.
    Change(Change),
    /// All objects were sent once. Before that no object may count as deleted.
    ///
    /// It is repeated when the listing has changed, until it is complete.
    Listed(Listing),
    /// An object or file is unreadable; all others are served.
    Problem(Problem),
}

/// Whether a source could read all objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing {
    /// It could, at least once. An object that becomes unreadable later is known from before.
    Complete,
    /// It could not read these since the start.
    Without(BTreeSet<Unread>),
}

/// An unreadable part of the source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unread {
    /// A file, with all objects in it.
    File(Arc<Path>),
    /// An object.
    Object(ObjectKey),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Object(key) => write!(f, "{key}"),
        }
    }
}

/// The reasons why a source can't work at all.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The directory can't be opened at the start.
    #[error("--source directory:{}: {error}; takes an existing directory of .yaml, .yml and .json files", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The kernel refuses to report changes of files.
    #[error("inotify: {0}; see fs.inotify.max_user_instances and fs.inotify.max_user_watches")]
    Inotify(std::io::Error),
    /// No configuration names the API server.
    #[error(
        "no API server is configured; takes --kubeconfig PATH, the environment's KUBECONFIG, \
         ~/.kube/config, or to run in a pod"
    )]
    NoConfiguration,
    /// The configuration of the API server can't be used.
    #[error("{origin}: {message}")]
    Kubeconfig {
        /// The flag, variable or file with the configuration.
        origin: String,
        /// The fault in it.
        message: String,
    },
}
