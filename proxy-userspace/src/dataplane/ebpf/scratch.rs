//! A separate data plane for a test, in a directory that is removed at the end.

use std::fs;
use std::path::PathBuf;

use super::{EbpfDataplane, Settings, Sizes, cleanup};

/// The directory of one test.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn new(name: &str) -> Self {
        Self { path: PathBuf::from(format!("/sys/fs/bpf/millrace-{name}-{}", std::process::id())) }
    }

    pub fn settings(&self) -> Settings {
        let sizes = Sizes { slots: 64, services: 64, flows: 1024, new_flows: 1024, ..Sizes::default() };
        Settings { bpffs_path: self.path.clone(), sizes, ..Settings::default() }
    }

    pub fn open(&self) -> EbpfDataplane {
        EbpfDataplane::open(self.settings()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = cleanup(&self.path) {
            eprintln!("cleanup: {error}");
        }
        let _ = fs::remove_dir(&self.path);
    }
}
