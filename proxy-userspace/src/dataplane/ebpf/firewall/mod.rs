//! The pod firewall: NetworkPolicies in TC programs on the devices of pods.
//!
//! It has an object, maps, links and a directory of its own, and nothing of it
//! exists where it is off. What it has attached goes on when the agent ends.

mod dry_run;
mod events;
mod links;
mod lookups;
mod maps;
mod names;
mod new_devices;
mod owners;
mod paths;
mod plan;
mod pods;
mod programs;
mod read;
mod side;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use proxy_common::policy::{LENIENT_SECONDS, NOT_ISOLATED, POLICY_OPEN_UNKNOWN, PolicyName, PolicyPod};
use proxy_common::{Addr4, Addr6, Address};
use tracing::{info, warn};

pub use dry_run::{Crossing, PolicyDryRun, PolicyKey, PolicyRan, PolicyRunError};
pub use events::{DropRecorder, RecordedDrops};
pub use lookups::{PolicyFamily, PolicyLookups, PolicyTables};
pub use maps::Judged;
pub use names::{PodNames, PolicyNames};
pub use new_devices::{NAME as NEW_DEVICES, NewDevicesView};
pub use owners::OwnerView;
pub use pods::Holders;
pub use read::{DeviceView, FirewallView, KnownNames, PinnedFirewall, PodOnDevice};

use self::links::Links;
use self::maps::{Maps, addresses_of};
use self::names::Names;
use self::new_devices::NewDevices;
use self::owners::Owners;
use self::paths::{maps_of, root, top};
use self::plan::{Op, Tables};
use self::programs::Programs;
use super::bpffs::{self, Lock, entries, remove_tree};
use super::capability;
use super::error::OpenError;
use super::layout::NAMESPACES;
use super::mount::Mounted;
use crate::node::{DevicePattern, FarEnd};
use crate::policy::{Compiled, Index, LocalPod, NamespacedName, PodView, Step};

/// The firewall of this node. It stays in force when this value is dropped.
#[derive(Debug)]
pub struct Firewall {
    root: PathBuf,
    programs: Programs,
    links: Links,
    maps: Maps,
    /// What the maps hold.
    held: Tables,
    /// `metadata.uid` of the pods behind devices, as far as this agent has seen them.
    uids: BTreeMap<u32, String>,
    names: Names,
    owners: Owners,
    /// The addresses of nodes in the tables; `None` if the last change was not written to its end.
    nodes: Option<BTreeSet<IpAddr>>,
    /// Whether programs of an earlier agent may be pinned that nothing runs any more.
    has_former: bool,
    /// None if the kernel has no nftables.
    new_devices: Option<NewDevices>,
    _lock: Lock,
}

/// What the firewall is to do.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The tables.
    pub tables: &'a Compiled,
    /// The tables between the former ones and these, if these are not enough.
    pub between: Option<&'a Compiled>,
    /// What the tables differ in from the former ones, if that is known. It counts if the former ones were written.
    pub step: Option<&'a Step>,
    /// Whether the cluster has any policy.
    pub has_policies: bool,
    /// The monotonic second, its low bits.
    pub now: u32,
    /// The devices of pods, with what is at their other ends.
    pub devices: &'a BTreeMap<u32, FarEnd>,
    /// Devices that are no pods'.
    pub others: &'a BTreeSet<u32>,
    /// The pods of this node.
    pub pods: &'a [LocalPod<'a>],
    /// The addresses of all nodes, and this node's link-local ones.
    pub nodes: &'a BTreeSet<IpAddr>,
    /// The same pods with their policies, for people.
    pub views: &'a BTreeMap<&'a NamespacedName, PodView<'a>>,
    /// All pods of the cluster, for people. The tables must be of the same objects.
    pub index: &'a Index,
}

/// The devices of this node, by what the firewall does with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Those of pods, which have the programs.
    pub guarded: BTreeSet<u32>,
    /// Those of pods that are none of the firewall's: they are detached from.
    pub aside: BTreeSet<u32>,
    /// The others that were looked at.
    pub others: BTreeSet<u32>,
}

/// What has become of a call of [`Firewall::apply`].
#[derive(Debug, Default)]
pub struct Applied {
    /// Changed entries of maps.
    pub writes: usize,
    /// Whether the maps have the wanted tables.
    pub is_written: bool,
    /// The pods behind the devices.
    pub holders: Holders,
    /// What failed; the caller tries again.
    pub failures: Vec<String>,
}

impl Applied {
    fn count(&mut self, written: Result<usize, String>) {
        match written {
            Ok(writes) => self.writes += writes,
            Err(failure) => self.failures.push(failure),
        }
    }
}

