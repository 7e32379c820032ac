//! The pinned maps, read only. The command line and tests use them, whether an agent runs or not.

mod figures;
mod fill;
mod flows;
mod ingress;
mod recorder;
mod runs;
mod services;
mod status;
mod tables;
mod traffic;

use std::fs;
use std::io;
use std::path::Path;

use aya::maps::{Map, MapError, PerCpuArray};
use proxy_common::verdict::Counter;

use super::error::OpenError;
use super::layout::Layout;
use super::map;
use super::mapped::Access;
use super::maps::Maps;
pub use figures::Figures;
pub use flows::monotonic_seconds;
pub use ingress::IngressView;
pub use millrace_views::{
    AttachedView, BackendView, ConnectionsView, CounterView, FailuresView, FlowView, FrontendView,
    HandshakesView, MapView, ServiceView, StatusView, TrafficView, WayView,
};
pub use recorder::{Recorded, Recorder};
pub use runs::{RunTime, measure_run_times, run_times};
pub use services::protocol_text;
pub use tables::{FamilyTables, Lookups, Tables};

/// The reasons for a failed reading of the pinned maps.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There are no pinned maps.
    #[error("no data plane at {path}: no agent has run here, or it was cleaned up")]
    Absent {
        /// The expected directory.
        path: String,
    },
    /// This process lacks the rights.
    #[error("{path} can't be read: run as root, or with CAP_BPF (and CAP_NET_ADMIN)")]
    Denied {
        /// The directory.
        path: String,
    },
    /// A map can't be opened or read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A counter can't be read.
    #[error("counters: {0}")]
    Counter(MapError),
    /// A link can't be read.
    #[error("link {link}: {error}")]
    Link {
        /// Name of the pin.
        link: String,
        /// The kernel's error.
        error: io::Error,
    },
}

/// The pinned maps, read only.
pub struct PinnedMaps {
    layout: Layout,
    maps: Maps,
    counters: PerCpuArray<aya::maps::MapData, Counter>,
    service_stats: PerCpuArray<aya::maps::MapData, Counter>,
}

impl PinnedMaps {
    /// Opens the maps below a BPF file system.
    pub fn open(bpffs_path: &Path) -> Result<Self, ReadError> {
        let layout = Layout::new(bpffs_path);
        let path = layout.root().display().to_string();
        match fs::symlink_metadata(layout.maps().join("SERVICES")) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(ReadError::Denied { path });
            }
            Err(_) => return Err(ReadError::Absent { path }),
            Ok(_) => {}
        }
        Self::read(layout).map_err(|error| match error {
            error if error.is_of_rights() => ReadError::Denied { path },
            error => error.into(),
        })
    }

    fn read(layout: Layout) -> Result<Self, OpenError> {
        let directory = layout.maps();
        Ok(Self {
            maps: Maps::open(&directory, Access::Read)?,
            counters: counters(&directory, "COUNTERS")?,
            service_stats: counters(&directory, "SERVICE_STATS")?,
            layout,
        })
    }
}

impl std::fmt::Debug for PinnedMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedMaps").field("layout", &self.layout).finish_non_exhaustive()
    }
}

fn counters(
    directory: &Path,
    name: &'static str,
) -> Result<PerCpuArray<aya::maps::MapData, Counter>, OpenError> {
    let (map, _) = map::open(directory, name)?;
    let failed = |error| OpenError::Map { map: name.to_owned(), error };
    Map::from_map_data(map).and_then(PerCpuArray::try_from).map_err(failed)
}

/// Returns the sum over all CPUs; zero for a counter that an earlier version's map lacks.
fn total(counters: &PerCpuArray<aya::maps::MapData, Counter>, index: u32) -> Result<Counter, ReadError> {
    if index >= counters.len() {
        return Ok(Counter::default());
    }
    let values = counters.get(&index, 0).map_err(ReadError::Counter)?;
    Ok(values.iter().fold(Counter::default(), |sum, value| Counter {
        packets: sum.packets.wrapping_add(value.packets),
        bytes: sum.bytes.wrapping_add(value.bytes),
    }))
}
