//! The facts known about a parsed packet.

use proxy_common::flow::FlowKey;
use proxy_common::rules::Role;

use crate::header::{has_connections, has_ports, protocol, tcp_flag};

/// The place and protocol of the transport header.
#[derive(Clone, Copy)]
pub struct Transport {
    offset: u32,
    protocol: u8,
}

/// An IP packet, as far as the programs look into it.
#[derive(Clone, Copy)]
pub struct Parsed<A> {
    /// The tuple; the ports are zero for a packet that has none.
    pub key: FlowKey<A>,
    /// Offset of the IP header.
    pub network: u32,
    /// Offset behind the IP header and its extensions.
    pub payload: u32,
    /// Bytes of the IP packet.
    pub length: u32,
    /// TCP flags; for SCTP those with the same meaning to a connection; zero for UDP.
    pub tcp_flags: u8,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// Not zero for a later fragment.
    pub later: u8,
}

/// Highest offset of a transport header. It keeps the verifier's idea of a variable offset small.
const MAX_OFFSET: u32 = 511;

impl Transport {
    /// The header of a protocol at an offset.
    #[inline(always)]
    pub const fn new(offset: u32, protocol: u8) -> Self {
        Self { offset, protocol }
    }
    /// A header at an offset, of an unspecified protocol.
    #[inline(always)]
    pub const fn at(offset: u32) -> Self {
        Self { offset, protocol: 0 }
    }
    /// Offset of the header in the frame.
    #[inline(always)]
    pub const fn offset(self) -> usize {
        (self.offset & MAX_OFFSET) as usize
    }
    /// Whether it is TCP, not UDP or SCTP.
    #[inline(always)]
    pub const fn is_tcp(self) -> bool {
        self.protocol == protocol::TCP
    }
    /// Whether it is SCTP, whose checksum differs.
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
    /// The place of the transport header.
    #[inline(always)]
    pub const fn transport(&self) -> Transport {
        Transport { offset: self.payload, protocol: self.key.protocol }
    }
    /// Whether it is a later fragment, without a transport header; its ports are the first one's.
    #[inline(always)]
    pub const fn is_later(&self) -> bool {
        self.later != 0
    }
    /// Whether it is TCP, UDP or SCTP, so that the key is whole.
    #[inline(always)]
    pub const fn has_ports(&self) -> bool {
        has_ports(self.key.protocol)
    }
    /// Whether it opens a connection.
    #[inline(always)]
    pub const fn is_syn(&self) -> bool {
        self.tcp_flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN
    }
    /// Whether it is a backend's answer to a TCP packet that opens a connection, which names the largest
    /// segment.
    #[inline(always)]
    pub const fn is_syn_ack(&self) -> bool {
        self.key.protocol == protocol::TCP
            && self.tcp_flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN | tcp_flag::ACK
    }
    /// Whether it belongs to a connection that must exist already.
    #[inline(always)]
    pub const fn is_midstream(&self) -> bool {
        has_connections(self.key.protocol) && self.tcp_flags & tcp_flag::SYN == 0
    }
    /// The packet's role in its connection.
    #[inline(always)]
    pub const fn role(&self) -> Role {
        if !has_connections(self.key.protocol) {
            return Role::Datagram;
        }
        if self.is_syn() { Role::Opening } else { Role::Midstream }
    }
}