impl Firewall {
    /// Opens the firewall, or takes over that of an earlier agent. New devices with one of these names are closed.
    pub fn open(bpffs: &Path, names_of_devices: &[DevicePattern]) -> Result<Self, OpenError> {
        capability::check()?;
        Mounted::at(bpffs)?.keep();
        let root = root(bpffs);
        make(&top(bpffs))?;
        let lock = bpffs::lock(&top(bpffs))?;
        if !bpffs::is_of_this_namespace(&root)? {
            return Err(OpenError::OtherNamespace { path: root.join(NAMESPACES) });
        }
        let namespace = root.join(NAMESPACES).join(bpffs::namespace()?.to_string());
        for directory in [maps_of(&root), root.join("links"), root.join("programs"), namespace] {
            make(&directory)?;
        }
        let programs = Programs::open(&maps_of(&root), &root.join("programs"))?;
        let maps = Maps::open(&maps_of(&root))?;
        let held = maps.read()?;
        let names = Names::open(&maps_of(&root))?;
        let owners = Owners::open(&maps_of(&root))?;
        let links = Links::new(root.join("links"));
        let new_devices = NewDevices::open(names_of_devices);
        if let Err(error) = &new_devices {
            warn!(%error, "new devices are open until they have their programs: the kernel has no nftables");
        }
        let [pods, peers, rules] = [held.pods.len(), held.peers.len(), held.rules.len()];
        info!(pods, peers, rules, "the firewall is there");
        Ok(Self {
            root,
            programs,
            links,
            maps,
            held,
            uids: BTreeMap::new(),
            names,
            owners,
            nodes: None,
            has_former: true,
            new_devices: new_devices.ok(),
            _lock: lock,
        })
    }

    /// Attaches the programs to devices of pods that are not known yet. They are closed from then on, unless the cluster
    /// has no policy. The others pass without.
    ///
    /// It does nothing before the first tables were written: then, the pods are older than the firewall.
    pub fn guard(&mut self, devices: &BTreeSet<u32>, others: &BTreeSet<u32>) -> Vec<String> {
        if !self.maps.last_epoch().is_ok_and(|last| last > 0) {
            return Vec::new();
        }
        let failures = self.links.attach_all(devices, &self.programs);
        if let Some(new_devices) = &mut self.new_devices {
            let failed: BTreeSet<u32> = failures.iter().map(|(device, _)| *device).collect();
            new_devices.pass(&devices.difference(&failed).chain(others).copied().collect());
        }
        failures.into_iter().map(explain).collect()
    }

    /// Brings the firewall to these tables and devices.
    ///
    /// Entries come before programs: a pod that is known is not closed for a moment.
    pub fn apply(&mut self, wanted: &Wanted<'_>) -> Applied {
        let former =
            self.held.pods.iter().map(|(device, pod)| (*device, addresses_of(pod).collect())).collect();
        let holders = Holders::find(wanted.devices, wanted.pods, &former);
        let mut applied = Applied { holders, ..Applied::default() };
        // A pod has its name as long as it has its entry.
        let names = names_of(&applied.holders, wanted);
        applied.count(self.names.write(&names));
        match self.write(wanted, &mut applied) {
            Ok(()) => applied.is_written = true,
            Err(failure) => applied.failures.push(failure),
        }
        applied.count(self.names.retain(&names));
        let failures = self.attach(&applied.holders.devices(wanted.devices, wanted.others));
        applied.failures.extend(failures);
        // Last, because nothing waits for them.
        applied.writes += self.owners.write(wanted.index, wanted.tables, wanted.step);
        applied
    }

    /// Attaches the programs to devices, and detaches them from those that are gone or set aside. New devices are closed until
    /// they are among these.
    pub fn attach(&mut self, devices: &Devices) -> Vec<String> {
        let Devices { guarded, aside, others } = devices;
        let mut passing: BTreeSet<u32> = guarded | &(aside | others);
        let mut failures: Vec<String> = match self.links.sync(guarded, aside, &self.programs) {
            Ok(failures) => {
                passing.retain(|device| failures.iter().all(|(failed, _)| failed != device));
                failures.into_iter().map(explain).collect()
            }
            Err(error) => {
                passing = aside | others;
                vec![error.to_string()]
            }
        };
        if let Some(new_devices) = &mut self.new_devices {
            let is_open = self.held.flags & POLICY_OPEN_UNKNOWN != 0;
            failures.extend(if is_open { new_devices.open_all() } else { new_devices.close(&passing) });
        }
        if failures.is_empty() && self.has_former {
            match programs::remove_former(&self.root.join("programs")) {
                Ok(()) => self.has_former = false,
                Err(error) => failures.push(error.to_string()),
            }
        }
        failures
    }

