//! What the IP headers of a packet say.

use proxy_common::policy::PolicyFlowKey;

use crate::header::{Ports, Wire, tcp_flag};

/// The part of a TCP header that tells the connection, and whether the packet opens it.
#[repr(C, packed(2))]
#[derive(Clone, Copy)]
pub struct TcpStart {
    /// The ports.
    pub ports: Ports,
    _numbers: [u32; 2],
    _data_offset: u8,
    flags: u8,
}

// SAFETY: integers in the order of the wire, without padding.
unsafe impl Wire for TcpStart {}

impl TcpStart {
    /// Whether the packet opens a connection.
    #[inline(always)]
    pub const fn opens(&self) -> bool {
        self.flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN
    }
}

/// What a packet's IP headers say.
pub struct Packet<A> {
    /// The key of its connection, without ports.
    pub key: PolicyFlowKey<A>,
    /// The place of the transport header in the frame.
    pub transport: u32,
    /// The end of the IP packet. Bytes behind it are padding, which no receiver reads.
    pub end: u32,
    /// Identification, bytes in network order.
    pub id: u32,
    /// Time to live or hop limit.
    pub hops: u8,
    /// Whether the packet is a fragment.
    pub piece: Piece,
}

/// Whether a packet is a fragment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// No.
    Whole,
    /// The first of its packet.
    First,
    /// Another one.
    Later,
}

/// The reason why a packet could not be read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// Not even its addresses are known. No network stack takes it.
    Addresses,
    /// Its transport header is not where the programs would read it.
    Transport,
    /// It has more headers than the programs follow, but a network stack may follow them all.
    Hidden,
}
