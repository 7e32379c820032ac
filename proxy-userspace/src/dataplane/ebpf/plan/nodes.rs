//! Ways to other nodes, and the addresses of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proxy_common::addr::mapped;
use proxy_common::hop::{DEVICE_XDP, Device};
use proxy_common::way::{
    PEER_NODE, PEER_SELF, PEER_WAY_SHIFT, WAY_IPV4, WAY_RESOLVED, WAY_VALID, WAY_XDP, Way,
};
use proxy_common::{Addr4, Addr6};

use super::change::{Change, Op};
use super::ids::IdPool;
use crate::model::{Desired, Family};
use crate::node::{AttachTarget, Topology};

/// The entries of WAYS, PEERS and DEVICES.
///
/// A way is resolved as far as the plan knows the node's network. A way without a route has only
/// its target, and the programs look it up in the FIB.
#[derive(Clone, Debug)]
pub struct Nodes {
    pool: IdPool,
    ids: BTreeMap<IpAddr, u32>,
    targets: BTreeMap<u32, IpAddr>,
    written: BTreeMap<u32, Way>,
    peers: BTreeMap<IpAddr, u32>,
    /// The entries in DEVICES, by interface index.
    devices: BTreeMap<u32, Device>,
    /// The ways to the first address of each family, by node name, without this node.
    ways: BTreeMap<String, NodeWays>,
    /// Ways in the map that no node has.
    stale: BTreeSet<u32>,
    /// Whether ways and peers found in the map stay though no node has them.
    keeps_unclaimed: bool,
    /// All addresses of the nodes of the cluster, with `PEER_*` bits.
    members: BTreeMap<IpAddr, u32>,
    topology: Topology,
    native_devices: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeWays {
    v4: Option<u32>,
    v6: Option<u32>,
}

impl Nodes {
    /// Returns an empty set for a map with `capacity` ways.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            pool: IdPool::new(capacity),
            ids: BTreeMap::new(),
            targets: BTreeMap::new(),
            written: BTreeMap::new(),
            peers: BTreeMap::new(),
            devices: BTreeMap::new(),
            ways: BTreeMap::new(),
            stale: BTreeSet::new(),
            keeps_unclaimed: true,
            members: BTreeMap::new(),
            topology: Topology::default(),
            native_devices: BTreeSet::new(),
        }
    }

    /// Takes over a way found in the map.
    pub fn adopt_way(&mut self, id: u32, target: IpAddr, way: Way, now: Duration) {
        self.pool.adopt(id);
        if way.flags == 0 {
            self.pool.rest(id, now);
            self.ids.entry(target).or_insert(id);
        } else {
            self.ids.insert(target, id);
        }
        self.targets.insert(id, target);
        self.written.insert(id, way);
    }

    /// Takes over a node address found in the map.
    pub fn adopt_peer(&mut self, address: IpAddr, bits: u32) {
        self.peers.insert(address, bits);
    }

    /// Takes over a device found in the map.
    pub fn adopt_device(&mut self, index: u32, device: Device) {
        self.devices.insert(index, device);
    }

    /// Releases from now on what was found in the maps and no node has.
    pub const fn release_unclaimed(&mut self) {
        self.keeps_unclaimed = false;
    }

    /// Returns whether entries found in the maps stay though no node has them.
    #[must_use]
    pub const fn keeps_unclaimed(&self) -> bool {
        self.keeps_unclaimed
    }

    /// Sets the network of this node and the devices that run XDP in the driver.
    pub fn set_topology(&mut self, topology: &Topology, native_devices: &BTreeSet<u32>) {
        self.topology.clone_from(topology);
        self.native_devices.clone_from(native_devices);
    }

    /// Takes over the network of this node from `former`.
    pub fn keep_topology(&mut self, former: Self) {
        self.topology = former.topology;
        self.native_devices = former.native_devices;
    }

    /// Takes over the nodes of the cluster and gives the first address of each family of every
    /// other node a way. Returns the targets without room.
    pub fn assign(&mut self, desired: &Desired, now: Duration) -> Vec<IpAddr> {
        self.members = members(desired);
        let mut without = Vec::new();
        self.ways.clear();
        for (name, addresses) in desired.nodes.iter().filter(|(name, _)| **name != desired.node_name) {
            let mut first = |family| {
                let target = *addresses.iter().find(|address| Family::of(**address) == family)?;
                self.claim(target, now).or_else(|| {
                    without.push(target);
                    None
                })
            };
            let ways = NodeWays { v4: first(Family::V4), v6: first(Family::V6) };
            self.ways.insert(name.clone(), ways);
        }
        let used = self.used();
        let is_stale = |id: &u32, way: &Way| !self.keeps_unclaimed && way.flags != 0 && !used.contains(id);
        let stale = self.written.iter().filter(|(id, way)| is_stale(id, way));
        self.stale = stale.map(|(id, _)| *id).collect();
        without
    }

    fn claim(&mut self, target: IpAddr, now: Duration) -> Option<u32> {
        if let Some(id) = self.ids.get(&target).copied() {
            self.pool.resume(id);
            return Some(id);
        }
        let id = self.pool.allocate(now, |_| true)?;
        if let Some(former) = self.targets.insert(id, target)
            && self.ids.get(&former) == Some(&id)
        {
            self.ids.remove(&former);
        }
        self.ids.insert(target, id);
        Some(id)
    }

    /// Returns the way to a node, by preference to an address of this family; 0 = no way.
    #[must_use]
    pub fn way(&self, node: &str, family: Family) -> u32 {
        let Some(ways) = self.ways.get(node) else { return 0 };
        match family {
            Family::V4 => ways.v4.or(ways.v6),
            Family::V6 => ways.v6.or(ways.v4),
        }
        .unwrap_or(0)
    }

    /// Returns the writes of ways, peers and devices, and the removals of peers and devices.
    #[must_use]
    pub fn writes(&self) -> Vec<Op> {
        let used = self.used();
        let ways = self.ids.iter().filter(|(_, id)| used.contains(id)).filter_map(|(target, id)| {
            let way = self.wanted(*target);
            (self.written.get(id) != Some(&way)).then_some(Change::Way(*id, way))
        });
        let wanted = self.wanted_peers();
        let peers = wanted
            .iter()
            .filter(|(address, bits)| self.peers.get(address) != Some(bits))
            .map(|(address, bits)| Change::Peer(*address, *bits));
        let gone = self.peers.keys().filter(|address| !self.keeps_unclaimed && !wanted.contains_key(address));
        let devices = self.wanted_devices();
        let changed = devices.iter().filter(|(index, device)| self.devices.get(index) != Some(device));
        let changed = changed.map(|(index, device)| Change::Device(*index, *device));
        let vanished =
            self.devices.keys().filter(|index| !self.keeps_unclaimed && !devices.contains_key(index));
        ways.chain(peers)
            .chain(changed)
            .chain(vanished.map(|index| Change::RemoveDevice(*index)))
            .chain(gone.map(|address| Change::RemovePeer(*address)))
            .map(|change| Op { change, owner: None })
            .collect()
    }

    /// Returns the releases of ways that no node has.
    #[must_use]
    pub fn releases(&self) -> Vec<Op> {
        let stale = self.stale.iter().filter_map(|id| Some((*id, *self.written.get(id)?)));
        stale.map(|(id, way)| Op { change: Change::Way(id, Way { flags: 0, ..way }), owner: None }).collect()
    }

    /// Returns the ways in the map.
    pub fn written_ways(&self) -> impl Iterator<Item = (u32, Way)> {
        self.written.iter().map(|(id, way)| (*id, *way))
    }

    /// Returns the node addresses in the map.
    pub fn written_peers(&self) -> impl Iterator<Item = (IpAddr, u32)> {
        self.peers.iter().map(|(address, bits)| (*address, *bits))
    }

    /// Returns whether the plan knows the addresses of this node. A node has at least one.
    #[must_use]
    pub fn knows_own_addresses(&self) -> bool {
        !self.topology.addresses.is_empty()
    }

    /// Returns whether an address is on a device of this node or belongs to another node.
    #[must_use]
    pub fn is_node(&self, address: IpAddr) -> bool {
        self.topology.addresses.contains(&address) || self.members.contains_key(&address)
    }

    /// Returns the devices in the map.
    pub fn written_devices(&self) -> impl Iterator<Item = (u32, Device)> {
        self.devices.iter().map(|(index, device)| (*index, *device))
    }

    fn used(&self) -> BTreeSet<u32> {
        self.ways.values().flat_map(|ways| [ways.v4, ways.v6]).flatten().collect()
    }

    /// Records a written way. The rest of a way begins with an entry without flags.
    pub fn written(&mut self, id: u32, way: Way, now: Duration) {
        self.written.insert(id, way);
        if way.flags == 0 {
            self.stale.remove(&id);
            self.pool.rest(id, now);
        }
    }

    /// Records a written or removed peer.
    pub fn peer_written(&mut self, address: IpAddr, bits: Option<u32>) {
        match bits {
            Some(bits) => self.peers.insert(address, bits),
            None => self.peers.remove(&address),
        };
    }

    /// Records a written or removed device.
    pub fn device_written(&mut self, index: u32, device: Option<Device>) {
        match device {
            Some(device) => self.devices.insert(index, device),
            None => self.devices.remove(&index),
        };
    }

    fn wanted(&self, target: IpAddr) -> Way {
        let family = if target.is_ipv4() { WAY_IPV4 } else { 0 };
        let unresolved = Way { target: mapped(target), flags: WAY_VALID | family, ..Way::default() };
        let Some(known) = self.topology.ways.get(&target) else { return unresolved };
        let xdp = if self.native_devices.contains(&known.device) { WAY_XDP } else { 0 };
        let way = Way {
            source: mapped(self.known_to_others(known.source)),
            device: known.device,
            mtu: known.mtu,
            flags: unresolved.flags | xdp,
            ..unresolved
        };
        known.link.map_or(way, |link| Way {
            flags: way.flags | WAY_RESOLVED,
            destination_mac: link.destination_mac,
            source_mac: link.source_mac,
            ..way
        })
    }

    /// Returns the outer source address of encapsulated packets.
    ///
    /// It is the preferred source of the route if other nodes know that address. They accept
    /// encapsulated packets from node addresses only, and the address of an overlay device is
    /// usually not one.
    fn known_to_others(&self, preferred: IpAddr) -> IpAddr {
        let is_known = |address: &IpAddr, bits: u32| {
            bits & PEER_NODE != 0
                && self.topology.addresses.contains(address)
                && Family::of(*address) == Family::of(preferred)
        };
        if self.members.get(&preferred).is_some_and(|bits| is_known(&preferred, *bits)) {
            return preferred;
        }
        let known = self.members.iter().find(|(address, bits)| is_known(address, **bits));
        known.map_or(preferred, |(address, _)| *address)
    }

    /// Returns the devices with our programs on ingress.
    fn wanted_devices(&self) -> BTreeMap<u32, Device> {
        let sees = |(_, target): &(&u32, &AttachTarget)| target.is_uplink();
        let device = |(index, target): (&u32, &AttachTarget)| {
            let flags = if self.native_devices.contains(index) { DEVICE_XDP } else { 0 };
            let source4 = target.source_v4.map_or([0], |address| Addr4::from(address).0);
            let source6 = target.source_v6.map_or([0; 4], |address| Addr6::from(address).0);
            (*index, Device { source4, source6, flags })
        };
        self.topology.devices.iter().filter(sees).map(device).collect()
    }

    /// Returns the wanted peers. Encapsulated packets go to node addresses only, so the other
    /// addresses of this node need no entry.
    fn wanted_peers(&self) -> BTreeMap<IpAddr, u32> {
        let bits = |address| if self.topology.addresses.contains(address) { PEER_SELF } else { 0 };
        let used = self.used();
        let way = |address| {
            self.ids.get(address).filter(|id| used.contains(id)).map_or(0, |id| id << PEER_WAY_SHIFT)
        };
        self.members.iter().map(|(address, known)| (*address, known | bits(address) | way(address))).collect()
    }
}

