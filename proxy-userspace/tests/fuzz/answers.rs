//! ICMP errors, read from the bytes by RFC 792 and RFC 4443, without code of the programs.

use std::net::IpAddr;

use crate::oracle::Done;
use crate::packet::{ETHERNET, Packet, residue};
use crate::world::{NODES, address};

/// The content and the sender of an error.
pub struct Error {
    source: IpAddr,
    kind_and_code: [u8; 2],
    rest: [u8; 4],
}

/// Returns the error for a port that nothing serves.
pub fn unreachable(packet: &Packet) -> Error {
    let kind_and_code = if packet.is_v6() { [1, 4] } else { [3, 3] };
    Error { source: packet.destination.ip(), kind_and_code, rest: [0; 4] }
}

/// Returns the error for an unknown protocol. With IPv6 it points to the byte of that protocol.
pub fn unknown_protocol(packet: &Packet) -> Error {
    let (kind_and_code, rest) = if packet.is_v6() { ([4, 1], [0, 0, 0, 6]) } else { ([3, 2], [0; 4]) };
    Error { source: packet.destination.ip(), kind_and_code, rest }
}

/// Returns the error for a packet whose last hop was this node. Its sender has an address of the
/// way's family.
pub fn time_exceeded(packet: &Packet, outer_v6: bool) -> Error {
    let source =
        if packet.is_v6() == outer_v6 { address(outer_v6, NODES, 1) } else { packet.destination.ip() };
    Error { source, kind_and_code: [if packet.is_v6() { 3 } else { 11 }, 0], rest: [0; 4] }
}

/// Returns the error for a packet of more than `size` bytes.
pub fn too_big(packet: &Packet, size: usize) -> Error {
    let kind_and_code = if packet.is_v6() { [2, 0] } else { [3, 4] };
    Error { source: packet.destination.ip(), kind_and_code, rest: (size as u32).to_be_bytes() }
}

/// Returns whether the remaining frame carries ICMP.
pub fn is_error(done: &Done<'_>, packet: &Packet) -> bool {
    let (protocol, icmp) = if packet.is_v6() { (20, 58) } else { (23, 1) };
    done.after[12..14] == done.before[12..14] && done.after[protocol] == icmp
}

/// Returns whether one host may answer the other.
fn is_answerable(done: &Done<'_>, packet: &Packet) -> bool {
    let is_host = |address: IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_multicast() && !matches!(v4.octets()[0], 0 | 240..=255),
        IpAddr::V6(v6) => !v6.is_multicast() && v6.octets()[..12] != [0; 12],
    };
    done.before[0] & 1 == 0 && is_host(packet.source.ip())
}

/// Returns whether a packet is an echo request that may be answered.
pub fn is_echo_request(done: &Done<'_>, packet: &Packet) -> bool {
    let (icmp, kind) = if packet.is_v6() { (58, 128) } else { (1, 8) };
    let header = packet.payload - packet.network + 8;
    packet.protocol == icmp
        && packet.length >= header
        && done.before[packet.payload..packet.payload + 2] == [kind, 0]
        && is_answerable(done, packet)
}

/// Checks that the frame is the echo of the request: equal but for the way back, with a checksum as
/// right or wrong as before.
pub fn check_echo(done: &Done<'_>, packet: &Packet) -> Result<(), String> {
    let mut expected = done.before.to_vec();
    let after = done.after;
    expected[..6].copy_from_slice(&done.before[6..12]);
    expected[6..12].copy_from_slice(&done.before[..6]);
    let (addresses, length, hop_limit) = if packet.is_v6() { (22, 16, 21) } else { (26, 4, 22) };
    expected[addresses..addresses + 2 * length].rotate_left(length);
    expected[hop_limit] = 64;
    let (ip, message) = (ETHERNET..packet.payload, packet.payload..packet.payload + 4);
    if !packet.is_v6() {
        expected[24..26].copy_from_slice(&after[24..26]);
        if residue(&done.before[ip.clone()]) != residue(&after[ip]) {
            return Err("an echo, but its IP header's checksum is wrong".into());
        }
    }
    expected[packet.payload] = if packet.is_v6() { 129 } else { 0 };
    expected[packet.payload + 2..packet.payload + 4]
        .copy_from_slice(&after[packet.payload + 2..packet.payload + 4]);
    if residue(&done.before[message.clone()]) != residue(&after[message]) {
        return Err("an echo, but its checksum is wrong".into());
    }
    if expected == after { Ok(()) } else { Err("an echo of something else".into()) }
}

