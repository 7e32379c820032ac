//! The cluster of a test process, which ends with it.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::programs::Assets;
use super::{Cluster, Settings};

/// The beginning of the names of tests' clusters. The process id follows.
const PREFIX: &str = "test-";

impl Cluster {
    /// Starts a cluster that is removed when this process exits. Removes those of processes that ended
    /// without removing theirs.
    pub fn up_until_exit(settings: &Settings, assets: &Assets) -> Result<Self> {
        remove_where(&assets.state, |owner| !Path::new("/proc").join(owner.to_string()).exists());
        remove_at_exit();
        let name = format!("{PREFIX}{}", std::process::id());
        Self::up(Settings { name, ..settings.clone() }, assets)
    }
}

/// Removes the cluster of this process when it exits: statics are not dropped.
fn remove_at_exit() {
    extern "C" fn remove() {
        if let Ok(state) = Assets::state() {
            remove_where(&state, |owner| owner == std::process::id());
        }
    }
    // SAFETY: the handler is a function without arguments, and it does not unwind: it ignores every
    // error.
    unsafe { libc::atexit(remove) };
}

fn remove_where(state: &Path, condemned: impl Fn(u32) -> bool) {
    for entry in fs::read_dir(state).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let owner = name.strip_prefix(PREFIX).and_then(|owner| owner.parse().ok());
        if owner.is_some_and(&condemned) {
            let _ = Cluster::down(state, name);
        }
    }
}