fn members(desired: &Desired) -> BTreeMap<IpAddr, u32> {
    let mut members = BTreeMap::new();
    for (name, addresses) in &desired.nodes {
        let bits = if *name == desired.node_name { PEER_NODE | PEER_SELF } else { PEER_NODE };
        for address in addresses {
            *members.entry(*address).or_insert(0) |= bits;
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_nodes_other_addresses_take_no_room_of_the_nodes() {
        let [own, other, unlisted] = [1, 2, 3].map(|last| IpAddr::from([172, 16, 0, last]));
        let members = |name: &str, address| (name.to_owned(), BTreeSet::from([address]));
        let desired = Desired {
            nodes: BTreeMap::from([members("here", own), members("there", other)]),
            node_name: "here".to_owned(),
            ..Desired::default()
        };
        let services = (0..=255).map(|last| IpAddr::from([203, 0, 113, last]));
        let addresses = services.chain([own, unlisted]).collect();
        let mut nodes = Nodes::new(16);
        nodes.set_topology(&Topology { addresses, ..Topology::default() }, &BTreeSet::new());
        nodes.assign(&desired, Duration::ZERO);
        let expected =
            BTreeMap::from([(own, PEER_NODE | PEER_SELF), (other, PEER_NODE | 1 << PEER_WAY_SHIFT)]);
        assert_eq!(nodes.wanted_peers(), expected);
    }

    #[test]
    fn what_is_encapsulated_comes_from_an_address_that_other_nodes_know() {
        let [own, second, overlay, other] = [1, 2, 3, 9].map(|last| IpAddr::from([172, 16, 0, last]));
        let own6 = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
        let source = |preferred, named: &[IpAddr]| {
            let desired = Desired {
                nodes: BTreeMap::from([
                    ("here".to_owned(), named.iter().copied().collect()),
                    ("there".to_owned(), BTreeSet::from([other])),
                ]),
                node_name: "here".to_owned(),
                ..Desired::default()
            };
            let way = crate::node::Way { source: preferred, device: 3, mtu: 1420, link: None };
            let mut nodes = Nodes::new(16);
            let topology = Topology {
                addresses: [own6, own, second, overlay].into(),
                ways: BTreeMap::from([(other, way)]),
                ..Topology::default()
            };
            nodes.set_topology(&topology, &BTreeSet::new());
            nodes.assign(&desired, Duration::ZERO);
            nodes.wanted(other).source
        };
        assert_eq!(source(overlay, &[own6, own]), mapped(own), "no node knows the overlay's address");
        assert_eq!(source(second, &[own, second]), mapped(second), "the address is one of the node's");
        assert_eq!(source(overlay, &[own6]), mapped(overlay), "the node has no other address of the family");
    }
}
