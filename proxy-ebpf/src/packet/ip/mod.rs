//! IP headers: the differences between IPv4 and IPv6 in reading and writing bytes.

use proxy_common::checksum::Difference;

use crate::header::{Ports, protocol};
use crate::maps::family::Family;
use crate::packet::Packet;
use crate::packet::shape::{Place, Preface, Shape};
use crate::verdict::{UNTOUCHED, Verdict};

pub mod plain;
mod v4;
mod v6;

/// The headers of a family.
pub trait Header: Family {
    /// The protocol field of the IP header at `network`, without a look into extension headers.
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8>;
    /// Asks about the destination and the protocol field of the IP header at `network`, in place: an IPv6
    /// address takes much of a stack.
    fn peek_destination<P: Packet, T>(
        packet: &P,
        network: usize,
        ask: impl FnOnce(&Self::Address, u8) -> T,
    ) -> Option<T>;
    /// Reads protocol and ports of a whole TCP or UDP packet without options and extension headers.
    fn peek_ports<P: Packet>(packet: &P, network: usize) -> Option<(u8, Ports)>;
    /// Reads an IP header.
    ///
    /// For a packet that is not plain, `read_shape` finds the transport header behind all options and
    /// extension headers that the programs can skip.
    fn parse_network<P: Packet>(
        packet: &P,
        network: usize,
        read_shape: impl FnOnce() -> Result<Shape, Verdict>,
    ) -> Result<Network<Self::Address>, Verdict>;
    /// Reads the headers in front of the transport header of a packet that is not plain.
    fn read_preface<P: Packet>(packet: &P, network: usize) -> Option<Preface>;
    /// Reads source and destination address.
    fn read_addresses<P: Packet>(packet: &P, network: usize) -> Option<(Self::Address, Self::Address)>;
    /// Writes addresses, and for IPv4 the header's checksum.
    fn write_addresses<P: Packet>(
        packet: &P,
        network: usize,
        source: &Self::Address,
        destination: &Self::Address,
        addresses: Difference,
    ) -> Option<()>;
    /// Takes one off the hop limit, which must not be zero.
    fn decrement_hop_limit<P: Packet>(packet: &P, network: usize) -> Option<()>;
    /// Writes an outer header at `network`.
    fn write_outer<P: Packet>(packet: &P, network: usize, outer: &Outer<Self::Address>) -> Option<()>;
    /// Makes the source of an outer header at `network` an address of the configured prefix, if there is one.
    /// The host bits are the hash's.
    fn spread_source<P: Packet>(packet: &P, network: usize, hash: u32) -> Option<()>;
    /// Reads hint and flags from an outer header at `network`.
    fn read_hint<P: Packet>(packet: &P, network: usize) -> Option<u32>;
    /// Reads an IP header that carries `protocol` directly.
    fn read_plain<P: Packet>(packet: &P, network: usize, protocol: u8) -> Option<Plain>;
}

/// The ports behind a header, if the protocol is TCP or UDP.
#[inline(always)]
fn ports_of<P: Packet>(packet: &P, protocol: u8, transport: usize) -> Option<(u8, Ports)> {
    if !matches!(protocol, protocol::TCP | protocol::UDP) {
        return None;
    }
    Some((protocol, packet.read(transport)?))
}

/// The content of an IP header.
#[derive(Clone, Copy)]
pub struct Network<A> {
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
    /// Protocol behind the header and its extensions.
    pub protocol: u8,
    /// The place behind the headers.
    pub place: Place,
    /// Bytes of the packet, the header included.
    pub length: u32,
    /// IPv4 type of service, IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
}

impl<A> Network<A> {
    /// Whether a transport header lies inside the packet as the IP header has it, not in the frame's padding.
    #[inline(always)]
    pub fn contains(&self, network: usize, header: usize) -> Result<(), Verdict> {
        let used = self.place.payload() - network as u32 + header as u32;
        if used > self.length { Err(UNTOUCHED) } else { Ok(()) }
    }
}

/// The rest of an IP header without options, beside its addresses.
pub struct Plain {
    pub length: u32,
    pub traffic_class: u8,
    pub hop_limit: u8,
}

/// The parts of an outer header.
#[derive(Clone, Copy)]
pub struct Outer<A> {
    pub source: A,
    pub destination: A,
    /// Protocol number of the payload: the inner packet's family, or UDP.
    pub protocol: u8,
    pub traffic_class: u8,
    /// Bytes of the payload.
    pub inner_length: u32,
    /// Hint (bits 0 to 13) and `outer::ONWARD` (bit 14).
    pub hint: u32,
}

pub const OUTER_HOP_LIMIT: u8 = 64;
