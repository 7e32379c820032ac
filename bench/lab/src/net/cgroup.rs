//! Control groups: that of a node, and below it one for each of its pods.
//!
//! The bed's namespaces are threads of one process. A process can place its threads in different
//! groups only if the groups are threaded. Sockets and child processes are in the group of the
//! thread that makes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

/// A control group of the bed. On drop it is removed, if it is empty.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// It is removed after this one.
    _parent: Option<Arc<Self>>,
}

impl Cgroup {
    /// Makes `<own prefix><name>` below this process' own group.
    pub fn create(name: &str) -> Result<Arc<Self>> {
        let name = format!("{}{name}", super::own_prefix());
        Self::make(own_directory()?.join(name), None)
    }

    /// Makes a group below another.
    pub fn create_below(parent: &Arc<Self>, name: &str) -> Result<Arc<Self>> {
        Self::make(parent.path.join(name), Some(Arc::clone(parent)))
    }

    fn make(path: PathBuf, parent: Option<Arc<Self>>) -> Result<Arc<Self>> {
        fs::create_dir(&path).with_context(|| format!("can't make {}", path.display()))?;
        let group = Self { path, _parent: parent };
        fs::write(group.path.join("cgroup.type"), "threaded")
            .with_context(|| format!("{} can't be threaded", group.path.display()))?;
        Ok(Arc::new(group))
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves this thread into the group.
    pub(super) fn enter(&self) -> Result<()> {
        let threads = self.path.join("cgroup.threads");
        fs::write(&threads, "0").with_context(|| format!("can't write to {}", threads.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// Returns this process' own control group.
pub(super) fn own_directory() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4))?
    });
    let mount = mount.context("no cgroup2 file system is mounted")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(Path::new(mount).join(own.context("this process is in no control group")?))
}

/// Removes a group and all groups below it, if they are empty.
pub(super) fn remove(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}
