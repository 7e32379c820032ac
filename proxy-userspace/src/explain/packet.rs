//! A frame as the programs read it: the first look, then the tuple.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proxy_common::Address;
use proxy_common::flow::FlowKey;
use proxy_common::rules::Role;
use proxy_common::sctp::{ABORT, INIT, INIT_ACK, SHUTDOWN_ACK, SHUTDOWN_COMPLETE};
use proxy_common::verdict::Program;

/// Protocol numbers.
pub mod protocol {
    pub const ICMP: u8 = 1;
    pub const IPV4: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const IPV6: u8 = 41;
    pub const ICMP6: u8 = 58;
    pub const SCTP: u8 = 132;
    pub const HOP_BY_HOP: u8 = 0;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// TCP flags.
pub mod flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const ACK: u8 = 0x10;
}

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
/// Bytes of TCP's, UDP's and SCTP's header, the last one with that of its first chunk.
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const SCTP_HEADER: usize = 16;
/// The first byte of an IPv4 header without options.
const PLAIN_START: u8 = 0x45;
/// More fragments, and the offset.
const FRAGMENT_MASK: u16 = 0x3fff;
const DONT_FRAGMENT: u16 = 0x4000;
/// The last byte at which the programs look for a transport header.
const MOST_HEADERS: usize = 192;
const MOST_EXTENSIONS: usize = 4;

/// The family of a frame, by its EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// The parts of a frame that the programs look at before they parse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek<A> {
    pub destination: A,
    /// The protocol field of the IP header.
    pub protocol: u8,
    /// The destination port of a plain packet of TCP or UDP.
    pub port: Option<u16>,
}

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<A> {
    pub key: FlowKey<A>,
    /// Offset of the transport header in the frame.
    pub payload: usize,
    /// Bytes of the IP packet.
    pub length: u32,
    /// TCP flags; for SCTP those with the same meaning.
    pub flags: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// Whether a router may cut the packet.
    pub may_be_cut: bool,
    /// Whether the IP header has no options.
    pub is_plain: bool,
}

/// The end of parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<A> {
    /// A packet with its tuple.
    Packet(Packet<A>),
    /// The programs leave it to the stack, for this reason.
    Untouched(&'static str),
    /// A fragment.
    Fragment,
}

impl<A> Packet<A> {
    /// Whether it opens a connection.
    pub const fn is_syn(&self) -> bool {
        self.flags & (flag::SYN | flag::ACK) == flag::SYN
    }
    /// Whether it ends a connection at once.
    pub const fn is_reset(&self) -> bool {
        self.flags & flag::RST != 0
    }
    /// The packet's role in its connection.
    pub const fn role(&self) -> Role {
        match (has_connections(self.key.protocol), self.is_syn()) {
            (false, _) => Role::Datagram,
            (true, true) => Role::Opening,
            (true, false) => Role::Midstream,
        }
    }
}

