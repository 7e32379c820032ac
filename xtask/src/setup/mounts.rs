//! File systems.

use anyhow::{Context, Result, bail};

use super::debian::is_root;
use crate::command;
use crate::workspace::Workspace;

/// The mount point of the BPF file system.
pub const BPFFS: &str = "/sys/fs/bpf";

/// Mounts the BPF file system at its usual place, if it is not mounted.
pub fn ensure_bpffs(workspace: &Workspace) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/mounts").context("/proc is not mounted")?;
    if is_mounted(&mounts, BPFFS, "bpf") {
        return Ok(());
    }
    if !is_root()? {
        bail!("the BPF file system is not mounted; as root: mount -t bpf bpf {BPFFS}");
    }
    command::run(workspace.command("mount").args(["-t", "bpf", "bpf", BPFFS]))
}

fn is_mounted(mounts: &str, directory: &str, kind: &str) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some(directory) && fields.next() == Some(kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_recognised_by_directory_and_kind() {
        let mounts = "sysfs /sys sysfs rw 0 0\nbpf /sys/fs/bpf bpf rw,mode=700 0 0\n";
        assert!(is_mounted(mounts, "/sys/fs/bpf", "bpf"));
        assert!(!is_mounted(mounts, "/sys", "bpf"));
        assert!(!is_mounted("tmpfs /sys/fs/bpf tmpfs rw 0 0\n", "/sys/fs/bpf", "bpf"));
    }
}
