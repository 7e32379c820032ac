//! The eBPF data plane: XDP and TC programs, and the maps they read.

pub mod plan;
pub mod read;
mod settings;

use std::path::Path;

pub use settings::{Mark, Settings, Sizes, XdpMode};

use crate::dataplane::{Dataplane, SyncReport};
use crate::model::{Desired, Dirty};
use crate::node::Topology;

/// The programs, their maps and links on this node, and what is in them.
#[derive(Debug)]
pub struct EbpfDataplane {}

/// Why the data plane can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process lacks a capability.
    #[error("missing {missing}: run as root, or grant CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")]
    Capability {
        /// The capabilities that are missing.
        missing: String,
    },
}

impl EbpfDataplane {
    /// Loads the programs and maps, or takes over those an earlier agent left. One agent at a time may use a
    /// BPF file system directory.
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let _ = settings;
        Err(OpenError::Capability { missing: String::new() })
    }

    /// Tells the programs that the agent lives, so that they believe the ways it has written.
    pub fn heartbeat(&self, now_monotonic_seconds: u64) {
        let _ = now_monotonic_seconds;
    }

    /// Deletes flow entries that are expired; returns how many.
    pub fn collect_flows(&mut self, now_monotonic_seconds: u64) -> Result<usize, read::ReadError> {
        let _ = now_monotonic_seconds;
        Ok(0)
    }
}

impl Dataplane for EbpfDataplane {
    fn sync(&mut self, _desired: &Desired, _dirty: &Dirty) -> SyncReport {
        SyncReport::default()
    }

    fn set_topology(&mut self, _topology: &Topology) -> SyncReport {
        SyncReport::default()
    }

    fn housekeep(&mut self, now_monotonic_seconds: u64) {
        self.heartbeat(now_monotonic_seconds);
        match self.collect_flows(now_monotonic_seconds) {
            Ok(expired) => tracing::debug!(expired, "flow entries collected"),
            Err(error) => tracing::warn!("flow entries are not collected: {error}"),
        }
    }
}

/// What [`cleanup`] removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Names of what was removed: links, programs and maps, as paths below the BPF file system.
    pub removed: Vec<String>,
}

/// Removes everything of ours from the kernel: links (which detaches the programs), programs, maps and their
/// directory. Refused while an agent runs.
pub fn cleanup(bpffs_path: &Path) -> Result<Cleaned, OpenError> {
    let _ = bpffs_path;
    Ok(Cleaned::default())
}
