//! The real data plane, in a directory of the BPF file system that is removed at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use millrace::dataplane::ebpf::read::PinnedMaps;
use millrace::dataplane::ebpf::{EbpfDataplane, Settings, Sizes, cleanup};
use millrace::model::Desired;

/// The pins of one measurement.
pub struct Pins {
    path: PathBuf,
}

impl Pins {
    /// Returns a directory of its own.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { path: PathBuf::from(format!("/sys/fs/bpf/millrace-bench-{}-{number}", std::process::id())) }
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the pinned maps for reading.
    pub fn maps(&self) -> Result<PinnedMaps> {
        Ok(PinnedMaps::open(&self.path)?)
    }

    /// Opens the data plane. Its maps are as large as the agent makes them; only the flow tables
    /// are small.
    pub fn open(&self, desired: &Desired) -> Result<EbpfDataplane> {
        self.open_with(Sizes { flows: 1024, new_flows: 1024, ..Sizes::for_desired(desired) })
    }

    /// Opens the data plane with maps of these sizes.
    pub fn open_with(&self, sizes: Sizes) -> Result<EbpfDataplane> {
        let settings = Settings { bpffs_path: self.path.clone(), sizes, ..Settings::default() };
        EbpfDataplane::open(settings)
            .context("the data plane can't be opened; run as root, with /sys/fs/bpf mounted")
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(error) = cleanup(&self.path) {
            eprintln!("cleanup: {error}");
        }
        let _ = fs::remove_dir(&self.path);
    }
}
