//! The pod firewall: NetworkPolicies in TC programs on the devices of pods.
//!
//! It has an object, maps, links and a directory of its own, so it works beside each mode of the proxy, and nothing of it
//! exists where it is off. What it has attached goes on when the agent ends.

mod links;
mod maps;
mod plan;
mod pods;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use proxy_common::policy::{LENIENT_SECONDS, NOT_ISOLATED, POLICY_LAYOUT_VERSION, PolicyPod};
use proxy_common::{Addr4, Addr6, Address};
use tracing::info;

pub use maps::Judged;
pub use pods::{Holders, LocalPod};

use self::links::Links;
use self::maps::{Maps, addresses_of};
use self::plan::{Op, Tables};
use self::programs::Programs;
use super::bpffs::{self, Lock, entries, remove_tree};
use super::capability;
use super::error::OpenError;
use super::mount::Mounted;
use crate::node::FarEnd;
use crate::policy::Compiled;

/// The directory of the firewall in a BPF file system, for all versions of its layout.
fn top(bpffs: &Path) -> PathBuf {
    bpffs.join("millrace-firewall")
}

fn root(bpffs: &Path) -> PathBuf {
    top(bpffs).join(format!("v{POLICY_LAYOUT_VERSION}"))
}

/// The firewall of this node. It stays in force when this value is dropped.
#[derive(Debug)]
pub struct Firewall {
    root: PathBuf,
    programs: Programs,
    links: Links,
    maps: Maps,
    /// What the maps hold.
    held: Tables,
    _lock: Lock,
}

/// What the firewall is to do.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The tables.
    pub tables: &'a Compiled,
    /// The tables for the step from the former ones, if these are not enough.
    pub between: Option<&'a Compiled>,
    /// Whether the cluster has any policy.
    pub has_policies: bool,
    /// The monotonic second, its low bits.
    pub now: u32,
    /// The devices of pods, with what is at their other ends.
    pub devices: &'a BTreeMap<u32, FarEnd>,
    /// The pods of this node.
    pub pods: &'a [LocalPod<'a>],
}

/// What has become of a call of [`Firewall::apply`].
#[derive(Debug, Default)]
pub struct Applied {
    /// Changed entries of maps.
    pub writes: usize,
    /// The pods behind the devices.
    pub holders: Holders,
    /// What failed; the caller tries again.
    pub failures: Vec<String>,
}

impl Firewall {
    /// Opens the firewall, or takes over that of an earlier agent.
    pub fn open(bpffs: &Path) -> Result<Self, OpenError> {
        capability::check()?;
        Mounted::at(bpffs)?.keep();
        let root = root(bpffs);
        for directory in [maps_of(&root), root.join("links"), root.join("programs")] {
            make(&directory)?;
        }
        let lock = bpffs::lock(&top(bpffs))?;
        let programs = Programs::open(&maps_of(&root), &root.join("programs"))?;
        let maps = Maps::open(&maps_of(&root))?;
        let held = maps.read()?;
        let links = Links::new(root.join("links"));
        info!(
            pods = held.pods.len(),
            rules = held.rules.len(),
            peers = held.peers.len(),
            "the firewall is there"
        );
        Ok(Self { root, programs, links, maps, held, _lock: lock })
    }

    /// Brings the firewall to these tables and devices.
    ///
    /// Entries come before programs: a pod that is known is not closed for a moment. A device whose pod is not known is
    /// closed as soon as it has programs, unless the cluster has no policy.
    pub fn apply(&mut self, wanted: &Wanted<'_>) -> Applied {
        let former =
            self.held.pods.iter().map(|(device, pod)| (*device, addresses_of(pod).collect())).collect();
        let holders = Holders::find(wanted.devices, wanted.pods, &former);
        let mut applied = Applied { holders, ..Applied::default() };
        if let Err(failure) = self.write(wanted, &mut applied) {
            applied.failures.push(failure);
        }
        let devices: BTreeSet<u32> =
            wanted.devices.keys().filter(|device| !applied.holders.aside.contains(device)).copied().collect();
        match self.links.sync(&devices, &self.programs) {
            Ok(failures) => {
                let explain = |(device, error): (u32, io::Error)| {
                    let name = crate::node::device_name(device).unwrap_or_else(|| format!("device {device}"));
                    format!("{name} has no firewall: {error}")
                };
                applied.failures.extend(failures.into_iter().map(explain));
            }
            Err(error) => applied.failures.push(error.to_string()),
        }
        if applied.failures.is_empty()
            && let Err(error) = programs::remove_former(&self.root.join("programs"))
        {
            applied.failures.push(error.to_string());
        }
        applied
    }