    /// Writes entries, in order. The first failure ends it: what comes later would count on what failed.
    fn write(&mut self, wanted: &Wanted<'_>, applied: &mut Applied) -> Result<(), String> {
        let stored = self.maps.last_epoch().map_err(|error| error.to_string())?;
        let (pods, last) = self.pods(wanted, &applied.holders, stored);
        let ops = self.ops(wanted, pods);
        self.nodes = None;
        for op in ops {
            if let Err(error) = self.maps.apply(op) {
                // What is written already is in force for all connections.
                let _ = self.maps.apply(Op::Generation);
                return Err(error);
            }
            self.held.apply(op);
            applied.writes += usize::from(op != Op::Generation);
        }
        if last != stored {
            // Behind the pods: until then, an agent that starts anew takes the maps for new ones.
            self.maps.set_last_epoch(last)?;
        }
        let uids: BTreeMap<_, _> = wanted.pods.iter().map(|pod| (pod.name, pod.uid)).collect();
        let behind = |(device, name): (&u32, &NamespacedName)| Some((*device, (*uids.get(name)?).to_owned()));
        self.uids = applied.holders.pods.iter().filter_map(behind).collect();
        self.nodes = Some(wanted.nodes.clone());
        Ok(())
    }

    /// Returns the changes to the wanted tables.
    fn ops(&self, wanted: &Wanted<'_>, pods: BTreeMap<u32, PolicyPod>) -> Vec<Op> {
        if let (Some(step), Some(nodes)) = (wanted.step, &self.nodes) {
            return self.held.changes_of_step(step, wanted.tables, &pods, [nodes, wanted.nodes]);
        }
        let of = |tables, pods| Tables::of(tables, pods, wanted.nodes, wanted.has_policies);
        let between = wanted.between.map(|between| of(between, pods.clone()));
        self.held.changes_to(between.as_ref(), &of(wanted.tables, pods))
    }

    /// Returns the values of POLICY_PODS, and the last epoch that was given; `last` was the last one before.
    fn pods(&self, wanted: &Wanted<'_>, holders: &Holders, mut last: u32) -> (BTreeMap<u32, PolicyPod>, u32) {
        let by_name: BTreeMap<_, _> = wanted.pods.iter().map(|pod| (pod.name, pod)).collect();
        // With new maps, all pods may have connections. Later, a new pod has none.
        let is_first = last == 0;
        let mut pods = BTreeMap::new();
        for (device, name) in &holders.pods {
            let Some(pod) = by_name.get(name) else { continue };
            let (address4, address6) = words(pod.addresses);
            let is_same = |former: &&PolicyPod| {
                (former.address4, former.address6) == (address4, address6)
                    && self.uids.get(device).is_none_or(|uid| uid == pod.uid)
            };
            let former = self.held.pods.get(device).filter(is_same);
            let epoch = former.map_or_else(
                || {
                    last = last.checked_add(1).unwrap_or(1);
                    last
                },
                |former| former.epoch,
            );
            let selected = wanted.tables.pods.get(name);
            let ingress = selected.and_then(|pod| pod.ingress).unwrap_or(NOT_ISOLATED);
            let egress = selected.and_then(|pod| pod.egress).unwrap_or(NOT_ISOLATED);
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
        (pods, last)
    }

    /// Returns the devices whose pod is known.
    #[must_use]
    pub fn known(&self) -> BTreeSet<u32> {
        self.held.pods.keys().copied().collect()
    }

    /// Returns the number of pods with an entry, and of entries for peers and rules.
    #[must_use]
    pub fn sizes(&self) -> [usize; 3] {
        [self.held.pods.len(), self.held.peers.len(), self.held.rules.len()]
    }
}

fn explain((device, error): (u32, io::Error)) -> String {
    format!("{} has no firewall: {error}", PolicyLookups::device_name(device))
}

/// Reads how many packets the firewall judged; `None` where it is off.
pub fn judged(bpffs: &Path) -> Result<Option<Judged>, OpenError> {
    let directory = maps_of(&root(bpffs));
    if !directory.join(maps::COUNTERS).exists() {
        return Ok(None);
    }
    maps::read_counters(&directory).map(Some)
}

/// Removes the rules that close new devices.
pub fn open_new_devices() -> Result<(), OpenError> {
    new_devices::remove().map_err(OpenError::Nftables)
}

/// Removes the firewall of every version of its layout. Returns the removed pins; none where there is none.
pub fn remove(bpffs: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let (top, mut removed) = (top(bpffs), Vec::new());
    if !top.exists() {
        // No question to nftables: it would load the module.
        return Ok(removed);
    }
    let _lock = bpffs::lock(&top)?;
    let opened = open_new_devices();
    for root in entries(&top)? {
        Links::remove_all(&root.join("links"))?;
    }
    remove_tree(&top, &mut removed)?;
    opened.map(|()| removed)
}

/// Returns the values of POLICY_NAMES.
fn names_of(holders: &Holders, wanted: &Wanted<'_>) -> BTreeMap<u32, PolicyName> {
    let name = |(device, pod): (&u32, &NamespacedName)| {
        Some((*device, PodNames::of(wanted.views.get(pod)?, wanted.tables.pods.get(pod)).encode()))
    };
    holders.pods.iter().filter_map(name).collect()
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
