//! Tunnels from this node to backends on other nodes.

use millrace_lab::frame::{DEVICE_MAC, Mac};
use millrace_lab::program::{Endpoint, NEXT_HOP_MAC};
use proxy_common::way::FOU_PORT;

use crate::oracle::Done;
use crate::packet::{ETHERNET, Packet, residue};
use crate::world::{Frontend, NODES, address};

/// Bit of a hint: the packet was sent on once.
const FLAG: u32 = 1 << 14;

/// Returns the bytes of the outer header for a backend on another node.
pub fn outer_header(frontend: &Frontend, endpoint: &Endpoint) -> usize {
    match (frontend.is_dsr, is_outer_v6(endpoint)) {
        (false, _) => 0,
        (true, false) => 20,
        (true, true) => 40,
    }
}

/// Returns whether the way to a backend is IPv6. In this world, backends 5, 7 and 8 are behind IPv4
/// ways, and backend 6 is behind an IPv6 one.
pub fn is_outer_v6(endpoint: &Endpoint) -> bool {
    node_of(endpoint) == 3
}

fn node_of(endpoint: &Endpoint) -> u8 {
    let number = match endpoint.at.ip() {
        std::net::IpAddr::V4(address) => address.octets()[3],
        std::net::IpAddr::V6(address) => address.octets()[15],
    };
    if number == 6 { 3 } else { 2 }
}

/// Returns whether the frame is the old one inside a right outer header, with a hop limit lower by
/// one.
pub fn is_encapsulated(done: &Done<'_>, packet: &Packet, to: &Endpoint) -> bool {
    let Some(inner) = behind_outer(done, to, packet.is_v6(), to.hint.into()) else { return false };
    let mut before = done.before[ETHERNET..].to_vec();
    let ip = residue(&before[..packet.payload - packet.network]);
    if packet.is_v6() {
        before[7] -= 1;
        return before == inner;
    }
    before[8] -= 1;
    before[10..12].copy_from_slice(&inner[10..12]);
    before == inner && ip == residue(&inner[..packet.payload - packet.network])
}

/// Returns whether the inner packet is the old one, and only the new outer header is flagged.
pub fn is_sent_on(done: &Done<'_>, outer: &Packet, inner: &Packet, to: &Endpoint) -> bool {
    let at = outer.network;
    let hint = if outer.is_v6() {
        u32::from_be_bytes([0, done.before[at + 1], done.before[at + 2], done.before[at + 3]])
    } else {
        u32::from(u16::from_be_bytes([done.before[at + 4], done.before[at + 5]]))
    };
    // Without DF, the identification is no hint.
    let flagged = hint & FLAG != 0 && (outer.is_v6() || done.before[at + 6] & 0x40 != 0);
    let sent = behind_outer(done, to, inner.is_v6(), u32::from(to.hint) | FLAG);
    to.way != 0 && !flagged && sent == Some(&done.before[inner.network..])
}

/// Returns the bytes behind the outer header, if that header is the one for this backend.
fn behind_outer<'a>(done: &Done<'a>, to: &Endpoint, is_v6: bool, hint: u32) -> Option<&'a [u8]> {
    let (source, destination) =
        (address(is_outer_v6(to), NODES, 1), address(is_outer_v6(to), NODES, node_of(to)));
    let outer = Packet::outermost(done.after)?;
    let macs: &[Mac; 2] = &[NEXT_HOP_MAC, DEVICE_MAC];
    let in_udp = Packet::outermost(done.before).is_some_and(|packet| packet.is_tunnel());
    let between = if in_udp { 8 } else { 0 };
    let inner = done.after.get(outer.payload + between..)?;
    let inner_length = match (is_v6, inner.get(..6)?) {
        (false, head) => usize::from(u16::from_be_bytes([head[2], head[3]])),
        (true, head) => usize::from(u16::from_be_bytes([head[4], head[5]])) + 40,
    };
    let found = if outer.is_v6() {
        u32::from_be_bytes([0, done.after[15] & 0xf, done.after[16], done.after[17]])
    } else {
        u32::from(u16::from_be_bytes([done.after[18], done.after[19]]))
    };
    let right = done.after[..12] == *macs.as_flattened()
        && (outer.source.ip(), outer.destination.ip()) == (source, destination)
        && outer.protocol
            == if in_udp {
                17
            } else if is_v6 {
                41
            } else {
                4
            }
        && (!in_udp || is_written(&done.after[outer.payload..], inner_length))
        && (outer.hop_limit, outer.is_plain, found) == (64, true, hint)
        && outer.payload - outer.network + between + inner_length == outer.length
        && (outer.is_v6() || residue(&done.after[ETHERNET..ETHERNET + 20]) == 0);
    right.then_some(inner)
}

/// Returns whether this is the UDP header of a tunnel: from a dynamic port, without a checksum.
fn is_written(header: &[u8], inner_length: usize) -> bool {
    let [high, _, to_high, to_low, length_high, length_low, checksum @ ..] = header else { return false };
    *high >= 0xc0
        && u16::from_be_bytes([*to_high, *to_low]) == FOU_PORT
        && usize::from(u16::from_be_bytes([*length_high, *length_low])) == inner_length + 8
        && checksum.starts_with(&[0, 0])
}
