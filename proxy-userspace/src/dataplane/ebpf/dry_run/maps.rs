//! The private maps of a dry run: those that programs write.

use std::path::Path;

use aya::Ebpf;
use aya::maps::{Map, MapInfo};
use proxy_common::affinity::AffinityKey;
use proxy_common::config::{PORT_GROUP, global};
use proxy_common::flow::FlowKey;
use proxy_common::icmp::{KINDS, SourcePrefix};
use proxy_common::verdict::{Program, Reason};

use super::concern::{Concern, Keys};
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::layout::Layout;
use crate::dataplane::ebpf::map;
use crate::dataplane::ebpf::node_programs::NodeConstants;
use crate::dataplane::ebpf::raw_map::{RawMap, bytes_of};

/// The maps that the programs of uplinks and pods only read: the node's own. All others are private, also one that is
/// new and not known here, which the programs may write. DEVICE_MACS is private and empty, so that uplinks take the
/// frame: it has no real MAC address.
pub const SHARED: [&str; 16] = [
    "AGENT",
    "BACKENDS4",
    "BACKENDS6",
    "DEVICES",
    "FRONTEND_INDEX4",
    "FRONTEND_INDEX6",
    "FRONTENDS4",
    "FRONTENDS6",
    "HINTS",
    "NODE_PORTS",
    "PEERS",
    "SELECTION",
    "SERVICES",
    "SOURCE_RANGES4",
    "SOURCE_RANGES6",
    "VIPS",
];

/// The least number of entries of a private table of connections.
const CONNECTIONS: u32 = 1 << 14;

/// Returns the number of entries of a private table of connections.
///
/// A frame concerns a reply key for each port of `--snat-ports`, and a few others. An LRU map evicts before it is full:
/// each CPU keeps 128 free entries for itself. A lost entry would make a port look free.
fn connections(snat_ports: u32) -> u32 {
    snat_ports.saturating_mul(2).max(CONNECTIONS).checked_next_power_of_two().unwrap_or(CONNECTIONS)
}

/// Returns the size of a private map; `None` for that in the object.
///
/// An array whose lack of an entry would change the verdict has the node's size. Figures may be lost.
pub fn private_size(name: &str, pin: &Path, constants: &NodeConstants) -> Option<u32> {
    match name {
        "FLOWS4" | "FLOWS6" | "FLOWS_NEW4" | "FLOWS_NEW6" => {
            Some(connections(constants.word(global::SNAT_PORT_COUNT)))
        }
        "WAYS" | "NARROWED" | "HOPS4" | "HOPS6" => MapInfo::from_pin(pin).ok().map(|info| info.max_entries()),
        "BACKEND_CONNECTIONS4"
        | "BACKEND_CONNECTIONS6"
        | "NAMES"
        | "SERVICE_CONNECTIONS"
        | "SERVICE_HANDSHAKES"
        | "SERVICE_STATS"
        | "SOCK_REV4"
        | "SOCK_REV6"
        | "SOCK_TCP4"
        | "SOCK_TCP6" => Some(1),
        "AFFINITY4" | "AFFINITY6" | "FRAGMENTS4" | "FRAGMENTS6" | "NODE_FLOWS4" | "NODE_FLOWS6" => {
            Some(1 << 10)
        }
        _ => None,
    }
}

/// Fails if one of the node's maps is not there.
pub fn check_pins(layout: &Layout) -> Result<(), OpenError> {
    SHARED.iter().try_for_each(|name| map::open(&layout.maps(), name).map(drop))
}

/// A private map beside the node's.
#[derive(Debug)]
struct Pair {
    own: RawMap,
    nodes: RawMap,
}

impl Pair {
    fn open(object: &Ebpf, layout: &Layout, name: &'static str) -> Result<Self, OpenError> {
        let (nodes, _) = map::open(&layout.maps(), name)?;
        Ok(Self { own: own(object, name)?, nodes: RawMap::of(name, &nodes)? })
    }

    fn copy(&self, key: &[u8]) -> Result<(), OpenError> {
        self.own.copy(&self.nodes, key)
    }

    fn copy_index(&self, index: u32) -> Result<(), OpenError> {
        if index < self.nodes.entries() { self.copy(&index.to_ne_bytes()) } else { Ok(()) }
    }

    fn copy_all(&self) -> Result<(), OpenError> {
        self.own.copy_array(&self.nodes)
    }
}

fn own(object: &Ebpf, name: &'static str) -> Result<RawMap, OpenError> {
    use Map::{Array, HashMap, LruHashMap, PerCpuArray};
    match object.map(name) {
        Some(Array(map) | HashMap(map) | LruHashMap(map) | PerCpuArray(map)) => RawMap::of(name, map),
        _ => Err(OpenError::UnknownMap { map: name.to_owned() }),
    }
}

/// The private maps of one family that hold copies.
#[derive(Debug)]
struct FamilyPairs {
    flows: Pair,
    flows_new: Pair,
    node_flows: Pair,
    affinity: Pair,
    hops: Pair,
}