/// Checks that the frame was replaced by this error, and that its sender may be told.
pub fn check(done: &Done<'_>, packet: &Packet, error: &Error) -> Result<(), String> {
    if !is_answerable(done, packet) {
        return Err("this sender must not be answered".into());
    }
    let (before, after) = (done.before, done.after);
    let header = if packet.is_v6() { 40 } else { 20 };
    let quoted = &before[packet.network..packet.payload + 8];
    let message = ETHERNET + header;
    let found = Packet::outermost(after).ok_or("no IP packet")?;
    let pseudo_header =
        if packet.is_v6() { residue(&after[22..54]) + (8 + quoted.len() as u32) + 58 } else { residue(&[]) };
    let right = [
        ("its length", after.len() == message + 8 + quoted.len() && found.length == after.len() - ETHERNET),
        ("the MAC addresses", after[..6] == before[6..12] && after[6..12] == before[..6]),
        ("its source", found.source.ip() == error.source),
        ("its destination", found.destination.ip() == packet.source.ip()),
        ("its hop limit", found.hop_limit == 64),
        ("the IP header's checksum", packet.is_v6() || residue(&after[ETHERNET..message]) == 0),
        ("its checksum", (residue(&after[message..]) + pseudo_header).is_multiple_of(0xffff)),
        ("type and code", after[message..message + 2] == error.kind_and_code),
        ("what it says", after[message + 4..message + 8] == error.rest),
        ("its quote", after[message + 8..] == *quoted),
    ];
    let wrong = right.iter().find(|(_, is_right)| !is_right);
    wrong.map_or(Ok(()), |(what, _)| Err(format!("an ICMP error, but {what} is wrong")))
}

/// Returns whether a packet is an ICMP error of another host.
pub fn is_foreign_error(done: &Done<'_>, packet: &Packet) -> bool {
    let icmp = if packet.is_v6() { 58 } else { 1 };
    let kinds: &[u8] = if packet.is_v6() { &[1, 2, 3, 4] } else { &[3, 11, 12] };
    let is_whole = packet.length >= packet.payload - packet.network + 8;
    packet.is_plain && packet.protocol == icmp && is_whole && kinds.contains(&done.before[packet.payload])
}

/// Checks that an error was changed, but not its length and its content. Its checksums are as right
/// or wrong as before.
pub fn check_relayed(done: &Done<'_>, packet: &Packet) -> Result<(), String> {
    let (before, after) = (done.before, done.after);
    let (network, message, end) = (packet.network, packet.payload, packet.network + packet.length);
    let addresses = if packet.is_v6() { network + 8..network + 40 } else { network..network };
    let sum = |frame: &[u8]| (residue(&frame[addresses.clone()]) + residue(&frame[message..end])) % 0xffff;
    let ip = |frame: &[u8]| if packet.is_v6() { 0 } else { residue(&frame[network..message]) };
    let right = [
        ("its length", before.len() == after.len()),
        ("its MAC addresses", before[..14] == after[..14]),
        ("its type", before[message..message + 2] == after[message..message + 2]),
        ("what it says", before[message + 4..message + 8] == after[message + 4..message + 8]),
        ("what is behind it", before[end..] == after[end..]),
        ("its checksum", before.len() == after.len() && sum(before) == sum(after)),
        ("its IP header's checksum", ip(before) == ip(after)),
    ];
    let wrong = right.iter().find(|(_, is_right)| !is_right);
    wrong.map_or(Ok(()), |(what, _)| Err(format!("an ICMP error was relayed, but {what} is wrong")))
}