/// Whether a protocol has ports that the programs read.
pub const fn has_ports(number: u8) -> bool {
    matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Whether packets of a protocol show that they open a connection.
pub const fn has_connections(number: u8) -> bool {
    matches!(number, protocol::TCP | protocol::SCTP)
}

const fn is_extension(number: u8) -> bool {
    matches!(
        number,
        protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS | protocol::ROUTING | protocol::FRAGMENT
    )
}

/// Returns the family of a frame; `None` if it is not IP.
pub fn family(frame: &[u8]) -> Option<Family> {
    match frame.get(12..14)? {
        [0x08, 0x00] => Some(Family::V4),
        [0x86, 0xdd] => Some(Family::V6),
        _ => None,
    }
}

/// Bytes of a family's IP header without options or extensions.
pub const fn header_bytes<A: Address>() -> usize {
    if A::WORDS == 1 { IPV4_HEADER } else { IPV6_HEADER }
}

/// Reads the parts for the first look; `None` without a whole IP header.
pub fn peek<A: Address>(frame: &[u8]) -> Option<Peek<A>> {
    let bytes = Bytes(frame);
    let transport = ETHERNET + header_bytes::<A>();
    frame.get(..transport)?;
    let (protocol, destination, is_plain) = if A::WORDS == 1 {
        let is_plain = bytes.byte(ETHERNET)? == PLAIN_START && bytes.half(ETHERNET + 6)? & FRAGMENT_MASK == 0;
        (bytes.byte(ETHERNET + 9)?, bytes.address(ETHERNET + 16)?, is_plain)
    } else {
        (bytes.byte(ETHERNET + 6)?, bytes.address(ETHERNET + 24)?, true)
    };
    let has_ports = is_plain && matches!(protocol, protocol::TCP | protocol::UDP);
    let ports = if has_ports { frame.get(transport..transport + 4) } else { None };
    let port = ports.and_then(|ports| Bytes(ports).port(2));
    Some(Peek { destination, protocol, port })
}

/// Parses a frame as a program does.
pub fn parse<A: Address>(frame: &[u8], program: Program) -> Parsed<A> {
    let network = if A::WORDS == 1 { ipv4(frame) } else { ipv6(frame) };
    match network {
        Ok(packet) => with_transport(frame, packet, program),
        Err(end) => end,
    }
}

const SHORT: &str = "its headers don't fit the frame";

fn ipv4<A: Address>(frame: &[u8]) -> Result<Packet<A>, Parsed<A>> {
    let bytes = Bytes(frame);
    let read = || {
        Some((
            bytes.byte(ETHERNET)?,
            bytes.half(ETHERNET + 2)?,
            bytes.half(ETHERNET + 6)?,
            bytes.byte(ETHERNET + 8)?,
            bytes.byte(ETHERNET + 9)?,
            bytes.address(ETHERNET + 12)?,
            bytes.address(ETHERNET + 16)?,
        ))
    };
    let (start, length, fragment, hop_limit, protocol, source, destination) =
        read().ok_or(Parsed::Untouched(SHORT))?;
    let mut header = IPV4_HEADER;
    if start != PLAIN_START || fragment & FRAGMENT_MASK != 0 {
        header = usize::from(start & 0xf) * 4;
        if start >> 4 != 4 || header < IPV4_HEADER {
            return Err(Parsed::Untouched("its IPv4 header is broken"));
        }
        if fragment & FRAGMENT_MASK != 0 {
            return Err(Parsed::Fragment);
        }
    }
    let (payload, end) = (ETHERNET + header, ETHERNET + usize::from(length));
    if end < payload || end > frame.len() {
        return Err(Parsed::Untouched(SHORT));
    }
    Ok(Packet {
        key: FlowKey { source, destination, protocol, ..FlowKey::default() },
        payload,
        length: length.into(),
        flags: 0,
        hop_limit,
        may_be_cut: fragment & DONT_FRAGMENT == 0,
        is_plain: start == PLAIN_START,
    })
}

fn ipv6<A: Address>(frame: &[u8]) -> Result<Packet<A>, Parsed<A>> {
    let bytes = Bytes(frame);
    let read = || {
        Some((
            bytes.byte(ETHERNET)?,
            bytes.half(ETHERNET + 4)?,
            bytes.byte(ETHERNET + 6)?,
            bytes.byte(ETHERNET + 7)?,
            bytes.address(ETHERNET + 8)?,
            bytes.address(ETHERNET + 24)?,
        ))
    };
    let (start, claimed, next, hop_limit, source, destination) = read().ok_or(Parsed::Untouched(SHORT))?;
    let (payload, protocol) = step_over_all(&bytes, ETHERNET + IPV6_HEADER, next)?;
    let length = u32::from(claimed) + IPV6_HEADER as u32;
    if start >> 4 != 6 || ETHERNET + length as usize > frame.len() {
        return Err(Parsed::Untouched(SHORT));
    }
    Ok(Packet {
        key: FlowKey { source, destination, protocol, ..FlowKey::default() },
        payload,
        length,
        flags: 0,
        hop_limit,
        may_be_cut: false,
        is_plain: payload == ETHERNET + IPV6_HEADER,
    })
}

/// Steps over extension headers, as far as the programs do.
fn step_over_all<A>(bytes: &Bytes<'_>, mut at: usize, mut next: u8) -> Result<(usize, u8), Parsed<A>> {
    for _ in 0..MOST_EXTENSIONS {
        if !is_extension(next) {
            break;
        }
        let (behind, units) = (bytes.byte(at), bytes.byte(at + 1));
        let (Some(behind), Some(units)) = (behind, units) else { return Err(Parsed::Untouched(SHORT)) };
        if next == protocol::FRAGMENT {
            let (Some(field), Some(_)) = (bytes.half(at + 2), bytes.byte(at + 7)) else {
                return Err(Parsed::Untouched(SHORT));
            };
            if field & 0xfff9 != 0 {
                return Err(Parsed::Fragment);
            }
            at += 8;
        } else {
            if next == protocol::ROUTING && bytes.byte(at + 3) != Some(0) {
                return Err(Parsed::Untouched("its routing header is not used up"));
            }
            at += (usize::from(units) + 1) * 8;
        }
        next = behind;
        if at > MOST_HEADERS {
            return Err(Parsed::Untouched("its extension headers are too long"));
        }
    }
    Ok((at, next))
}

/// Reads ports and flags, if the protocol has ports and its header lies inside the packet.
fn with_transport<A: Address>(frame: &[u8], mut packet: Packet<A>, program: Program) -> Parsed<A> {
    let bytes = Bytes(frame);
    let at = packet.payload;
    let (needed, header) = match packet.key.protocol {
        protocol::TCP => (TCP_HEADER, TCP_HEADER),
        protocol::UDP => (UDP_HEADER, UDP_HEADER),
        // The chunk of a frame that is still to be cut up is elsewhere; TC reads the ports then.
        protocol::SCTP if program == Program::XdpIngress => (SCTP_HEADER, SCTP_HEADER),
        protocol::SCTP => (12, SCTP_HEADER),
        _ => return Parsed::Packet(packet),
    };
    let used = at - ETHERNET + header;
    if frame.len() < at + needed || used > packet.length as usize {
        return Parsed::Untouched(SHORT);
    }
    packet.key.source_port = bytes.port(at).unwrap_or(0);
    packet.key.destination_port = bytes.port(at + 2).unwrap_or(0);
    packet.flags = match packet.key.protocol {
        protocol::TCP => bytes.byte(at + 13).unwrap_or(0),
        protocol::SCTP => chunk_flags(bytes.byte(at + 12)),
        _ => 0,
    };
    Parsed::Packet(packet)
}

/// Returns the TCP flags with the meaning of a packet's first chunk.
fn chunk_flags(chunk: Option<u8>) -> u8 {
    match chunk {
        Some(INIT) => flag::SYN,
        Some(INIT_ACK) => flag::SYN | flag::ACK,
        Some(ABORT | SHUTDOWN_COMPLETE) => flag::RST,
        Some(SHUTDOWN_ACK) => flag::FIN | flag::ACK,
        _ => flag::ACK,
    }
}

/// The bytes of a frame.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }
    fn half(&self, at: usize) -> Option<u16> {
        self.0.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
    }
    /// A port in network byte order.
    fn port(&self, at: usize) -> Option<u16> {
        self.half(at).map(u16::to_be)
    }
    fn address<A: Address>(&self, at: usize) -> Option<A> {
        let rest = self.0.get(at..)?;
        A::from_ip(if A::WORDS == 1 {
            IpAddr::V4(Ipv4Addr::from(*rest.first_chunk::<4>()?))
        } else {
            IpAddr::V6(Ipv6Addr::from(*rest.first_chunk::<16>()?))
        })
    }
}
