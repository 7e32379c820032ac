//! This node's own connections at a port that a frontend has, too.
//!
//! They belong to its sockets, and to pods whose packets its CNI masquerades. Both take ports that may be a
//! NodePort's number. kube-proxy never sees packets that conntrack knows. Here `tc_egress`, which every
//! packet that leaves the node passes, records packets from such a port, and the answers go to the stack.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::frontend::{FRONTEND_KIND_NODE_PORT, FRONTEND_LISTENER, Frontend};
use proxy_common::node_flow::{NODE_DATAGRAM_SECONDS, node_port_bit};

use crate::flow;
use crate::header::{has_connections, tcp_flag};
use crate::maps::family::{Family, KeyOf};
use crate::maps::{self, clock, peers};
use crate::packet::Parsed;
use crate::select::backend;

/// Whether a frontend on an address of this node may have a port, network byte order.
///
/// One array look-up rules out nearly all other ports.
#[inline(always)]
pub fn may_be_node_port(port: u16) -> bool {
    let (word, mask) = node_port_bit(port);
    maps::NODE_PORTS.get(word).is_some_and(|word| *word & mask != 0)
}

/// Records a packet that leaves the node unchanged. A RST ends a connection, or answers one that does not
/// exist.
#[inline(never)]
pub fn record<F: Family>(parsed: &Parsed<F::Address>) {
    if parsed.tcp_flags & tcp_flag::RST != 0 {
        return;
    }
    let key = parsed.key.reversed();
    // At other addresses a backend answers directly. A listener answers clients, whose next packets are for
    // its Service.
    let is_at_risk = |frontend: &Frontend| {
        frontend.flags & FRONTEND_LISTENER == 0 && is_on_node::<F>(frontend, &key.destination)
    };
    // A packet with a flow entry is a reply, translated already on another device or by `tc_ingress`.
    if !backend::lookup_frontend::<F>(&key).is_some_and(|frontend| is_at_risk(&frontend))
        || flow::find::<F>(&key).is_some()
    {
        return;
    }
    let now = clock::now();
    match F::node_flows().get_ptr_mut(&key) {
        // SAFETY: the map's memory; if it is being recycled, another connection gets a wrong time once.
        Some(seen) => unsafe { *seen = now },
        None => {
            let _ = F::node_flows().insert(&key, now, BPF_ANY.into());
        }
    }
}

/// As [`is_nodes_own`], before any flow entry is looked up, so every packet pays for it.
///
/// This node's connections have no reserved port, unless a NodePort may have it.
#[inline(always)]
pub fn is_nodes_ephemeral<F: Family>(parsed: &Parsed<F::Address>, frontend: &Frontend) -> bool {
    const RESERVED: u16 = 1024;
    let may_be =
        frontend.kind() == FRONTEND_KIND_NODE_PORT || u16::from_be(parsed.key.destination_port) >= RESERVED;
    may_be && is_nodes_own::<F>(parsed, frontend)
}

/// Whether a packet for a frontend, without a flow entry, belongs to this node's own connection.
///
/// Such a connection does not begin with an incoming packet. A served connection never begins with a packet
/// that answers one.
#[inline(always)]
pub fn is_nodes_own<F: Family>(parsed: &Parsed<F::Address>, frontend: &Frontend) -> bool {
    if !may_be_node_port(parsed.key.destination_port) {
        return false;
    }
    is_on_node::<F>(frontend, &parsed.key.destination) && has::<F>(parsed)
}

/// Whether a frontend is at an address of this node.
#[inline(always)]
fn is_on_node<F: Family>(frontend: &Frontend, address: &F::Address) -> bool {
    frontend.kind() == FRONTEND_KIND_NODE_PORT || peers::is_own::<F>(address)
}

#[inline(never)]
fn has<F: Family>(parsed: &Parsed<F::Address>) -> bool {
    const ANSWERS: u8 = tcp_flag::SYN | tcp_flag::ACK;
    if !has_connections(parsed.key.protocol) {
        return is_known::<F>(&parsed.key);
    }
    match parsed.tcp_flags & ANSWERS {
        tcp_flag::SYN => false,
        ANSWERS => true,
        _ => is_known::<F>(&parsed.key),
    }
}

/// Whether an ICMP error is about this node's own connection; `key` is that of incoming packets.
#[inline(always)]
pub fn is_about_nodes<F: Family>(key: &KeyOf<F>) -> bool {
    may_be_node_port(key.destination_port) && is_known::<F>(key)
}

/// Whether packets with this key belong to this node's own connection. An incoming packet renews an exchange
/// of datagrams.
#[inline(never)]
fn is_known<F: Family>(key: &KeyOf<F>) -> bool {
    let Some(seen) = F::node_flows().get_ptr_mut(key) else {
        return false;
    };
    if has_connections(key.protocol) {
        return true;
    }
    let now = clock::now();
    // SAFETY: as in `record`.
    unsafe {
        let is_recent = now.wrapping_sub(*seen) <= NODE_DATAGRAM_SECONDS;
        if is_recent && *seen != now {
            *seen = now;
        }
        is_recent
    }
}
