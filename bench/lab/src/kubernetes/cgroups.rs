//! A control group for each machine, in every hierarchy.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};

use super::plan::Plan;

/// The mount point of control groups.
const ROOT: &str = "/sys/fs/cgroup";
/// The group of a machine's own processes, where only the second version is in use. It allows no
/// processes in a group with groups below it.
const INIT: &str = "init";

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    mount: PathBuf,
    kind: String,
    /// The options of the file system that name its controllers.
    options: String,
}

/// Moves this process into the group of a machine, which becomes the root of its control groups.
/// Returns the hierarchies, to be mounted.
pub(super) fn enter(cluster: &str, machine: &str) -> Result<Vec<Hierarchy>> {
    let hierarchies = hierarchies(&fs::read_to_string("/proc/self/mountinfo")?);
    for hierarchy in &hierarchies {
        let group = hierarchy.mount.join(group_of(cluster)).join(machine);
        for level in [hierarchy.mount.join(group_of(cluster)), group.clone()] {
            make(&level, hierarchy)?;
        }
        move_into(&group)?;
    }
    unshare(CloneFlags::CLONE_NEWCGROUP).context("can't make a namespace of control groups")?;
    for leaf in leaves(&hierarchies, cluster, machine) {
        fs::create_dir_all(&leaf)?;
        move_into(&leaf)?;
    }
    Ok(hierarchies)
}

/// Returns the files that take the id of a process into the groups of a machine.
pub(super) fn entrances(cluster: &str, machine: &str) -> Result<Vec<PathBuf>> {
    let hierarchies = hierarchies(&fs::read_to_string("/proc/self/mountinfo")?);
    Ok(leaves(&hierarchies, cluster, machine).into_iter().map(|leaf| leaf.join("cgroup.procs")).collect())
}

/// Returns the groups of a machine's own processes.
fn leaves(hierarchies: &[Hierarchy], cluster: &str, machine: &str) -> Vec<PathBuf> {
    let group = |hierarchy: &Hierarchy| hierarchy.mount.join(group_of(cluster)).join(machine);
    match hierarchies {
        [only] if only.kind == "cgroup2" => vec![group(only).join(INIT)],
        several => several.iter().map(group).collect(),
    }
}

/// Mounts the hierarchies at their usual places, with this process' group as their root.
pub(super) fn mount(hierarchies: &[Hierarchy]) -> Result<()> {
    if hierarchies.iter().all(|hierarchy| hierarchy.mount != Path::new(ROOT)) {
        mount_one("tmpfs", Path::new(ROOT), "tmpfs", "mode=755")?;
    }
    for hierarchy in hierarchies {
        fs::create_dir_all(&hierarchy.mount)?;
        mount_one("cgroup", &hierarchy.mount, &hierarchy.kind, &hierarchy.options)?;
    }
    Ok(())
}

/// Removes the groups of a cluster.
pub(super) fn remove(cluster: &str) -> Result<()> {
    for hierarchy in hierarchies(&fs::read_to_string("/proc/self/mountinfo")?) {
        let group = hierarchy.mount.join(group_of(cluster));
        if group.exists() {
            super::wait("control groups of ended processes", std::time::Duration::from_secs(20), || {
                remove_tree(&group)
            })?;
        }
    }
    Ok(())
}

fn group_of(cluster: &str) -> String {
    Plan::prefix(cluster).trim_end_matches('-').to_owned()
}

/// Makes a group that can have processes and, in the second version, controllers.
fn make(group: &Path, hierarchy: &Hierarchy) -> Result<()> {
    fs::create_dir_all(group).with_context(|| format!("can't make {}", group.display()))?;
    let parent = group.parent().unwrap_or(group);
    if hierarchy.kind == "cgroup2" {
        // A controller that belongs to another hierarchy, or that the kernel lacks, is refused.
        for controller in ["cpu", "cpuset", "memory", "pids", "io"] {
            let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        return Ok(());
    }
    // A new cpuset of the first version is empty, and takes no process before it is filled.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(parent.join(file)) {
            fs::write(group.join(file), value.trim())
                .with_context(|| format!("can't fill {} of {}", file, group.display()))?;
        }
    }
    Ok(())
}

fn move_into(group: &Path) -> Result<()> {
    let processes = group.join("cgroup.procs");
    fs::write(&processes, "0").with_context(|| format!("can't write to {}", processes.display()))
}

fn mount_one(source: &str, target: &Path, kind: &str, options: &str) -> Result<()> {
    let options = Some(options).filter(|options| !options.is_empty());
    nix::mount::mount(Some(source), target, Some(kind), MsFlags::empty(), options)
        .with_context(|| format!("can't mount {kind} on {}", target.display()))
}

fn remove_tree(group: &Path) -> Result<()> {
    for entry in fs::read_dir(group)?.flatten() {
        if entry.path().is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(group).with_context(|| format!("can't remove {}", group.display()))
}

/// Returns the hierarchies below [`ROOT`] of a mountinfo.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    mountinfo.lines().filter_map(hierarchy).collect()
}

fn hierarchy(line: &str) -> Option<Hierarchy> {
    let (mount, kind) = line.split_once(" - ")?;
    let path = Path::new(mount.split(' ').nth(4)?);
    let mut fields = kind.split(' ');
    let kind = fields.next().filter(|kind| ["cgroup", "cgroup2"].contains(kind))?;
    let options = fields.nth(1).unwrap_or_default().split(',');
    let general = ["rw", "ro", "nsdelegate", "memory_recursiveprot", "memory_localevents", "favordynmods"];
    let options: Vec<&str> = options.filter(|option| !general.contains(option)).collect();
    path.starts_with(ROOT).then(|| Hierarchy {
        mount: path.to_owned(),
        kind: kind.to_owned(),
        options: options.join(","),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found_with_their_controllers() {
        let text = "30 29 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                    31 29 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                    32 29 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n\
                    33 29 0:29 / /sys rw - sysfs sysfs rw\n";
        let found: Vec<_> = hierarchies(text).into_iter().map(|found| (found.kind, found.options)).collect();
        let expected = [("cgroup", "cpu,cpuacct"), ("cgroup", "name=systemd"), ("cgroup2", "")];
        assert_eq!(found, expected.map(|(kind, options)| (kind.to_owned(), options.to_owned())));
    }
}
