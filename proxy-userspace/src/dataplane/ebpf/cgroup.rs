//! The control group of the socket hooks.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

const USUAL: &str = "/sys/fs/cgroup";

/// Returns the mount point of a cgroup2 file system: the usual path, otherwise the first one in
/// mountinfo, such as on hosts with cgroup version 1 beside it.
#[must_use]
pub fn mounted() -> Option<PathBuf> {
    let usual = Path::new(USUAL);
    if is_cgroup(usual) {
        return Some(usual.to_owned());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().filter_map(mount_point).find(|path| is_cgroup(path))
}

/// An open control group and its id.
#[derive(Debug)]
pub struct Cgroup {
    /// The directory.
    pub directory: File,
    /// The kernel's id: the inode of the directory.
    pub id: u64,
}

impl Cgroup {
    /// Opens a directory of a cgroup2 file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory = File::open(path)?;
        if !is_cgroup(path) {
            return Err(io::Error::other("is no directory of a cgroup2 file system"));
        }
        let id = directory.metadata()?.ino();
        Ok(Self { directory, id })
    }
}

/// Returns whether a path has control groups above it: the hooks then miss the sockets of those.
/// The real root has no such file.
#[must_use]
pub fn is_below_others(path: &Path) -> bool {
    path.join("cgroup.type").exists()
}

fn is_cgroup(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| status.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// Returns the mount point in a line of mountinfo if it is a cgroup2 file system. The type is
/// behind a lone dash.
fn mount_point(line: &str) -> Option<PathBuf> {
    let (mount, kind) = line.split_once(" - ")?;
    kind.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_of_a_cgroup2_file_system_is_found_in_its_line() {
        let line = "36 29 0:31 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw";
        assert_eq!(mount_point(line), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("37 29 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"), None);
        assert_eq!(mount_point("nonsense"), None);
    }

    #[test]
    fn a_directory_that_is_no_control_group_is_refused() {
        let error = Cgroup::open(Path::new("/proc")).unwrap_err();
        assert_eq!(error.to_string(), "is no directory of a cgroup2 file system");
        let path = mounted().unwrap();
        assert!(Cgroup::open(&path).unwrap().id > 0);
        assert!(!is_below_others(&path), "the tests run beside the root");
    }
}
