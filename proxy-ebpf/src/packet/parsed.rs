//! From bytes to the tuple we look up. What we don't understand goes to the stack, untouched.

use proxy_common::flow::FlowKey;
use proxy_common::fragment::Side;
use proxy_common::rules::Role;

use super::Packet;
use crate::header::{Ports, SctpStart, Tcp, Udp, protocol, tcp_flag};
use crate::maps::family::Family;
use crate::packet::sctp;
use crate::parse::unusual::{self, Place};
use crate::verdict::{UNTOUCHED, Verdict};

/// Where the transport header is, and which it is.
#[derive(Clone, Copy)]
pub struct Transport {
    offset: u32,
    protocol: u8,
}

/// An IP packet as far as we look into it.
#[derive(Clone, Copy)]
pub struct Parsed<A> {
    /// The tuple; ports are zero for what has none.
    pub key: FlowKey<A>,
    /// Offset of the IP header.
    pub network: u32,
    /// Offset of what follows the IP header and its extensions.
    pub payload: u32,
    /// Bytes of the IP packet.
    pub length: u32,
    /// TCP flags; of SCTP those that mean the same to a connection; zero for UDP.
    pub tcp_flags: u8,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// Not zero for a later fragment.
    pub later: u8,
}

/// Highest offset a transport header can have: keeps the verifier's idea of a variable offset small.
const MAX_OFFSET: u32 = 511;

impl Transport {
    /// A header at an offset, of which no more need be known.
    #[inline(always)]
    pub const fn at(offset: u32) -> Self {
        Self { offset, protocol: 0 }
    }
    /// Offset of the header in the frame.
    #[inline(always)]
    pub const fn offset(self) -> usize {
        (self.offset & MAX_OFFSET) as usize
    }
    /// TCP, else UDP or SCTP.
    #[inline(always)]
    pub const fn is_tcp(self) -> bool {
        self.protocol == protocol::TCP
    }
    /// SCTP, whose checksum is another one.
    #[inline(always)]
    pub const fn is_sctp(self) -> bool {
        self.protocol == protocol::SCTP
    }
}

impl<A> Parsed<A> {
    /// Offset of the IP header.
    #[inline(always)]
    pub const fn network_offset(&self) -> usize {
        (self.network & MAX_OFFSET) as usize
    }
    /// Where the transport header is.
    #[inline(always)]
    pub const fn transport(&self) -> Transport {
        Transport { offset: self.payload, protocol: self.key.protocol }
    }
    /// A later fragment: without a transport header; its ports are the first one's.
    #[inline(always)]
    pub const fn is_later(&self) -> bool {
        self.later != 0
    }
    /// TCP, UDP or SCTP, so that the key is whole.
    #[inline(always)]
    pub const fn has_ports(&self) -> bool {
        has_ports(self.key.protocol)
    }
    /// A packet that opens a connection.
    #[inline(always)]
    pub const fn is_syn(&self) -> bool {
        self.tcp_flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN
    }
    /// A backend's answer to a TCP packet that opens a connection: it says how large segments may be.
    #[inline(always)]
    pub const fn is_syn_ack(&self) -> bool {
        self.key.protocol == protocol::TCP
            && self.tcp_flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN | tcp_flag::ACK
    }
    /// A packet of a connection that must exist already.
    #[inline(always)]
    pub const fn is_midstream(&self) -> bool {
        has_connections(self.key.protocol) && self.tcp_flags & tcp_flag::SYN == 0
    }
    /// What it is to its connection.
    #[inline(always)]
    pub const fn role(&self) -> Role {
        if !has_connections(self.key.protocol) {
            return Role::Datagram;
        }
        if self.is_syn() { Role::Opening } else { Role::Midstream }
    }
}

/// TCP, UDP or SCTP.
#[inline(always)]
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Whether a packet tells if it opens a connection: TCP or SCTP.
#[inline(always)]
pub const fn has_connections(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::SCTP)
}

/// What is done about fragments, met on a side.
#[derive(Clone, Copy)]
pub enum Fragments {
    /// Those whose first one was seen are parsed; others are the stack's.
    Followed(Side),
    /// The same, but others that are for a service's address are held, or dropped.
    Judged(Side),
}

/// Reads the IP header at `network` and, for TCP, UDP and SCTP, the ports and flags. Those of a later fragment are its first one's, if that
/// was seen on the same side.
#[inline(always)]
pub fn parse<P: Packet, F: Family>(
    packet: &P,
    network: usize,
    side: Side,
) -> Result<Parsed<F::Address>, Verdict> {
    parse_with::<P, F>(packet, network, Fragments::Followed(side))
}

/// As [`parse`], with a say about fragments.
#[inline(always)]
pub fn parse_with<P: Packet, F: Family>(
    packet: &P,
    network: usize,
    fragments: Fragments,
) -> Result<Parsed<F::Address>, Verdict> {
    packet.need(network + F::HEADER + size_of::<Tcp>());
    let header = F::parse_network(packet, network, fragments)?;
    let transport = Transport { offset: header.place.payload(), protocol: header.protocol };
    let (mut ports, mut tcp_flags) = (Ports::default(), header.place.no_flags());
    if transport.is_tcp() {
        let tcp = packet.at::<Tcp>(transport.offset()).ok_or(UNTOUCHED)?;
        header.contains(network, size_of::<Tcp>())?;
        // SAFETY: `at` checked the bound.
        (ports, tcp_flags) = unsafe { ((*tcp).ports, (*tcp).flags) };
    } else if header.protocol == protocol::UDP {
        let udp = packet.at::<Udp>(transport.offset()).ok_or(UNTOUCHED)?;
        header.contains(network, size_of::<Udp>())?;
        // SAFETY: `at` checked the bound.
        ports = unsafe { (*udp).ports };
    } else if transport.is_sctp() {
        let chunk;
        (ports, chunk) = packet.read_sctp(transport.offset()).ok_or(UNTOUCHED)?;
        header.contains(network, size_of::<SctpStart>())?;
        tcp_flags = sctp::tcp_flags(chunk);
    }
    (ports, tcp_flags) = header.place.choose(ports, tcp_flags);
    let later = header.place.later();
    let Network { source, destination, place, length, traffic_class, hop_limit, .. } = header;
    let protocol = unusual::hidden(header.protocol);
    let Ports { source: source_port, destination: destination_port } = ports;
    let key = FlowKey { source, destination, source_port, destination_port, protocol, ..FlowKey::default() };
    let (network, payload) = (network as u32, place.payload());
    Ok(Parsed { key, network, payload, length, tcp_flags, traffic_class, hop_limit, later })
}

/// What an IP header says.
#[derive(Clone, Copy)]
pub struct Network<A> {
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
    /// Protocol of what follows the header and its extensions.
    pub protocol: u8,
    /// Where what follows is.
    pub place: Place,
    /// Bytes of the packet, the header included.
    pub length: u32,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
}

impl<A> Network<A> {
    /// Whether a transport header lies inside what the IP header calls the packet, not in the frame's padding.
    #[inline(always)]
    fn contains(&self, network: usize, header: usize) -> Result<(), Verdict> {
        let used = self.place.payload() - network as u32 + header as u32;
        if used > self.length { Err(UNTOUCHED) } else { Ok(()) }
    }
}
