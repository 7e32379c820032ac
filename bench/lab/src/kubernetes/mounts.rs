//! The file systems of a machine: those of its own namespaces, and writable layers over some
//! directories, so that nothing is written to the real ones.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::cgroups::{self, Hierarchy};

/// Directories of the machine that get a writable layer.
const LAYERED: [&str; 4] = ["/etc", "/var/lib", "/var/log", "/opt"];
/// Settings of the kernel that kubelet sets, and that belong to the whole machine. Each gets a file in
/// its place, with the value that kubelet wants.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Mounts everything in this process' own mount namespace.
pub(super) fn mount_all(directory: &Path, hierarchies: &[Hierarchy]) -> Result<()> {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("can't make mounts private")?;
    detach_namespaces()?;
    for name in LAYERED {
        layer(directory, name)?;
    }
    file_system("proc", "/proc")?;
    file_system("sysfs", "/sys")?;
    cgroups::mount(hierarchies)?;
    file_system("bpf", "/sys/fs/bpf")?;
    file_system("tmpfs", "/run")?;
    for directory in ["/run/netns", "/run/lock", "/run/sysctl"] {
        fs::create_dir_all(directory)?;
    }
    for (name, value) in SYSCTLS {
        stand_in(name, value)?;
    }
    // Volumes with the propagation HostToContainer have to be on a shared mount.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none).context("can't share the mounts")
}

/// Lets go of the network namespaces that others have named: they could not end before this machine.
fn detach_namespaces() -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    for path in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
        if path.starts_with("/run/netns/") {
            let _ = umount2(path, MntFlags::MNT_DETACH);
        }
    }
    Ok(())
}

fn layer(directory: &Path, name: &str) -> Result<()> {
    let own = directory.join("layers").join(name.trim_start_matches('/').replace('/', "-"));
    let (upper, work) = (own.join("upper"), own.join("work"));
    for path in [&upper, &work] {
        fs::create_dir_all(path)?;
    }
    let options = format!("lowerdir={name},upperdir={},workdir={}", upper.display(), work.display());
    mount(Some("overlay"), name, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("can't mount a layer over {name}"))
}

fn file_system(kind: &str, target: &str) -> Result<()> {
    mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("can't mount {kind} on {target}"))
}

fn stand_in(name: &str, value: &str) -> Result<()> {
    let target = Path::new("/proc/sys").join(name);
    if !target.exists() {
        return Ok(());
    }
    let file = Path::new("/run/sysctl").join(name.replace('/', "."));
    fs::write(&file, format!("{value}\n"))?;
    mount(Some(&file), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("can't put a file in the place of {}", target.display()))
}
