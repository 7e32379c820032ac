//! The plan of the eBPF data plane for a desired state: its writes in order, and the maps after
//! them.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use millrace::dataplane::ebpf::plan::{
    BackendEntry, BackendId, Capacities, Change, Found, FrontendAt, Kernel, Plan, RangeAt,
};
use millrace::model::{Desired, Dirty};
use millrace::node::Topology;
use proxy_common::addr::unmapped;
use proxy_common::backend::{BACKEND_EXISTS, BACKEND_LOCAL, BACKEND_READY, BACKEND_SERVING};
use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_DSR, FRONTEND_DSR_ENDS, FRONTEND_INSIDE_ONLY, FRONTEND_LOCAL,
    FRONTEND_NODE_ONLY, FRONTEND_SOURCE_RANGES, FRONTEND_WAS_CLUSTER, Frontend, SCOPE_ENCAPSULATED,
    SCOPE_EXTERNAL,
};
use proxy_common::hop::{DEVICE_XDP, Device};
use proxy_common::selection::{
    BackendRef, HINT_MEMBER, HINT_POD, SERVICE_ELSEWHERE, SERVICE_FORMER, SERVICE_MAGLEV, ServiceEntry, Slot,
};
use proxy_common::source_range::{CLUSTER, NEAR};
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL};
use proxy_common::way::{PEER_NODE, PEER_SELF, PEER_WAY_SHIFT, WAY_RESOLVED, WAY_VALID, WAY_XDP, Way};
use proxy_common::{Addr4, Addr6, Address};

const CAPACITIES: Capacities =
    Capacities { services: 64, slots: 1024, backends_v4: 64, backends_v6: 64, ways: 16 };

/// A plan and maps that were empty at first.
pub struct Maps {
    plan: Plan,
    kernel: Recorder,
}

impl Maps {
    pub fn new() -> Self {
        let plan = Plan::adopt(CAPACITIES, Found::default(), Duration::ZERO);
        Self { plan, kernel: Recorder::default() }
    }
    /// Brings the maps to `desired`.
    pub fn sync(&mut self, desired: &Desired, dirty: &Dirty, now: Duration) {
        // There are no flows for which an id would wait.
        self.plan.entries_removed(self.plan.ids_to_reclaim(now));
        let report = self.plan.sync(desired, dirty, now, &mut self.kernel);
        assert!(report.is_complete(), "{report:?}");
    }
    pub fn set_topology(&mut self, topology: &Topology, now: Duration) {
        let native = topology.devices.keys().copied().collect();
        let report = self.plan.set_topology(topology, &native, now, &mut self.kernel);
        assert!(report.is_complete(), "{report:?}");
    }
    /// Returns the writes since the last call, in order.
    pub fn take_writes(&mut self) -> String {
        std::mem::take(&mut self.kernel.writes)
    }
    /// Returns the content of the maps.
    pub fn dump(&self) -> String {
        let mut out = String::new();
        for (place, value) in &self.kernel.entries {
            writeln!(out, "{place}: {value}").unwrap();
        }
        out
    }
}

/// An entry of a map. The order is that of the dump.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Frontend(FrontendAt),
    Range(RangeAt),
    Name(u32),
    Service(u32),
    Slot(u32),
    Backend(BackendId),
    Hint(u32, u32),
    Way(u32),
    Peer(IpAddr),
    Vip(IpAddr),
    Device(u32),
}

/// Maps that accept every write.
#[derive(Default)]
struct Recorder {
    entries: BTreeMap<Place, String>,
    writes: String,
}

impl Kernel for Recorder {
    fn apply(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::ClearSlots(extent) => {
                // A slice's spare slots may never have been written.
                let slots = (extent.offset..extent.offset + extent.length).map(Place::Slot);
                let written: Vec<_> = slots.filter(|slot| self.entries.contains_key(slot)).collect();
                for slot in written {
                    self.remove(slot);
                }
            }
            Change::RemoveName(id) => self.remove(Place::Name(*id)),
            Change::Way(id, value) => self.write(Place::Way(*id), way(value)),
            Change::Backend(id, entry) => self.write(Place::Backend(*id), backend(entry)),
            Change::Slots { words, .. } => {
                for (index, word) in words {
                    self.write(Place::Slot(*index), slot(*word));
                }
            }
            Change::Service(id, entry) => self.write(Place::Service(*id), service(*entry)),
            Change::Name(id, name) => {
                self.write(Place::Name(*id), name.text().unwrap_or_default().to_owned());
            }
            Change::Hint(key, owner) => self.write(Place::Hint(key.service, key.hint), reference(*owner)),
            Change::RemoveHint(key) => self.remove(Place::Hint(key.service, key.hint)),
            Change::Peer(address, bits) => {
                let kinds = flags(*bits, &[(PEER_NODE, "node"), (PEER_SELF, "self")]);
                let way = match bits >> PEER_WAY_SHIFT {
                    0 => String::new(),
                    way => format!(", way {way}"),
                };
                self.write(Place::Peer(*address), kinds + &way);
            }
            Change::RemovePeer(address) => self.remove(Place::Peer(*address)),
            Change::Vip(address, bits) => {
                let names = [(VIP_CLUSTER_IP, "cluster ip"), (VIP_EXTERNAL, "external")];
                self.write(Place::Vip(*address), flags(*bits, &names));
            }
            Change::RemoveVip(address) => self.remove(Place::Vip(*address)),
            Change::Device(index, device) => self.write(Place::Device(*index), self::device(*device)),
            Change::RemoveDevice(index) => self.remove(Place::Device(*index)),
            Change::SourceRange(range) => self.write(Place::Range(*range), "allowed".to_owned()),
            Change::RemoveSourceRange(range) => self.remove(Place::Range(*range)),
            Change::Frontend(at, value) | Change::Restrict(at, value) => {
                self.write(Place::Frontend(*at), frontend(value));
            }
            Change::RemoveFrontend(at) => self.remove(Place::Frontend(*at)),
        }
        Ok(())
    }
}

