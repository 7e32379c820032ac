//! The state of a walk, and the questions that several steps ask.

use proxy_common::Address;
use proxy_common::addr::mapped;
use proxy_common::backend::Backend;
use proxy_common::config::{SHARE_NEWER, SHARE_OLDER, SHARE_TURNED, global};
use proxy_common::node_flow::{NODE_DATAGRAM_SECONDS, node_port_bit};
use proxy_common::selection::BackendRef;
use proxy_common::source_range::CLUSTER;
use proxy_common::verdict::Program;
use proxy_common::vip::{FILTER_VIP, VIP_KINDS, VipKey, filter_place};
use proxy_common::way::{PEER_NODE, PEER_SELF, PeerKey};

use super::packet::{Packet, flag, has_connections};
use super::step::{End, Step};
use crate::dataplane::ebpf::dry_run::Keys;
use crate::dataplane::ebpf::read::Tables;

/// The treatment of a connection that the node has an entry of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// The packet belongs to it.
    Known,
    /// The packet is treated as if there were no entry.
    Ignored,
}

/// A walk on its way. `Err` is its end.
pub struct Walker<'t, A: Address, T> {
    pub tables: &'t T,
    pub program: Program,
    /// Index of the device the frame comes in by.
    pub device: u32,
    pub now: u32,
    pub past: Past,
    pub steps: Vec<Step>,
    pub keys: Keys<A>,
}

impl<'t, A: Address, T: Tables<A>> Walker<'t, A, T> {
    pub fn new(tables: &'t T, program: Program, device: u32, past: Past) -> Self {
        let (steps, keys) = (Vec::new(), Keys::default());
        Self { tables, program, device, now: tables.now(), past, steps, keys }
    }

    /// Adds a step. A `*` in the names of maps stands for the family.
    pub fn note(&mut self, step: &'static str, found: impl Into<String>, maps: &str) {
        let family = if A::WORDS == 1 { "4" } else { "6" };
        self.steps.push(Step { step, found: found.into(), maps: maps.replace('*', family) });
    }

    /// Whether the frame comes from a pod.
    pub fn is_of_pod(&self) -> bool {
        self.program == Program::TcPodIn
    }

    /// Whether the frame is XDP's.
    pub fn is_xdp(&self) -> bool {
        self.program == Program::XdpIngress
    }

    pub fn constant(&self, name: &str) -> u32 {
        self.tables.constants().word(name)
    }

    /// Whether this mode serves the new connections of a mode change.
    pub fn is_newer(&self) -> bool {
        self.constant(global::SHARE) & !SHARE_TURNED == SHARE_NEWER
    }

    /// Whether the other mode serves new connections.
    pub fn is_older(&self) -> bool {
        self.constant(global::SHARE) & !SHARE_TURNED == SHARE_OLDER
    }

    /// Whether this mode's directors own a protocol's packets without an entry.
    pub fn owns_unknown(&self, protocol: u8) -> bool {
        let share = self.constant(global::SHARE);
        let is_turned = share & SHARE_TURNED != 0;
        match share & !SHARE_TURNED {
            SHARE_NEWER => is_turned || !has_connections(protocol),
            SHARE_OLDER => !is_turned && has_connections(protocol),
            _ => true,
        }
    }

    /// Whether the agent lives, as the programs judge it.
    pub fn is_agent_alive(&self) -> bool {
        self.now.saturating_sub(self.tables.heartbeat()) <= proxy_common::config::HEARTBEAT_SECONDS
    }

    /// Returns the `FILTER_*` bits of an address.
    pub fn filter(&self, address: &A) -> u64 {
        let (word, shift) = filter_place(address);
        self.tables.filter_word(word) >> shift
    }

    pub fn may_be_vip(&self, address: &A) -> bool {
        self.filter(address) & FILTER_VIP != 0
    }

    /// Returns the kinds of a Service's address; 0 for others.
    pub fn vip_kinds(&self, address: &A) -> u32 {
        if self.is_older() {
            return 0;
        }
        self.tables.vip(&VipKey { address: mapped(address.to_ip()) }).unwrap_or(0) & VIP_KINDS
    }

    pub fn peer(&self, address: &A) -> u32 {
        self.tables.peer(&PeerKey { address: mapped(address.to_ip()) }).unwrap_or(0)
    }

    pub fn is_own(&self, address: &A) -> bool {
        self.peer(address) & PEER_SELF != 0
    }

    pub fn is_other_node(&self, address: &A) -> bool {
        self.peer(address) & (PEER_NODE | PEER_SELF) == PEER_NODE
    }

    pub fn is_inside_cluster(&self, address: &A) -> bool {
        self.tables.is_inside(CLUSTER, address)
    }

    /// Returns the backend of a reference, unless its id means another one by now.
    pub fn backend(&self, reference: BackendRef) -> Option<Backend<A>> {
        self.tables.backend_at(reference.id()).filter(|backend| backend.is(reference))
    }

    /// Whether a frontend on an address of this node may have a port, network byte order.
    pub fn may_be_node_port(&self, port: u16) -> bool {
        let (word, mask) = node_port_bit(port);
        self.tables.node_ports_word(word) & mask != 0
    }

    /// Whether a packet for a frontend on this node belongs to a connection of the node's own.
    pub fn is_nodes_own(&mut self, packet: &Packet<A>, is_node_port: bool) -> bool {
        const ANSWERS: u8 = flag::SYN | flag::ACK;
        let key = &packet.key;
        if !self.may_be_node_port(key.destination_port) || !(is_node_port || self.is_own(&key.destination)) {
            return false;
        }
        if !has_connections(key.protocol) {
            return self.is_node_flow(packet);
        }
        match packet.flags & ANSWERS {
            flag::SYN => false,
            ANSWERS => true,
            _ => self.is_node_flow(packet),
        }
    }

    fn is_node_flow(&mut self, packet: &Packet<A>) -> bool {
        self.keys.node_flows.push(packet.key);
        let seen = self.tables.node_flow(&packet.key);
        seen.is_some_and(|seen| {
            has_connections(packet.key.protocol) || self.now.wrapping_sub(seen) <= NODE_DATAGRAM_SECONDS
        })
    }

    /// Returns the name of a Service port, or its id.
    pub fn label(&self, service: u32) -> String {
        self.tables.label(service).unwrap_or_else(|| format!("service {service}"))
    }
}

/// A part of a walk that may be its end.
pub type Part<T> = Result<T, End>;
