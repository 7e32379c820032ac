//! The encapsulation for another node: in an IP packet, or in UDP in one (FoU), for networks that carry no
//! protocol 4.

use proxy_common::hash::flow_hash;
use proxy_common::way::FOU_PORT;

use crate::header::{ETHERNET, Ports, Udp, protocol};
use crate::maps::family::{Family, KeyOf};
use crate::packet::{Packet, Parsed};

/// The header between the outer IP header and the inner one.
pub trait Encapsulation {
    /// Its bytes.
    const BYTES: usize;
    /// The protocol number in the outer IP header.
    fn outer_protocol<F: Family>() -> u8;
    /// The protocol number of the inner packet's family; `outer` is the one in the outer IP header.
    fn inner_protocol<P: Packet, O: Family>(packet: &P, outer: u8) -> Option<u8>;
}

/// No header.
pub struct Ipip;

/// A UDP header.
pub struct Fou;

impl Encapsulation for Ipip {
    const BYTES: usize = 0;

    #[inline(always)]
    fn outer_protocol<F: Family>() -> u8 {
        F::ENCAPSULATED
    }

    #[inline(always)]
    fn inner_protocol<P: Packet, O: Family>(_packet: &P, outer: u8) -> Option<u8> {
        Some(outer)
    }
}

impl Encapsulation for Fou {
    const BYTES: usize = size_of::<Udp>();

    #[inline(always)]
    fn outer_protocol<F: Family>() -> u8 {
        protocol::UDP
    }

    #[inline(always)]
    fn inner_protocol<P: Packet, O: Family>(packet: &P, outer: u8) -> Option<u8> {
        // Behind an extension header the UDP header stands here, whose bytes its sender chooses.
        if outer != protocol::UDP {
            return None;
        }
        let version = packet.read::<u8>(ETHERNET + O::HEADER + Self::BYTES)?;
        match version >> 4 {
            4 => Some(protocol::IPV4),
            6 => Some(protocol::IPV6),
            _ => None,
        }
    }
}

/// Writes the UDP header at `offset`.
///
/// It has no checksum, with IPv6 too (RFC 6935): the inner packet has its own, and each segment of a frame
/// that is cut up later would need another one.
#[inline(always)]
pub fn write_header<P: Packet, F: Family>(
    packet: &P,
    offset: usize,
    inner: &Parsed<F::Address>,
) -> Option<()> {
    let source = source_port::<F>(&inner.key);
    let length = inner.length as u16;
    packet.write(
        offset,
        Udp {
            ports: Ports { source, destination: FOU_PORT.to_be() },
            length: length.wrapping_add(Fou::BYTES as u16).to_be(),
            checksum: 0,
        },
    )
}

/// A source port of the inner connection's own, network byte order.
///
/// Networks and receive queues spread connections by it, and keep the packets of each in order.
#[inline(never)]
fn source_port<F: Family>(key: &KeyOf<F>) -> u16 {
    /// The dynamic ports (RFC 6335).
    const FIRST: u16 = 0xc000;
    (FIRST | flow_hash(key) as u16).to_be()
}
