//! Tables in memory, and frames, for tests of the walk.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use proxy_common::addr::mapped;
use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::backend::{BACKEND_EXISTS, BACKEND_LOCAL, BACKEND_READY, BACKEND_SERVING, Backend};
use proxy_common::config::global;
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_KIND_LOAD_BALANCER, FRONTEND_KIND_SHIFT, Frontend, FrontendKey,
    SCOPE_EXTERNAL, SCOPE_INTERNAL,
};
use proxy_common::hop::{Device, Hop};
use proxy_common::node_flow::node_port_bit;
use proxy_common::selection::{BackendRef, HintKey, SERVICE_FORMER, ServiceEntry, Slot};
use proxy_common::source_range::CLUSTER;
use proxy_common::timeouts::Timeouts;
use proxy_common::verdict::Program;
use proxy_common::vip::{FILTER_SERVED, FILTER_VIP, VIP_EXTERNAL, VipKey, filter_place};
use proxy_common::way::{PEER_NODE, PEER_SELF, PeerKey, WAY_RESOLVED, WAY_VALID, WAY_XDP, Way};
use proxy_common::{Addr4, Address};

use super::packet::flag::SYN;
use super::step::Walk;
use super::walk::walk_family;
use super::walker::Past;
use crate::dataplane::ebpf::NodeConstants;
use crate::dataplane::ebpf::read::Tables;

/// The second of the fixture's clock.
pub const NOW: u32 = 100_000;
/// The device that frames come in by.
pub const DEVICE: u32 = 2;
/// Bits of a usable backend on another node, and on this one.
pub const WELL: u8 = BACKEND_EXISTS | BACKEND_READY | BACKEND_SERVING;
pub const HERE: u8 = WELL | BACKEND_LOCAL;
/// Flags of a LoadBalancer's frontend.
pub const BALANCER: u32 = FRONTEND_KIND_LOAD_BALANCER << FRONTEND_KIND_SHIFT;
/// Port 80, network byte order.
pub const HTTP: u16 = 80_u16.to_be();

/// Tables of one family in memory. A list of a map has its entries.
pub struct Fixture<A> {
    constants: NodeConstants,
    pub node_namespace: u64,
    filter: Vec<u64>,
    pub node_ports: Vec<u64>,
    vips: Vec<(VipKey, u32)>,
    peers: Vec<(PeerKey, u32)>,
    pub frontends: Vec<(FrontendKey<A>, Frontend)>,
    services: Vec<ServiceEntry>,
    selection: Vec<Slot>,
    pub backends: Vec<Backend<A>>,
    pub ranges: Vec<(u32, IpNet)>,
    pub flows: Vec<(FlowKey<A>, Flow<A>)>,
    pub new_flows: Vec<(FlowKey<A>, Flow<A>)>,
    pub node_flows: Vec<(FlowKey<A>, u32)>,
    pub affinities: Vec<(AffinityKey<A>, Affinity)>,
    hints: Vec<(HintKey, u32)>,
    ways: Vec<Way>,
    pub hops: Vec<Hop<A>>,
    /// Each entry of SNAT_FULL.
    pub snat_full: u64,
}