    /// Writes entries, in order. The first failure ends it: what comes later would count on what failed.
    fn write(&mut self, wanted: &Wanted<'_>, applied: &mut Applied) -> Result<(), String> {
        let pods = self.pods(wanted, &applied.holders)?;
        let between = wanted.between.map(|between| Tables::of(between, pods.clone(), wanted.has_policies));
        let tables = Tables::of(wanted.tables, pods, wanted.has_policies);
        for op in self.held.changes_to(between.as_ref(), &tables) {
            self.maps.apply(op)?;
            self.held.apply(op);
            applied.writes += usize::from(op != Op::Generation);
        }
        Ok(())
    }

    /// Returns the values of POLICY_PODS.
    fn pods(&mut self, wanted: &Wanted<'_>, holders: &Holders) -> Result<BTreeMap<u32, PolicyPod>, String> {
        let addresses: BTreeMap<_, _> = wanted.pods.iter().copied().collect();
        let mut last = self.maps.last_epoch().map_err(|error| error.to_string())?;
        // With new maps, all pods may have connections. Later, a new pod has none.
        let is_first = last == 0;
        let mut pods = BTreeMap::new();
        for (device, name) in &holders.pods {
            let Some(addresses) = addresses.get(name) else { continue };
            let (address4, address6) = words(addresses);
            let former = self.held.pods.get(device);
            let epoch = match former.filter(|pod| (pod.address4, pod.address6) == (address4, address6)) {
                Some(former) => former.epoch,
                None => {
                    last = last.checked_add(1).unwrap_or(1);
                    self.maps.set_last_epoch(last)?;
                    last
                }
            };
            let selected = wanted.tables.pods.get(name);
            let ingress = selected.and_then(|pod| pod.ingress).unwrap_or(NOT_ISOLATED);
            let egress = selected.and_then(|pod| pod.egress).unwrap_or(NOT_ISOLATED);
            let former = former.copied().filter(|former| former.epoch == epoch);
            let isolates = |before: u32, now: u32| before == NOT_ISOLATED && now != NOT_ISOLATED;
            let lenient_until = match former {
                Some(former) if !isolates(former.ingress, ingress) && !isolates(former.egress, egress) => {
                    former.lenient_until
                }
                None if !is_first => 0,
                _ => wanted.now.wrapping_add(LENIENT_SECONDS).max(1),
            };
            pods.insert(*device, PolicyPod { address4, address6, ingress, egress, epoch, lenient_until });
        }
        Ok(pods)
    }

    /// Returns the number of pods with an entry, and of entries for peers and rules.
    #[must_use]
    pub fn sizes(&self) -> [usize; 3] {
        [self.held.pods.len(), self.held.peers.len(), self.held.rules.len()]
    }
}

/// Reads how many packets the firewall judged; `None` where it is off.
pub fn judged(bpffs: &Path) -> Result<Option<Judged>, OpenError> {
    let directory = maps_of(&root(bpffs));
    if !directory.join(maps::COUNTERS).exists() {
        return Ok(None);
    }
    maps::read_counters(&directory).map(Some)
}

/// Removes the firewall of every version of its layout. Returns the removed pins; none where there is none.
pub fn remove(bpffs: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let (top, mut removed) = (top(bpffs), Vec::new());
    if !top.exists() {
        return Ok(removed);
    }
    let _lock = bpffs::lock(&top)?;
    for root in entries(&top)? {
        Links::remove_all(&root.join("links"))?;
    }
    remove_tree(&top, &mut removed)?;
    Ok(removed)
}

fn maps_of(root: &Path) -> PathBuf {
    root.join("maps")
}

fn make(path: &Path) -> Result<(), OpenError> {
    std::fs::create_dir_all(path).map_err(|error| OpenError::File { path: path.to_owned(), error })
}

/// Returns a pod's address of each family; zeros if it has none.
fn words(addresses: &BTreeSet<IpAddr>) -> ([u32; 1], [u32; 4]) {
    let v4 = addresses.iter().find_map(|address| Addr4::from_ip(*address)).unwrap_or_default();
    let v6 = addresses.iter().find_map(|address| Addr6::from_ip(*address)).unwrap_or_default();
    (v4.0, v6.0)
}
