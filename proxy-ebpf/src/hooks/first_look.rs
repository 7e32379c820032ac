//! The first look at a packet: most packets have nothing to do with Services, and end here before they are
//! parsed.
//!
//! Each question may be answered with "maybe" for a foreign packet, and never with "no" for one of ours. Only XDP may do
//! so for a frame that TC serves then.

use proxy_common::device_mac::{self, device_mac_place};
use proxy_common::vip::{FILTER_SERVED, FILTER_VIP};
use proxy_common::way::FOU_PORT;

use crate::header::{ETHERNET, Ports, protocol};
use crate::maps::{self, config, observe};
use crate::packet::ip::Header;
use crate::packet::{Kind, Packet};
use crate::select::{node_flow, vip};

/// Whether a packet that came in over an uplink may be for a Service, for this node, or a tunnel packet for
/// one of its pods.
#[inline(always)]
pub fn may_be_for_us<P: Packet, F: Header>(packet: &P) -> bool {
    const OWN: u64 = FILTER_SERVED;
    const BITS: u64 = FILTER_SERVED | FILTER_VIP;
    // The closure captures nothing: BTF has no name for what one captures, and libbpf refuses that.
    let answer = ask_destination::<P, F, u64>(packet, 0, |destination, protocol| {
        let is_tunnel = config::takes_ipip() && protocol == F::ENCAPSULATED;
        vip::filter_bits::<F>(destination) & BITS | if is_tunnel { BITS + 1 } else { 0 }
    });
    let is_for_us = if answer == OWN { may_be_for_node::<P, F>(packet) } else { answer != 0 };
    is_for_us || config::has_outer_sources() && is_for_outer_source::<P, F>(*packet)
}

/// Whether a frame is for another node's MAC address. Switches flood frames for addresses that they do not know.
///
/// The kernel knows best (`pkt_type`), but not in XDP. After a change of the address, XDP may leave frames for this node
/// to TC for a moment.
#[inline(always)]
pub fn is_for_another_mac<P: Packet>(packet: &P) -> bool {
    if !packet.may_be_for_another_mac() {
        return false;
    }
    let Some([first, second, _]) = packet.ethernet_addresses() else {
        return false;
    };
    let mac = u64::from(second.to_le() & 0xffff) << 32 | u64::from(first.to_le());
    let device = packet.device();
    let word = maps::DEVICE_MACS.get(device_mac_place(device)).copied().unwrap_or(0);
    device_mac::is_for_another_mac(word, device, mac)
}

/// Whether a packet for an address of this node may be for a NodePort, a reply to SNAT or a tunnel packet.
#[inline(always)]
fn may_be_for_node<P: Packet, F: Header>(packet: &P) -> bool {
    let Some((protocol, Ports { destination, .. })) = F::peek_ports(packet, ETHERNET) else {
        return true;
    };
    may_be_frontend_of_node(destination)
        || config::takes_fou() && protocol == protocol::UDP && destination == FOU_PORT.to_be()
}

/// Whether a port at an address of this node, where only NodePorts are, may be a NodePort's or that of a
/// translated client.
#[inline(always)]
fn may_be_frontend_of_node(port: u16) -> bool {
    node_flow::may_be_node_port(port) || config::is_snat_port(port)
}

/// Whether a packet is for an outer source address that all nodes share: an ICMP error about a tunnel packet.
///
/// Not inlined: the program's own stack has no room for an IPv6 prefix.
#[inline(never)]
fn is_for_outer_source<P: Packet, F: Header>(packet: P) -> bool {
    // The question about the length keeps LLVM from handing over the frame's bounds in place of the context,
    // which the verifier refuses.
    packet.has_bytes((ETHERNET + F::HEADER) as u32)
        && ask_destination::<P, F, bool>(&packet, false, |destination, _protocol| {
            F::is_outer_source(destination)
        })
}

/// Whether a packet may be for a Service's address.
#[inline(always)]
pub fn may_be_for_vip<P: Packet, F: Header>(packet: &P) -> bool {
    ask_destination::<P, F, bool>(packet, false, |destination, _protocol| vip::may_be_vip::<F>(destination))
}

/// Whether a packet of a pod may be for a Service, or may end an exchange with one: datagrams that a pod now
/// sends to the backend itself.
#[inline(always)]
pub fn may_be_request<P: Packet, F: Header>(packet: &P) -> bool {
    let Some((protocol, ports)) = F::peek_ports(packet, ETHERNET) else {
        return true;
    };
    let answer =
        ask_destination::<P, F, u64>(packet, 0, |destination, _protocol| vip::filter_bits::<F>(destination));
    let is_request = match answer & (FILTER_SERVED | FILTER_VIP) {
        0 => false,
        FILTER_SERVED => may_be_frontend_of_node(ports.destination),
        _ => true,
    };
    is_request || protocol == protocol::UDP && observe::has_served(ports.destination)
}

/// Whether a packet that leaves may be a backend's reply, one of this node's own at a NodePort's number, or a
/// tunnel packet.
#[inline(always)]
pub fn may_be_reply<P: Packet, F: Header>(packet: &P) -> bool {
    let Some((protocol, Ports { source, destination })) = F::peek_ports(packet, ETHERNET) else {
        return true;
    };
    // A pod that takes off the outer header answers from the Service's port.
    let may_be_special =
        if protocol == protocol::TCP { config::pods_decapsulate() } else { destination == FOU_PORT.to_be() };
    may_be_special || observe::has_served(source) || node_flow::may_be_node_port(source)
}

/// Asks about the destination and the protocol field of a packet's IP header. A packet without them is not
/// ours, and gets the answer `none`.
#[inline(always)]
fn ask_destination<P: Packet, F: Header, T>(packet: &P, none: T, ask: impl Fn(&F::Address, u8) -> T) -> T {
    match F::peek_destination(packet, ETHERNET, &ask) {
        Some(answer) => answer,
        None if P::KIND == Kind::Xdp => none,
        None => {
            packet.pull(ETHERNET + F::HEADER);
            F::peek_destination(packet, ETHERNET, ask).unwrap_or(none)
        }
    }
}
