//! Leftovers of test beds, and their removal after processes that could not clean up.

use std::fs;
use std::path::{Path, PathBuf};

use super::{cgroup, namespace};

/// The beginning of all names. The process id and a dash follow.
pub(super) const NAMESPACE_PREFIX: &str = "millrace-";
/// The directory of the BPF file system, with the pins of a bed's agents.
const BPFFS: &str = "/sys/fs/bpf";

/// Returns the directory below which the agents of bed `bed` of this process pin their maps and
/// links.
#[must_use]
pub fn bpffs_directory(bed: u32) -> PathBuf {
    Path::new(BPFFS).join(format!("{}{bed}", super::own_prefix()))
}

/// Returns the directory of the pins that this process keeps for later agents.
#[must_use]
pub fn pool_directory() -> PathBuf {
    Path::new(BPFFS).join(format!("{}pool", super::own_prefix()))
}

/// Returns the directory of manifests and logs of bed `bed` of this process.
#[must_use]
pub fn temporary_directory(bed: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{}{bed}", super::own_prefix()))
}

/// Removes the namespaces, pins and directories of test beds whose process has ended.
pub fn remove_leftovers() {
    remove_where(|owner| !Path::new("/proc").join(owner.to_string()).exists());
}

/// Removes the leftovers of this process, for an end without drops.
pub fn remove_own() {
    remove_where(|owner| owner == std::process::id());
}

/// Calls [`remove_own`] when this process exits: statics are not dropped.
pub fn remove_own_at_exit() {
    extern "C" fn remove() {
        remove_own();
    }
    // SAFETY: the handler is a function without arguments, and it does not unwind: it ignores every
    // error.
    unsafe { libc::atexit(remove) };
}

fn remove_where(condemned: impl Fn(u32) -> bool) {
    let cgroups = cgroup::own_directory().unwrap_or_default();
    for (directory, remove) in [
        (Path::new(namespace::DIRECTORY), &namespace::remove as &dyn Fn(&Path)),
        (Path::new(BPFFS), &remove_directory),
        (&cgroups, &cgroup::remove),
        (&std::env::temp_dir(), &remove_directory),
    ] {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name().to_str().and_then(owner_of).is_some_and(&condemned) {
                remove(&entry.path());
            }
        }
    }
}

fn remove_directory(path: &Path) {
    let _ = fs::remove_dir_all(path);
}

/// Returns the process id in `millrace-<pid>-...`.
fn owner_of(name: &str) -> Option<u32> {
    name.strip_prefix(NAMESPACE_PREFIX)?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_process_id_are_the_beds() {
        assert_eq!(owner_of("millrace-12-1-client"), Some(12));
        assert_eq!(owner_of("millrace-bench"), None);
        assert_eq!(owner_of("millrace-x-1"), None);
        assert_eq!(owner_of("other-12-1"), None);
    }
}
