//! What the firewall does on this node, from its pinned maps and links. The command line uses it, whether an agent runs or
//! not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use aya::maps::{Array, HashMap, MapData};
use proxy_common::policy::{NOT_ISOLATED, POLICY_FLAGS, POLICY_OPEN_UNKNOWN, PolicyPod};

use super::links::attached;
use super::maps::{addresses_of, typed};
use super::names::{PodNames, read_names};
use super::owners::{OwnerView, OwnersReader};
use super::paths::{maps_of, root};
use super::side::Side;
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::read::ReadError;
use crate::policy::Direction;

/// The pinned maps and links of the firewall, read only.
#[derive(Clone, Debug)]
pub struct PinnedFirewall {
    root: PathBuf,
}

/// A device that the firewall is on, or that belongs to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Index of the device.
    pub device: u32,
    /// The pod behind it; none if it is not known yet.
    pub pod: Option<PodOnDevice>,
    /// The directions that have a program.
    pub guarded: BTreeSet<Direction>,
}

/// A pod behind a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOnDevice {
    /// Its names.
    pub names: PodNames,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The directions in which policies isolate it.
    pub isolated: BTreeSet<Direction>,
}

/// What the firewall does on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallView {
    /// The devices, by index.
    pub devices: Vec<DeviceView>,
    /// Whether devices whose pod is not known are open: the cluster has no policy.
    pub is_open_to_unknown: bool,
}

/// The names of pods: those behind devices of this node, and those with some addresses on any node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownNames {
    /// `namespace/name`, by device.
    pub by_device: BTreeMap<u32, String>,
    /// The pod of each address.
    pub by_address: BTreeMap<IpAddr, OwnerView>,
}

impl PinnedFirewall {
    /// Finds the firewall below a BPF file system; `None` where it is off.
    pub fn find(bpffs: &Path) -> Result<Option<Self>, ReadError> {
        let root = root(bpffs);
        match fs::symlink_metadata(maps_of(&root).join("POLICY_PODS")) {
            Ok(_) => Ok(Some(Self { root })),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(ReadError::Denied { path: root.display().to_string() })
            }
            Err(_) => Ok(None),
        }
    }

    /// Returns the directory of the maps.
    pub(super) fn maps(&self) -> PathBuf {
        maps_of(&self.root)
    }

    /// Returns the directory of the links.
    pub(super) fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// Returns the directory of the programs of all builds.
    pub(super) fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// Reads what the firewall does.
    pub fn view(&self) -> Result<FirewallView, ReadError> {
        self.read_view().map_err(|error| self.explain(error))
    }

    /// Reads the names of the pods of this node, and of those with these addresses.
    pub fn names(&self, addresses: &BTreeSet<IpAddr>) -> Result<KnownNames, ReadError> {
        self.read_known_names(addresses).map_err(|error| self.explain(error))
    }

    pub(super) fn explain(&self, error: OpenError) -> ReadError {
        if error.is_of_rights() {
            ReadError::Denied { path: self.root.display().to_string() }
        } else {
            error.into()
        }
    }

    fn read_view(&self) -> Result<FirewallView, OpenError> {
        let config: Array<MapData, u32> = typed(&self.maps(), "POLICY_CONFIG")?;
        let failed = |error| OpenError::Map { map: "POLICY_CONFIG".to_owned(), error };
        let flags = config.get(&POLICY_FLAGS, 0).map_err(failed)?;
        let (pods, mut names) = (self.pods()?, read_names(&self.maps())?);
        let mut devices: BTreeMap<u32, DeviceView> = pods
            .into_iter()
            .map(|(device, pod)| {
                let pod = Some(PodOnDevice::of(&pod, names.remove(&device).unwrap_or_default()));
                (device, DeviceView { device, pod, guarded: BTreeSet::new() })
            })
            .collect();
        for (side, device) in attached(&self.links())? {
            let unknown = || DeviceView { device, pod: None, guarded: BTreeSet::new() };
            devices.entry(device).or_insert_with(unknown).guarded.insert(match side {
                Side::From => Direction::Egress,
                Side::To => Direction::Ingress,
            });
        }
        Ok(FirewallView {
            devices: devices.into_values().collect(),
            is_open_to_unknown: flags & POLICY_OPEN_UNKNOWN != 0,
        })
    }

    fn read_known_names(&self, addresses: &BTreeSet<IpAddr>) -> Result<KnownNames, OpenError> {
        let names = read_names(&self.maps())?;
        let text = |names: PodNames| format!("{}/{}", names.namespace, names.name);
        let owners = OwnersReader::open(&self.maps()).ok();
        // Without it, the other pod is an address, and the own one has its name.
        let owner = |address: &IpAddr| Some((*address, owners.as_ref()?.find(*address).ok()??));
        Ok(KnownNames {
            by_device: names.into_iter().map(|(device, names)| (device, text(names))).collect(),
            by_address: addresses.iter().filter_map(owner).collect(),
        })
    }

    fn pods(&self) -> Result<BTreeMap<u32, PolicyPod>, OpenError> {
        let map: HashMap<MapData, u32, PolicyPod> = typed(&self.maps(), "POLICY_PODS")?;
        let failed = |error| OpenError::Map { map: "POLICY_PODS".to_owned(), error };
        map.iter().collect::<Result<_, _>>().map_err(failed)
    }
}

impl PodOnDevice {
    fn of(pod: &PolicyPod, names: PodNames) -> Self {
        let profiles = [(Direction::Ingress, pod.ingress), (Direction::Egress, pod.egress)];
        let isolated = profiles.into_iter().filter(|(_, profile)| *profile != NOT_ISOLATED);
        Self {
            names,
            addresses: addresses_of(pod).collect(),
            isolated: isolated.map(|(direction, _)| direction).collect(),
        }
    }
}

impl KnownNames {
    /// Returns the name of the pod behind a device; empty if it is not known.
    #[must_use]
    pub fn of_device(&self, device: u32) -> &str {
        self.by_device.get(&device).map_or("", String::as_str)
    }

    /// Returns the name of the pod that had an address at a monotonic nanosecond; empty if none is known.
    #[must_use]
    pub fn of_address(&self, address: IpAddr, at: u64) -> &str {
        let owner = self.by_address.get(&address).filter(|owner| owner.since <= at);
        owner.map_or("", |owner| &owner.name)
    }
}
