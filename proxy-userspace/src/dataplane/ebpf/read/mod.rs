//! The pinned maps, read only: for the command line and for tests, whether an agent runs or not.

mod view;

use std::path::Path;

pub use view::{
    AttachedView, BackendView, CounterView, FlowView, FrontendView, MapView, ServiceView, StatusView, WayView,
};

/// Why the pinned maps can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There are none.
    #[error("no data plane at {path}: no agent has run here, or it was cleaned up")]
    Absent {
        /// The directory that would hold them.
        path: String,
    },
}

/// The pinned maps, read only.
#[derive(Debug)]
pub struct PinnedMaps {}

impl PinnedMaps {
    /// Opens the maps below a BPF file system.
    pub fn open(bpffs_path: &Path) -> Result<Self, ReadError> {
        Err(ReadError::Absent { path: bpffs_path.display().to_string() })
    }

    /// The services, sorted by name. A list no frontend names any more is left out.
    pub fn services(&self) -> Result<Vec<ServiceView>, ReadError> {
        Ok(Vec::new())
    }

    /// The endpoints, sorted by address.
    pub fn backends(&self) -> Result<Vec<BackendView>, ReadError> {
        Ok(Vec::new())
    }

    /// The flow entries, at most `limit` of them, in no order.
    pub fn flows(&self, limit: usize) -> Result<Vec<FlowView>, ReadError> {
        let _ = limit;
        Ok(Vec::new())
    }

    /// The counters, one for each reason.
    pub fn counters(&self) -> Result<Vec<CounterView>, ReadError> {
        Ok(Vec::new())
    }

    /// The ways to other nodes, sorted by target.
    pub fn ways(&self) -> Result<Vec<WayView>, ReadError> {
        Ok(Vec::new())
    }

    /// Heartbeat, attached programs, fill of the maps.
    pub fn status(&self) -> Result<StatusView, ReadError> {
        Err(ReadError::Absent { path: String::new() })
    }
}
