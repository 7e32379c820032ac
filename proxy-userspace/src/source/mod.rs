//! Where objects come from. Nothing but this module reads manifests or talks to the API.

pub mod directory;
pub mod kubernetes;
mod signs;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::signs::Signs;
pub use crate::model::{Change, Kind, Object, ObjectKey, Problem, Severity, Topic};

/// What a source tells in one go: what changed together, in its order. A reader that acts only after all of it
/// never sees an object that moved from one file to another as gone.
pub type Batch = Vec<SourceEvent>;

/// One thing a source tells.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceEvent {
    /// An object was added, changed or removed.
    Change(Change),
    /// All there is has been told once. Until then nothing may be taken for deleted. Comes again when the listing
    /// has become another one, up to a complete one.
    Listed(Listing),
    /// Something could not be read; everything else goes on.
    Problem(Problem),
}

/// Whether a source could tell of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing {
    /// It could, once at least. What breaks later is known from before.
    Complete,
    /// Not of these: they could not be read since the start.
    Without(BTreeSet<Unread>),
}

/// What could not be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unread {
    /// A file, with every object in it.
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

/// Why a source can't work at all.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The directory can't be opened at start.
    #[error("--source directory:{}: {error}; takes an existing directory of .yaml, .yml and .json files", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The kernel refuses to tell of changes.
    #[error("inotify: {0}; see fs.inotify.max_user_instances and fs.inotify.max_user_watches")]
    Inotify(std::io::Error),
    /// Nothing says where the API server is.
    #[error(
        "--source kubernetes: no API server is configured; takes --kubeconfig PATH, the environment's KUBECONFIG, \
         ~/.kube/config, or to run in a pod"
    )]
    NoConfiguration,
    /// What says where the API server is can't be used.
    #[error("{origin}: {message}")]
    Kubeconfig {
        /// The flag, variable or file it is from.
        origin: String,
        /// What is wrong with it.
        message: String,
    },
}