impl<A: Address> Fixture<A> {
    /// Returns tables without a Service. Backend 0 and Service 0 are never given out.
    pub fn new(constants: &[(&'static str, u32)]) -> Self {
        let limits = (global::FLOW_LIMITS, Timeouts::DEFAULT.table().to_vec());
        let snat = [
            (global::SNAT_PORT_FIRST, 61000),
            (global::SNAT_PORT_COUNT, 4536),
            (global::SNAT_REPLY_FIRST, 61000),
            (global::SNAT_REPLY_COUNT, 4536),
        ];
        let words = snat.iter().chain(constants).map(|(name, word)| (*name, vec![*word]));
        let filter = vec![0; proxy_common::vip::ADDRESS_FILTER_WORDS as usize];
        Self {
            constants: NodeConstants::of(words.chain([limits])),
            node_namespace: 0,
            filter,
            node_ports: vec![0; 1024],
            vips: Vec::new(),
            peers: Vec::new(),
            frontends: Vec::new(),
            services: vec![ServiceEntry::default()],
            selection: Vec::new(),
            backends: vec![Backend::default()],
            ranges: Vec::new(),
            flows: Vec::new(),
            new_flows: Vec::new(),
            node_flows: Vec::new(),
            affinities: Vec::new(),
            hints: Vec::new(),
            ways: vec![Way::default()],
            hops: vec![Hop::default()],
            snat_full: 0,
        }
    }

    fn filtered(&mut self, address: A, bits: u64) {
        let (word, shift) = filter_place(&address);
        if let Some(word) = self.filter.get_mut(word as usize) {
            *word |= bits << shift;
        }
    }

    /// Adds a Service's address.
    pub fn add_vip(&mut self, address: A) {
        self.filtered(address, FILTER_VIP);
        self.vips.push((VipKey { address: mapped(address.to_ip()) }, VIP_EXTERNAL));
    }

    /// Adds an address of this node.
    pub fn add_own(&mut self, address: A) {
        self.filtered(address, FILTER_SERVED);
        self.peers.push((PeerKey { address: mapped(address.to_ip()) }, PEER_NODE | PEER_SELF));
    }

    /// Says that a port, network byte order, may be one of a frontend on this node.
    pub fn add_node_port(&mut self, port: u16) {
        let (word, mask) = node_port_bit(port);
        self.node_ports[word as usize] |= mask;
    }

    /// Adds a prefix of the cluster.
    pub fn add_inside(&mut self, prefix: &str) {
        self.ranges.push((CLUSTER, prefix.parse().unwrap()));
    }

    /// Adds a backend; returns its reference.
    pub fn add_backend(&mut self, at: (A, u16), flags: u8, way: u32) -> BackendRef {
        let reference = BackendRef::new(u32::try_from(self.backends.len()).unwrap(), 0);
        let (address, port) = at;
        self.backends.push(Backend { address, port, flags, way, ..Backend::default() });
        self.hops.push(Hop::default());
        reference
    }

    /// Adds a list with these slots; returns its id.
    pub fn add_list(&mut self, slots: &[Slot], flags: u8) -> u32 {
        let offset = u32::try_from(self.selection.len()).unwrap();
        let entry = ServiceEntry::new(offset, u32::try_from(slots.len()).unwrap(), flags);
        self.selection.extend(slots);
        self.services.push(entry);
        let id = u32::try_from(self.services.len() - 1).unwrap();
        for slot in slots {
            self.hints.push((HintKey::member(id, slot.current()), slot.current().0));
        }
        id
    }

    /// Adds a resolved route to a node; returns its id.
    pub fn add_way(&mut self, target: &str, mtu: u16, flags: u16) -> u32 {
        let target = mapped(target.parse().unwrap());
        let flags = WAY_VALID | WAY_RESOLVED | WAY_XDP | flags;
        self.ways.push(Way { target, mtu, flags, ..Way::default() });
        u32::try_from(self.ways.len() - 1).unwrap()
    }
}

fn value<K: PartialEq, V: Copy>(entries: &[(K, V)], key: &K) -> Option<V> {
    entries.iter().find(|(one, _)| one == key).map(|(_, value)| *value)
}

impl<A: Address> Tables<A> for Fixture<A> {
    fn constants(&self) -> &NodeConstants {
        &self.constants
    }
    fn now(&self) -> u32 {
        NOW
    }
    fn milliseconds(&self) -> u32 {
        NOW * 1000
    }
    fn heartbeat(&self) -> u32 {
        NOW
    }
    fn node_namespace(&self) -> u64 {
        self.node_namespace
    }
    fn filter_word(&self, index: u32) -> u64 {
        self.filter[index as usize]
    }
    fn node_ports_word(&self, index: u32) -> u64 {
        self.node_ports[index as usize]
    }
    fn has_served(&self, _: u16) -> bool {
        false
    }
    fn vip(&self, key: &VipKey) -> Option<u32> {
        value(&self.vips, key)
    }
    fn peer(&self, key: &PeerKey) -> Option<u32> {
        value(&self.peers, key)
    }
    fn frontend(&self, key: &FrontendKey<A>) -> Option<Frontend> {
        value(&self.frontends, key)
    }
    fn frontends_at(&self, address: &A) -> Vec<(FrontendKey<A>, Frontend)> {
        self.frontends.iter().filter(|(key, _)| key.address == *address).copied().collect()
    }
    fn service(&self, id: u32) -> Option<ServiceEntry> {
        self.services.get(id as usize).copied()
    }
    fn slot(&self, index: u32) -> Slot {
        self.selection[index as usize]
    }
    fn backend_at(&self, id: u32) -> Option<Backend<A>> {
        self.backends.get(id as usize).copied()
    }
    fn is_inside(&self, service: u32, address: &A) -> bool {
        self.ranges(service).iter().any(|net| net.contains(&address.to_ip()))
    }
    fn ranges(&self, service: u32) -> Vec<IpNet> {
        self.ranges.iter().filter(|(of, _)| *of == service).map(|(_, net)| *net).collect()
    }
    fn flow(&self, key: &FlowKey<A>) -> Option<Flow<A>> {
        value(&self.flows, key)
    }
    fn new_flow(&self, key: &FlowKey<A>) -> Option<Flow<A>> {
        value(&self.new_flows, key)
    }
    fn node_flow(&self, key: &FlowKey<A>) -> Option<u32> {
        value(&self.node_flows, key)
    }
    fn affinity(&self, key: &AffinityKey<A>) -> Option<Affinity> {
        value(&self.affinities, key)
    }
    fn hint(&self, key: &HintKey) -> Option<u32> {
        value(&self.hints, key)
    }
    fn way(&self, id: u32) -> Option<Way> {
        self.ways.get(id as usize).copied()
    }
    fn narrowed(&self, _: u32) -> u64 {
        0
    }
    fn hop(&self, id: u32) -> Option<Hop<A>> {
        self.hops.get(id as usize).copied()
    }
    fn device(&self, _: u32) -> Option<Device> {
        None
    }
    fn snat_full(&self, _: u32) -> u64 {
        self.snat_full
    }
    fn label(&self, service: u32) -> Option<String> {
        Some(format!("shop/web-{service}:http"))
    }
    fn list(&self, _: u32) -> Option<String> {
        None
    }
}

/// Parses an address.
pub fn v4(text: &str) -> Addr4 {
    text.parse::<Ipv4Addr>().unwrap().into()
}

/// Parses an address with its port.
pub fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Tables with the LoadBalancer 192.0.2.1:80 of a list.
pub struct Shop(pub Fixture<Addr4>);

impl Shop {
    pub fn of(constants: &[(&'static str, u32)]) -> Self {
        let mut tables = Fixture::new(constants);
        tables.add_vip(v4("192.0.2.1"));
        tables.add_own(v4("10.0.0.1"));
        tables.add_inside("10.0.0.0/8");
        Self(tables)
    }

    pub fn new() -> Self {
        Self::of(&[])
    }

    /// Adds the frontend for clients outside and for pods.
    pub fn frontend(mut self, service: u32, flags: u32) -> Self {
        for scope in [SCOPE_EXTERNAL, SCOPE_INTERNAL] {
            let key = FrontendKey { address: v4("192.0.2.1"), port: HTTP, protocol: 6, scope };
            let affinity_seconds = if flags & FRONTEND_AFFINITY == 0 { 0 } else { 600 };
            let frontend =
                Frontend { service, cluster_service: service, flags: BALANCER | flags, affinity_seconds };
            self.0.frontends.push((key, frontend));
        }
        self
    }

    pub fn backend(&mut self, address: &str, flags: u8, way: u32) -> BackendRef {
        self.0.add_backend((v4(address), 8080_u16.to_be()), flags, way)
    }

    pub fn list(&mut self, owners: &[BackendRef]) -> u32 {
        let slots: Vec<Slot> = owners.iter().copied().map(Slot::settled_on).collect();
        self.0.add_list(&slots, 0)
    }

    /// Adds a list with slots of one backend, after a table with those of another one.
    pub fn list_after(&mut self, old: BackendRef, new: BackendRef) -> u32 {
        let former = self.list(&[old]);
        let former = self.0.services[former as usize];
        self.0.selection.push(Slot(former.0));
        self.0.add_list(&[Slot::unsettled(new, new)], SERVICE_FORMER)
    }

    pub fn walk(&self, program: Program, from: &str, to: &str, flags: u8) -> Walk {
        let frame = tcp(socket(from), socket(to), flags);
        walk_family(&self.0, program, DEVICE, &frame, Past::Known)
    }

    pub fn at_tc(&self, from: &str) -> Walk {
        self.walk(Program::TcIngress, from, "192.0.2.1:80", SYN)
    }
}

/// Returns a frame of TCP without checksums.
pub fn tcp(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(from.octets().into_iter().chain(to.octets()));
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
            frame.extend(from.octets().into_iter().chain(to.octets()));
        }
        _ => panic!("both addresses are of one family"),
    }
    frame.extend(from.port().to_be_bytes().into_iter().chain(to.port().to_be_bytes()));
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    frame
}
