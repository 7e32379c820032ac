//! The oracle's view of a frame, read from the bytes by the RFCs, without code of the programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use millrace_lab::frame;
use proxy_common::way::FOU_PORT;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;

/// An IP packet that carries TCP, UDP or SCTP, or another IP packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Offset of the IP header.
    pub network: usize,
    /// Offset of its payload, behind options and extension headers.
    pub payload: usize,
    /// Bytes of the IP packet.
    pub length: usize,
    /// The protocol of its payload.
    pub protocol: u8,
    /// Source; the port is 0 if there is none.
    pub source: SocketAddr,
    /// Destination; the port is 0 if there is none.
    pub destination: SocketAddr,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// Whether it has no options or extension headers. Packets with them may be handled or passed.
    pub is_plain: bool,
}

/// TCP, UDP and SCTP.
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
/// IPv6's routing and fragment headers.
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;

impl Packet {
    /// Reads the IP packet behind the Ethernet header.
    pub fn outermost(frame: &[u8]) -> Option<Self> {
        match frame.get(12..14)? {
            [0x08, 0x00] => Self::ipv4(frame, ETHERNET),
            [0x86, 0xdd] => Self::ipv6(frame, ETHERNET),
            _ => None,
        }
    }

    /// Reads the IP packet that this one carries, by itself or in UDP.
    pub fn inside(&self, frame: &[u8]) -> Option<Self> {
        let in_udp = self.payload + 8;
        match self.protocol {
            4 => Self::ipv4(frame, self.payload),
            41 => Self::ipv6(frame, self.payload),
            UDP if self.is_tunnel() => match frame.get(in_udp)? >> 4 {
                4 => Self::ipv4(frame, in_udp),
                6 => Self::ipv6(frame, in_udp),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether it is for the port of FoU.
    pub fn is_tunnel(&self) -> bool {
        self.protocol == UDP && self.destination.port() == FOU_PORT
    }

    /// Returns whether this is a TCP, UDP or SCTP packet with its whole header. For SCTP that
    /// includes the header of the first chunk.
    pub fn has_ports(&self) -> bool {
        matches!(self.protocol, TCP | UDP | SCTP)
    }

    /// Returns the place of the transport's checksum.
    pub fn checksum(&self) -> Range<usize> {
        let (offset, bytes) = match self.protocol {
            TCP => (16, 2),
            SCTP => (8, 4),
            _ => (6, 2),
        };
        self.payload + offset..self.payload + offset + bytes
    }

    /// Returns the same packet with other outer headers: `header` bytes less.
    pub const fn without(mut self, header: usize) -> Self {
        self.network -= header;
        self.payload -= header;
        self
    }

    /// Returns whether a checksum of zero means "none": for UDP over IPv4 (for the programs also
    /// over IPv6), and for SCTP.
    pub const fn may_be_unsealed(&self) -> bool {
        matches!(self.protocol, UDP | SCTP)
    }

    /// Returns the invariant of the transport's checksum and all bytes that it covers and that may
    /// change. If it is unchanged, the checksum is as right or wrong as before.
    pub fn seal(&self, frame: &[u8]) -> u32 {
        let field = self.checksum();
        if self.protocol == SCTP {
            let stored = u32::from_le_bytes(std::array::from_fn(|byte| frame[field.start + byte]));
            return stored
                ^ crc32c(&frame[self.payload..self.network + self.length], field.start - self.payload);
        }
        let addresses = if self.is_v6() {
            self.network + 8..self.network + 40
        } else {
            self.network + 12..self.network + 20
        };
        let covered = [addresses, self.payload..self.payload + 4, field];
        covered.into_iter().map(|part| residue(&frame[part])).sum::<u32>() % 0xffff
    }

    /// Returns whether the family is IPv6.
    pub fn is_v6(&self) -> bool {
        self.source.is_ipv6()
    }

    fn ipv4(frame: &[u8], network: usize) -> Option<Self> {
        let header: &[u8; 20] = frame.get(network..)?.first_chunk()?;
        let header_length = usize::from(header[0] & 0xf) * 4;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
        if header[0] >> 4 != 4 || header_length < 20 || length < header_length || is_fragment {
            return None;
        }
        let address = |at: usize| {
            IpAddr::from(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]))
        };
        let packet = Self {
            network,
            payload: network + header_length,
            length,
            protocol: header[9],
            source: (address(12), 0).into(),
            destination: (address(16), 0).into(),
            hop_limit: header[8],
            is_plain: header_length == 20,
        };
        packet.with_ports(frame)
    }

    fn ipv6(frame: &[u8], network: usize) -> Option<Self> {
        let header: &[u8; 40] = frame.get(network..)?.first_chunk()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let address = |at: usize| {
            let octets: [u8; 16] = std::array::from_fn(|byte| header[at + byte]);
            IpAddr::from(Ipv6Addr::from(octets))
        };
        let (payload, protocol) = skip_extensions(frame, network + 40, header[6])?;
        let packet = Self {
            network,
            payload,
            length: usize::from(u16::from_be_bytes([header[4], header[5]])) + 40,
            protocol,
            source: (address(8), 0).into(),
            destination: (address(24), 0).into(),
            hop_limit: header[7],
            is_plain: payload == network + 40,
        };
        packet.with_ports(frame)
    }

    fn with_ports(mut self, frame: &[u8]) -> Option<Self> {
        if self.network + self.length > frame.len() {
            return None;
        }
        if self.has_ports() {
            let header = match self.protocol {
                TCP => 20,
                SCTP => 16,
                _ => 8,
            };
            if self.payload + header > self.network + self.length {
                return None;
            }
            self = self.read_ports(frame);
        }
        Some(self)
    }

    /// Adds the ports at the beginning of the payload.
    pub fn read_ports(mut self, frame: &[u8]) -> Self {
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        self.source.set_port(port(self.payload));
        self.destination.set_port(port(self.payload + 2));
        self
    }
}

/// Skips hop-by-hop and destination options. Any other header moves the ports.
pub fn skip_extensions(frame: &[u8], mut at: usize, mut protocol: u8) -> Option<(usize, u8)> {
    while matches!(protocol, 0 | 60) {
        let [next, units]: [u8; 2] = *frame.get(at..)?.first_chunk()?;
        protocol = next;
        at += (usize::from(units) + 1) * 8;
    }
    Some((at, protocol))
}

/// Returns whether the IP packet, or one inside it, is a fragment, has a fragment header, or has a
/// routing header. Its result depends on earlier packets, or on headers that no test here reads.
pub fn needs_more_than_itself(frame: &[u8]) -> bool {
    let is_v6 = match frame.get(12..14) {
        Some([0x08, 0x00]) => false,
        Some([0x86, 0xdd]) => true,
        _ => return false,
    };
    if is_cut(frame, ETHERNET, is_v6) {
        return true;
    }
    let Some(outer) = Packet::outermost(frame) else { return false };
    match outer.protocol {
        4 => is_cut(frame, outer.payload, false),
        41 => is_cut(frame, outer.payload, true),
        UDP if outer.is_tunnel() => {
            let inner = outer.payload + 8;
            frame.get(inner).is_some_and(|version| is_cut(frame, inner, version >> 4 == 6))
        }
        _ => false,
    }
}

fn is_cut(frame: &[u8], network: usize, is_v6: bool) -> bool {
    let byte = |at: usize| frame.get(network + at).copied().unwrap_or(0);
    if !is_v6 {
        return byte(6) & 0x3f != 0 || byte(7) != 0;
    }
    matches!(skip_extensions(frame, network + 40, byte(6)), Some((_, ROUTING | FRAGMENT)))
}

/// Returns the Castagnoli CRC of bytes. The four bytes at `zero` count as zeros.
fn crc32c(bytes: &[u8], zero: usize) -> u32 {
    let mut copy = bytes.to_vec();
    copy.iter_mut().skip(zero).take(4).for_each(|byte| *byte = 0);
    frame::crc32c(&[&copy])
}

/// Returns the sum of 16-bit words modulo 65535, in which both zeros of a checksum are one.
pub fn residue(bytes: &[u8]) -> u32 {
    u32::from(!frame::internet_checksum(&[bytes])) % 0xffff
}
