//! Fragments. The first one of a packet is read in full. For the others, only their possible
//! results are known.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{DEVICE_MAC, Mac};
use millrace_lab::program::NEXT_HOP_MAC;
use proxy_common::verdict::Reason;

use crate::oracle::{Done, Reasons};
use crate::packet::{ETHERNET, Packet, residue, skip_extensions};
use crate::translated::turned_macs;
use crate::world::{NODES, address};

/// A fragment.
pub struct Fragment {
    /// The addresses, with ports if it has a whole transport header, and the place of that header.
    pub packet: Packet,
    /// Whether it has a transport header, as the first fragment.
    pub has_header: bool,
}

/// The reasons to drop a fragment without ports.
pub const DROPS: Reasons = &[
    Reason::FragmentHeld,
    Reason::FragmentUnknown,
    Reason::NoEndpoint,
    Reason::NoLocalEndpoint,
    Reason::HopLimit,
    Reason::TooBig,
    Reason::ReplyKeyInUse,
    Reason::SnatPorts,
    Reason::UnknownPort,
];
/// The reasons of XDP, which holds no fragment.
pub const XDP_DROPS: Reasons = match DROPS {
    [_, rest @ ..] => rest,
    [] => DROPS,
};

impl Fragment {
    /// Reads a fragment of TCP, UDP or SCTP, or returns `None`.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let (v6, offset, packet) = match frame.get(12..14)? {
            [0x08, 0x00] => Self::ipv4(frame)?,
            [0x86, 0xdd] => Self::ipv6(frame)?,
            _ => return None,
        };
        let known = matches!(packet.protocol, 6 | 17 | 132) || v6 && offset != 0;
        let end = packet.network + packet.length;
        if !known || end > frame.len() || packet.payload > end {
            return None;
        }
        let bytes = if packet.protocol == 6 { 20 } else { 8 };
        let has_header = offset == 0 && packet.protocol != 132 && packet.payload + bytes <= end;
        let packet = if has_header { packet.read_ports(frame) } else { packet };
        Some(Self { packet, has_header })
    }

    fn ipv4(frame: &[u8]) -> Option<(bool, u16, Packet)> {
        let header: &[u8; 20] = frame.get(ETHERNET..)?.first_chunk()?;
        let field = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
        let header_length = usize::from(header[0] & 0xf) * 4;
        if field == 0 || header[0] >> 4 != 4 || header_length < 20 {
            return None;
        }
        let octets = |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).map(IpAddr::from).ok();
        let packet = Packet {
            network: ETHERNET,
            payload: ETHERNET + header_length,
            length: usize::from(u16::from_be_bytes([header[2], header[3]])),
            protocol: header[9],
            source: (octets(12)?, 0).into(),
            destination: (octets(16)?, 0).into(),
            hop_limit: header[8],
            is_plain: header_length == 20,
        };
        Some((false, field & 0x1fff, packet))
    }

    fn ipv6(frame: &[u8]) -> Option<(bool, u16, Packet)> {
        const FRAGMENT: u8 = 44;
        let header: &[u8; 40] = frame.get(ETHERNET..)?.first_chunk()?;
        let (at, protocol) = skip_extensions(frame, ETHERNET + 40, header[6])?;
        let fragment: &[u8; 8] = frame.get(at..)?.first_chunk()?;
        let field = u16::from_be_bytes([fragment[2], fragment[3]]);
        if header[0] >> 4 != 6 || protocol != FRAGMENT || field & 0xfff9 == 0 {
            return None;
        }
        let offset = field >> 3;
        let (payload, protocol) =
            if offset == 0 { skip_extensions(frame, at + 8, fragment[0])? } else { (at + 8, fragment[0]) };
        let octets = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).map(IpAddr::from).ok();
        let packet = Packet {
            network: ETHERNET,
            payload,
            length: usize::from(u16::from_be_bytes([header[4], header[5]])) + 40,
            protocol,
            source: (octets(8)?, 0).into(),
            destination: (octets(24)?, 0).into(),
            hop_limit: header[7],
            is_plain: false,
        };
        Some((true, offset, packet))
    }
}

/// Returns whether a fragment without ports is the old one to, or from, one of `allowed`: only the
/// address and a checksum have changed.
pub fn is_later_translated(
    done: &Done<'_>,
    packet: &Packet,
    mut allowed: impl Iterator<Item = SocketAddr>,
    is_destination: bool,
) -> bool {
    allowed.any(|to| {
        let mut expected = done.before.to_vec();
        write_address(&mut expected, packet, to.ip(), is_destination);
        is_same(done, packet, expected)
    })
}

/// Returns whether a fragment without ports is the old one on its way from this node to `to`, with
/// a hop limit lower by one.
pub fn is_later_forwarded(done: &Done<'_>, packet: &Packet, to: SocketAddr) -> bool {
    let mut expected = done.before.to_vec();
    let macs: &[Mac; 2] = &[NEXT_HOP_MAC, DEVICE_MAC];
    expected[..12].copy_from_slice(macs.as_flattened());
    write_address(&mut expected, packet, address(packet.is_v6(), NODES, 1), false);
    write_address(&mut expected, packet, to.ip(), true);
    expected[packet.network + if packet.is_v6() { 7 } else { 8 }] -= 1;
    is_same(done, packet, expected)
}

/// Returns whether a fragment without ports is the old one on its way back to its pod, from the
/// address that it was sent to.
pub fn is_later_turned(done: &Done<'_>, packet: &Packet) -> bool {
    let mut expected = done.before.to_vec();
    expected[..12].copy_from_slice(turned_macs(done).as_flattened());
    write_address(&mut expected, packet, packet.destination.ip(), false);
    write_address(&mut expected, packet, packet.source.ip(), true);
    is_same(done, packet, expected)
}

fn write_address(frame: &mut [u8], packet: &Packet, to: IpAddr, is_destination: bool) {
    let (octets, first) = match to {
        IpAddr::V4(to) => (to.octets().to_vec(), packet.network + 12),
        IpAddr::V6(to) => (to.octets().to_vec(), packet.network + 8),
    };
    let at = if is_destination { first + octets.len() } else { first };
    frame[at..at + octets.len()].copy_from_slice(&octets);
}

/// Returns whether the remaining frame is `expected`, with a header checksum as right or wrong as
/// before.
fn is_same(done: &Done<'_>, packet: &Packet, mut expected: Vec<u8>) -> bool {
    if expected.len() != done.after.len() {
        return false;
    }
    if packet.is_v6() {
        return expected == done.after;
    }
    let (header, checksum) = (packet.network..packet.payload, packet.network + 10..packet.network + 12);
    expected[checksum.clone()].copy_from_slice(&done.after[checksum]);
    expected == done.after && residue(&done.before[header.clone()]) == residue(&done.after[header])
}
