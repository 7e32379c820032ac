//! Packets that leave for a backend on another node from an address and port of this one.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{DEVICE_MAC, Mac};
use millrace_lab::program::NEXT_HOP_MAC;
use proxy_common::config::DEFAULT_SNAT_PORTS;

use crate::oracle::{Done, sums};
use crate::packet::Packet;
use crate::world::{NODES, address};

/// The frame is the old one from a port of this node to a backend, its hop limit lower by one, with checksums that are as
/// right or wrong as before.
pub fn is_forwarded(done: &Done<'_>, packet: &Packet, to: SocketAddr) -> bool {
    let (network, payload, checksum) = (packet.network, packet.payload, packet.checksum());
    let mut before = done.before.to_vec();
    if before.len() != done.after.len() {
        return false;
    }
    let old_sums = sums(&before, packet, network, payload);
    let old_checksum = [before[checksum], before[checksum + 1]];
    let macs: &[Mac; 2] = &[NEXT_HOP_MAC, DEVICE_MAC];
    before[..12].copy_from_slice(macs.as_flattened());
    let (addresses, hop_limit) =
        if packet.is_v6() { (network + 8, network + 7) } else { (network + 12, network + 8) };
    let octets = [octets(address(packet.is_v6(), NODES, 1)), octets(to.ip())].concat();
    before[addresses..addresses + octets.len()].copy_from_slice(&octets);
    before[hop_limit] -= 1;
    if !packet.is_v6() {
        before[network + 10..network + 12].copy_from_slice(&done.after[network + 10..network + 12]);
    }
    let port = u16::from_be_bytes([done.after[payload], done.after[payload + 1]]);
    before[payload..payload + 2].copy_from_slice(&port.to_be_bytes());
    before[payload + 2..payload + 4].copy_from_slice(&to.port().to_be_bytes());
    before[checksum..checksum + 2].copy_from_slice(&done.after[checksum..checksum + 2]);
    let new_checksum = [done.after[checksum], done.after[checksum + 1]];
    let new_sums = sums(done.after, packet, network, payload);
    let sums_fit = if packet.protocol == 17 && (old_checksum == [0, 0] || new_checksum == [0, 0]) {
        old_checksum == new_checksum && old_sums.0 == new_sums.0
    } else {
        old_sums == new_sums
    };
    before == done.after && DEFAULT_SNAT_PORTS.contains(&port) && sums_fit
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}