impl Recorder {
    fn write(&mut self, place: Place, value: String) {
        writeln!(self.writes, "{place} = {value}").unwrap();
        self.entries.insert(place, value);
    }
    fn remove(&mut self, place: Place) {
        writeln!(self.writes, "{place} removed").unwrap();
        assert!(self.entries.remove(&place).is_some(), "{place} was not there");
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frontend(at) => {
                let scope = match at.scope {
                    SCOPE_EXTERNAL => "external",
                    SCOPE_ENCAPSULATED => "encapsulated",
                    _ => "internal",
                };
                write!(f, "frontend {} protocol {} {scope}", at.address, at.protocol)
            }
            Self::Range(range) if range.service == CLUSTER => {
                write!(f, "source {} of the cluster", range.net)
            }
            Self::Range(range) if range.service == NEAR => {
                write!(f, "source {} without externalTrafficPolicy", range.net)
            }
            Self::Range(range) => write!(f, "source {} of service {}", range.net, range.service),
            Self::Name(id) => write!(f, "name {id}"),
            Self::Service(id) => write!(f, "service {id}"),
            Self::Slot(index) => write!(f, "slot {index}"),
            Self::Backend(id) => write!(f, "backend {} {}", id.family, id.id),
            Self::Hint(service, hint) if hint & HINT_MEMBER != 0 => {
                write!(f, "member {} of service {service}", hint & !HINT_MEMBER)
            }
            Self::Hint(service, hint) if hint & HINT_POD != 0 => {
                write!(f, "pod {} of service {service}", hint & !HINT_POD)
            }
            Self::Hint(service, hint) => write!(f, "hint {hint} of service {service}"),
            Self::Way(id) => write!(f, "way {id}"),
            Self::Peer(address) => write!(f, "peer {address}"),
            Self::Vip(address) => write!(f, "vip {address}"),
            Self::Device(index) => write!(f, "device {index}"),
        }
    }
}

fn device(value: Device) -> String {
    let sources = [Addr4(value.source4).to_ip(), Addr6(value.source6).to_ip()];
    format!("from {} {}, {}", sources[0], sources[1], flags(value.flags, &[(DEVICE_XDP, "xdp")]))
}

fn frontend(value: &Frontend) -> String {
    let names = [
        (FRONTEND_DSR, "dsr"),
        (FRONTEND_LOCAL, "local"),
        (FRONTEND_AFFINITY, "affinity"),
        (FRONTEND_SOURCE_RANGES, "closed"),
        (FRONTEND_NODE_ONLY, "node only"),
        (FRONTEND_INSIDE_ONLY, "inside only"),
        (FRONTEND_DSR_ENDS, "dsr ends"),
        (FRONTEND_WAS_CLUSTER, "was cluster"),
    ];
    let (service, cluster) = (value.service, value.cluster_service);
    format!("service {service}, cluster {cluster}, kind {}, {}", value.kind(), flags(value.flags, &names))
}

fn service(entry: ServiceEntry) -> String {
    if entry.0 == 0 {
        return "nothing".to_owned();
    }
    let names = [
        (u32::from(SERVICE_ELSEWHERE), "elsewhere"),
        (u32::from(SERVICE_MAGLEV), "maglev"),
        (u32::from(SERVICE_FORMER), "after another"),
    ];
    let flags = flags(u32::from(entry.flags()), &names);
    format!("{} slots from {}, {flags}", entry.length(), entry.offset())
}

fn slot(word: Slot) -> String {
    let current = reference(word.current());
    if word.is_unsettled() { format!("{current}, settled on {}", reference(word.settled())) } else { current }
}

fn backend(entry: &BackendEntry) -> String {
    let names = [
        (u32::from(BACKEND_EXISTS), "exists"),
        (u32::from(BACKEND_LOCAL), "local"),
        (u32::from(BACKEND_READY), "ready"),
        (u32::from(BACKEND_SERVING), "serving"),
    ];
    let flags = flags(u32::from(entry.flags), &names);
    format!("{} generation {}, way {}, {flags}", entry.address, entry.generation, entry.way)
}

fn way(value: &Way) -> String {
    let names =
        [(u32::from(WAY_VALID), "valid"), (u32::from(WAY_RESOLVED), "resolved"), (u32::from(WAY_XDP), "xdp")];
    let (target, source) = (unmapped(value.target), unmapped(value.source));
    let flags = flags(u32::from(value.flags), &names);
    format!("{target} from {source}, device {}, mtu {}, {flags}", value.device, value.mtu)
}

fn reference(owner: BackendRef) -> String {
    format!("backend {} generation {}", owner.id(), owner.generation())
}

fn flags(bits: u32, names: &[(u32, &str)]) -> String {
    let set: Vec<&str> = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "-".to_owned() } else { set.join(" ") }
}
