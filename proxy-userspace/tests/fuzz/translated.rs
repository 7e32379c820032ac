//! Packets with translated addresses and ports: of a backend, of a frontend, of this node.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{DEVICE_MAC, Mac};
use millrace_lab::program::NEXT_HOP_MAC;
use proxy_common::config::DEFAULT_SNAT_PORTS;

use crate::oracle::{Done, require};
use crate::packet::{ETHERNET, Packet, residue};
use crate::world::{NODES, address};

/// Returns whether the frame is the old one, from a port of this node to a backend. Its hop limit
/// is lower by one, and its checksums are as right or wrong as before.
pub fn is_forwarded(done: &Done<'_>, packet: &Packet, to: SocketAddr) -> bool {
    let source = address(packet.is_v6(), NODES, 1);
    is_rewritten(done, packet, [NEXT_HOP_MAC, DEVICE_MAC], packet.hop_limit - 1, |[port, _]| {
        DEFAULT_SNAT_PORTS.contains(&port).then_some([SocketAddr::new(source, port), to])
    })
}

/// Returns whether the frame goes back to its pod's own server, from the frontend and a port of
/// this node.
pub fn is_given_back(done: &Done<'_>, packet: &Packet, to: SocketAddr) -> bool {
    let frontend = packet.destination.ip();
    is_rewritten(done, packet, turned_macs(done), packet.hop_limit, |[port, _]| {
        DEFAULT_SNAT_PORTS.contains(&port).then_some([SocketAddr::new(frontend, port), to])
    })
}

/// Returns whether the frame goes back to its pod's own client, from the frontend that the client
/// had asked.
pub fn is_answered(done: &Done<'_>, packet: &Packet, frontend: SocketAddr) -> bool {
    let pod = packet.source.ip();
    is_rewritten(done, packet, turned_macs(done), packet.hop_limit, |[_, port]| {
        DEFAULT_SNAT_PORTS
            .contains(&packet.destination.port())
            .then_some([frontend, SocketAddr::new(pod, port)])
    })
}

/// Returns the MAC addresses of a frame that goes back to its sender.
pub fn turned_macs(done: &Done<'_>) -> [Mac; 2] {
    let mac = |at: usize| -> Mac { std::array::from_fn(|byte| done.before[at + byte]) };
    [mac(6), mac(0)]
}

/// Returns whether the frame is the old one with these MAC addresses, this hop limit, and the ends
/// that belong to its ports. Its checksums are as right or wrong as before.
fn is_rewritten(
    done: &Done<'_>,
    packet: &Packet,
    macs: [Mac; 2],
    hop_limit: u8,
    ends: impl Fn([u16; 2]) -> Option<[SocketAddr; 2]>,
) -> bool {
    let (network, payload, checksum) = (packet.network, packet.payload, packet.checksum());
    let mut before = done.before.to_vec();
    if before.len() != done.after.len() {
        return false;
    }
    let port = |at: usize| u16::from_be_bytes([done.after[at], done.after[at + 1]]);
    let Some([source, destination]) = ends([port(payload), port(payload + 2)]) else { return false };
    let (old_sums, old_checksum) = (sums(&before, packet), before[checksum.clone()].to_vec());
    before[..12].copy_from_slice(macs.as_flattened());
    let (addresses, hop_limit_at) =
        if packet.is_v6() { (network + 8, network + 7) } else { (network + 12, network + 8) };
    let octets = [octets(source.ip()), octets(destination.ip())].concat();
    before[addresses..addresses + octets.len()].copy_from_slice(&octets);
    before[hop_limit_at] = hop_limit;
    if !packet.is_v6() {
        before[network + 10..network + 12].copy_from_slice(&done.after[network + 10..network + 12]);
    }
    before[payload..payload + 2].copy_from_slice(&source.port().to_be_bytes());
    before[payload + 2..payload + 4].copy_from_slice(&destination.port().to_be_bytes());
    let new_checksum = &done.after[checksum.clone()];
    before[checksum].copy_from_slice(new_checksum);
    let new_sums = sums(done.after, packet);
    let is_none = |checksum: &[u8]| checksum.iter().all(|byte| *byte == 0);
    let sums_fit = if packet.may_be_unsealed() && (is_none(&old_checksum) || is_none(new_checksum)) {
        old_checksum == new_checksum && old_sums.0 == new_sums.0
    } else {
        old_sums == new_sums
    };
    before == done.after && sums_fit
}

/// Returns whether the frame is the old one without an outer header of `header` bytes, with a
/// destination (or source) from `allowed`. Its checksums are as right or wrong as before.
pub fn is_translated(
    done: &Done<'_>,
    packet: &Packet,
    header: usize,
    allowed: impl Iterator<Item = SocketAddr>,
    is_destination: bool,
) -> Result<(), String> {
    let mut before = done.before.to_vec();
    before.drain(ETHERNET..ETHERNET + header);
    before[12..14].copy_from_slice(if packet.is_v6() { &[0x86, 0xdd] } else { &[0x08, 0x00] });
    let packet = &packet.without(header);
    let (network, payload, checksum) = (packet.network, packet.payload, packet.checksum());
    let old_sums = sums(&before, packet);
    require(before.len() == done.after.len(), "translated to another length")?;

    let (old_checksum, new_checksum) = (before[checksum.clone()].to_vec(), &done.after[checksum.clone()]);
    let (addresses, length) = if packet.is_v6() { (network + 8, 16) } else { (network + 12, 4) };
    let address_at = addresses + if is_destination { length } else { 0 };
    let port_at = payload + if is_destination { 2 } else { 0 };
    let matches = allowed.into_iter().any(|to| {
        let octets: Vec<u8> = match to.ip() {
            std::net::IpAddr::V4(address) => address.octets().into(),
            std::net::IpAddr::V6(address) => address.octets().into(),
        };
        before[address_at..address_at + length].copy_from_slice(&octets);
        before[port_at..port_at + 2].copy_from_slice(&to.port().to_be_bytes());
        before[checksum.clone()].copy_from_slice(new_checksum);
        if !packet.is_v6() {
            before[network + 10..network + 12].copy_from_slice(&done.after[network + 10..network + 12]);
        }
        before == done.after
    });
    require(matches && payload - network >= 20, "more was changed than an address, a port and checksums")?;
    let is_none = |checksum: &[u8]| checksum.iter().all(|byte| *byte == 0);
    let new_sums = sums(done.after, packet);
    if packet.may_be_unsealed() && (is_none(&old_checksum) || is_none(new_checksum)) {
        require(old_checksum == new_checksum, "a checksum appeared or vanished")?;
        return require(old_sums.0 == new_sums.0, "IPv4 checksum");
    }
    require(old_sums == new_sums, "checksums do not fit the new addresses")
}

/// Returns the residue of the IPv4 header (0 for IPv6), and the invariant of the transport's
/// checksum.
fn sums(frame: &[u8], packet: &Packet) -> (u32, u32) {
    let ip = if packet.is_v6() { 0 } else { residue(&frame[packet.network..packet.payload]) };
    (ip, packet.seal(frame))
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}
