//! Other data planes of Millrace on this node. The programs of an agent with another `--bpffs-path`
//! stay attached after its end and serve beside ours.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use aya::maps::MapInfo;
use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType};
use nix::net::if_::if_nameindex;
use serde::Serialize;
use tracing::{debug, warn};

use super::bpffs::{entries, is_of_this_namespace};
use super::hooks::SocketHook;
use super::layout::Layout;
use super::link::{self, LinkKey};
use super::lock_owner;
use super::mount;
use super::sys;
use crate::node::device_name;

/// The depth of the search for agents' directories below the root of a BPF file system.
const DEPTH: usize = 5;
/// The directory of an agent below its `--bpffs-path`.
const DIRECTORY: &str = "millrace";
/// A map of all our packet programs: other software may have programs of the same names.
const MAP: &str = "FRONTENDS4";
const NAMES: [&str; 6] =
    ["tc_ingress", "tc_egress", "tc_pod_in", "tc_pod_out", "tc_ingress_l3", "tc_egress_l3"];

/// A program of another data plane.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OtherView {
    /// The `--bpffs-path` of its agent; `None` without a visible pin.
    pub bpffs_path: Option<PathBuf>,
    /// Name of the device, or `cgroup`.
    pub device: String,
    /// The hook of the program.
    pub hook: String,
    /// The kernel's id of the program; 0 for a filter of clsact.
    pub program_id: u32,
    /// The agent's process, if one runs and is visible.
    pub process: Option<u32>,
}

/// Returns all programs on devices of this network namespace that are not pinned below
/// `bpffs_path`, sorted.
#[must_use]
pub fn others(bpffs_path: &Path) -> Vec<OtherView> {
    let own = Layout::new(bpffs_path).top();
    let mut found = Vec::new();
    for mounted in mount::bpf_file_systems() {
        find(&mounted, DEPTH, &mut found);
    }
    let (ours, theirs): (Vec<PathBuf>, Vec<PathBuf>) = found.into_iter().partition(|path| same(path, &own));
    let (ours, mut known) = (pinned_in(&ours), pinned_in(&theirs));
    let in_sight: BTreeSet<u32> = known.iter().chain(&ours).map(|view| view.program_id).collect();
    known.extend(attached().into_iter().filter(|view| !in_sight.contains(&view.program_id)));
    known.into_iter().collect()
}

fn pinned_in(directories: &[PathBuf]) -> BTreeSet<OtherView> {
    let roots = directories.iter().flat_map(|directory| entries(directory).unwrap_or_default());
    roots.flat_map(|root| pinned(&root)).collect()
}

/// Warns of other data planes, once for each.
pub fn warn_of_others(bpffs_path: &Path) {
    let others = others(bpffs_path);
    let paths: BTreeSet<&Option<PathBuf>> = others.iter().map(|other| &other.bpffs_path).collect();
    for path in paths {
        let programs = others.iter().filter(|other| other.bpffs_path == *path);
        let programs: Vec<String> =
            programs.map(|other| format!("{} on {}", other.hook, other.device)).collect();
        let programs = programs.join(", ");
        let Some(path) = path else {
            warn!(
                programs,
                "another data plane of Millrace serves this node, too, without visible pins; stop its agent \
                 and the container that mounted its BPF file system"
            );
            continue;
        };
        let process = owner(path);
        let path = path.display();
        warn!(
            programs,
            process,
            "another data plane of Millrace serves this node, too; stop its agent, if one runs, then run \
             `millrace cleanup --bpffs-path {path}`"
        );
    }
}

/// Returns the process of the agent that has locked its directory below `bpffs_path`.
#[must_use]
pub fn owner(bpffs_path: &Path) -> Option<u32> {
    lock_owner::of_file(&File::open(bpffs_path.join(DIRECTORY)).ok()?)
}

/// Finds the directories of agents at `directory` or below.
fn find(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for path in entries(directory).unwrap_or_default() {
        if !fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            continue;
        }
        if path.file_name().is_some_and(|name| name == DIRECTORY) {
            found.push(path);
        } else if depth > 1 {
            find(&path, depth - 1, found);
        }
    }
}

/// Returns whether two paths are one directory, which may be mounted in several places.
fn same(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let place = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    place(one).is_some_and(|found| Some(found) == place(other))
}

/// Returns the programs pinned below the directory of one layout version, if it belongs to this
/// network namespace.
fn pinned(root: &Path) -> Vec<OtherView> {
    let is_ours = is_of_this_namespace(root).unwrap_or(false);
    let links = if is_ours { entries(&root.join("links")).unwrap_or_default() } else { Vec::new() };
    let bpffs_path = root.parent().and_then(Path::parent).map(Path::to_owned);
    let process = bpffs_path.as_deref().and_then(owner);
    links
        .iter()
        .filter_map(|path| view(path))
        .map(|view| OtherView { bpffs_path: bpffs_path.clone(), process, ..view })
        .collect()
}

/// Returns the program that a pin attaches, unless its device is gone.
fn view(path: &Path) -> Option<OtherView> {
    if let Some(hook) = SocketHook::of_pin(path) {
        let info = sys::cgroup_link_info(sys::obj_get(path).ok()?.as_fd()).ok()?;
        let (device, hook) = ("cgroup".to_owned(), hook.name.to_owned());
        return (info.cgroup != 0).then_some(OtherView {
            bpffs_path: None,
            device,
            hook,
            program_id: info.program_id,
            process: None,
        });
    }
    let key = LinkKey::parse(path.file_name()?.to_str()?)?;
    let program_id = if path.is_dir() { 0 } else { link::program_id(key, path.parent()?).ok()?? };
    let (device, hook) = (device_name(key.device)?, key.kind.name().to_owned());
    Some(OtherView { bpffs_path: None, device, hook, program_id, process: None })
}

/// Returns our programs on the devices of this network namespace. Kernels before 6.6 can't list
/// them.
fn attached() -> Vec<OtherView> {
    let mut views = Vec::new();
    let Ok(devices) = if_nameindex() else { return views };
    for device in &devices {
        let device = device.name().to_string_lossy();
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            match SchedClassifier::query_tcx(&device, direction) {
                Ok((_, programs)) => views.extend(programs.iter().filter_map(|info| named(info, &device))),
                Err(error) => debug!(%device, %error, "listing the programs of the device failed"),
            }
        }
    }
    views
}

fn named(info: &ProgramInfo, device: &str) -> Option<OtherView> {
    let hook = info.name_as_str().filter(|name| NAMES.contains(name))?.to_owned();
    let maps = info.map_ids().ok()??;
    let is_frontends = |id: u32| MapInfo::from_id(id).is_ok_and(|map| map.name_as_str() == Some(MAP));
    let program_id = info.id();
    maps.into_iter().any(is_frontends).then(|| OtherView {
        bpffs_path: None,
        device: device.to_owned(),
        hook,
        program_id,
        process: None,
    })
}