/// The names of these maps.
type FamilyNames = [&'static str; 5];
const NAMES4: FamilyNames = ["FLOWS4", "FLOWS_NEW4", "NODE_FLOWS4", "AFFINITY4", "HOPS4"];
const NAMES6: FamilyNames = ["FLOWS6", "FLOWS_NEW6", "NODE_FLOWS6", "AFFINITY6", "HOPS6"];

impl FamilyPairs {
    fn open(object: &Ebpf, layout: &Layout, names: FamilyNames) -> Result<Self, OpenError> {
        let [flows, flows_new, node_flows, affinity, hops] = names;
        let open = |name| Pair::open(object, layout, name);
        Ok(Self {
            flows: open(flows)?,
            flows_new: open(flows_new)?,
            node_flows: open(node_flows)?,
            affinity: open(affinity)?,
            hops: open(hops)?,
        })
    }

    /// Empties the tables and copies the entries concerned.
    fn prepare<A>(&self, keys: &Keys<A>) -> Result<(), OpenError>
    where
        FlowKey<A>: aya::Pod,
        AffinityKey<A>: aya::Pod,
    {
        for table in [&self.flows, &self.flows_new, &self.node_flows, &self.affinity] {
            table.own.clear()?;
        }
        for key in keys.flows.iter().map(bytes_of) {
            self.flows.copy(&key)?;
            self.flows_new.copy(&key)?;
        }
        for key in &keys.node_flows {
            self.node_flows.copy(&bytes_of(key))?;
        }
        for key in &keys.affinities {
            self.affinity.copy(&bytes_of(key))?;
        }
        keys.hops.iter().try_for_each(|id| self.hops.copy_index(*id))
    }
}

/// The private maps that hold copies of the node's entries, and the private counters.
#[derive(Debug)]
pub struct PrivateMaps {
    v4: FamilyPairs,
    v6: FamilyPairs,
    ways: Pair,
    narrowed: Pair,
    served_ports: Pair,
    snat_full: Pair,
    icmp_sources: Pair,
    icmp_total: Pair,
    counters: RawMap,
}

impl PrivateMaps {
    /// Opens the private maps of a loaded object, and copies those that any frame may concern.
    pub fn open(object: &Ebpf, layout: &Layout) -> Result<Self, OpenError> {
        let open = |name| Pair::open(object, layout, name);
        open("ADDRESS_FILTER")?.copy_all()?;
        let maps = Self {
            v4: FamilyPairs::open(object, layout, NAMES4)?,
            v6: FamilyPairs::open(object, layout, NAMES6)?,
            ways: open("WAYS")?,
            narrowed: open("NARROWED")?,
            served_ports: open("SERVED_PORTS")?,
            snat_full: open("SNAT_FULL")?,
            icmp_sources: open("ICMP_SOURCES")?,
            icmp_total: open("ICMP_TOTAL")?,
            counters: own(object, "COUNTERS")?,
        };
        maps.served_ports.copy_all()?;
        Ok(maps)
    }

    /// Makes the private maps equal to the node's in the entries that a frame concerns.
    pub fn prepare(&self, concern: &Concern, frame: &[u8], device: u32) -> Result<(), OpenError> {
        self.v4.prepare(&concern.v4)?;
        self.v6.prepare(&concern.v6)?;
        let ways = concern.v4.ways.iter().chain(&concern.v6.ways);
        for way in ways {
            self.ways.copy_index(*way)?;
            self.narrowed.copy_index(*way)?;
        }
        for port in concern.v4.ports.iter().chain(&concern.v6.ports) {
            self.served_ports.copy_index(u32::from(*port) / PORT_GROUP)?;
        }
        for index in concern.v4.snat_full.iter().chain(&concern.v6.snat_full) {
            self.snat_full.copy_index(*index)?;
        }
        self.icmp_sources.own.clear()?;
        for sender in [SourcePrefix::of_pod(device)].into_iter().chain(sender(frame)) {
            self.icmp_sources.copy(&bytes_of(&sender))?;
            self.icmp_sources.copy(&bytes_of(&sender.about_size()))?;
        }
        (0..KINDS).try_for_each(|kind| self.icmp_total.copy_index(kind))
    }

    /// Returns the counters of a program, by reason, as bytes that change with each packet.
    pub fn counted(&self, program: Program) -> Result<Vec<(Reason, Vec<u8>)>, OpenError> {
        let of = |reason: &Reason| {
            let value = self.counters.get(&program.counter(*reason).to_ne_bytes())?;
            Ok((*reason, value.unwrap_or_default()))
        };
        Reason::ALL.iter().map(of).collect()
    }
}

/// Returns the bucket for messages to the sender of a frame.
fn sender(frame: &[u8]) -> Option<SourcePrefix> {
    let word = |at: usize| frame.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
    match frame.get(12..14)? {
        [0x08, 0x00] => {
            let [a, b, c, _] = word(26)?.to_ne_bytes();
            Some(SourcePrefix::new([0, u32::from_ne_bytes([a, b, c, 0])]))
        }
        [0x86, 0xdd] => Some(SourcePrefix::new([word(22)?, word(26)?])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ebpf::Sizes;
    use crate::dataplane::ebpf::inventory::maps;

    #[test]
    fn every_shared_map_is_a_map_of_the_object_that_the_agent_writes() {
        let known = maps(&Sizes::default()).map(|(name, _)| name);
        for name in SHARED {
            assert!(known.contains(&name), "{name}");
        }
        for written in [NAMES4, NAMES6].as_flattened() {
            assert!(!SHARED.contains(written), "programs write {written}");
        }
    }

    #[test]
    fn every_port_for_snat_has_room_twice() {
        let size = |ports: u32| {
            let constants = NodeConstants::of([(global::SNAT_PORT_COUNT, vec![ports])]);
            private_size("FLOWS4", Path::new("/nonexistent"), &constants).unwrap()
        };
        assert_eq!((size(0), size(4536)), (1 << 14, 1 << 14));
        assert_eq!((size(8193), size(20_000), size(64_512)), (1 << 15, 1 << 16, 1 << 17));
    }
}
