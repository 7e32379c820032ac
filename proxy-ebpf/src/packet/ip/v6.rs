//! IPv6 headers.

use proxy_common::Addr6;
use proxy_common::checksum::Difference;
use proxy_common::fragment::HELD_PIECE_BYTES;

use crate::header::{
    Extension, FRAGMENT6_MASK, FragmentHeader, Ipv6, OFFSET6_MASK, Ports, RoutingHeader, is_extension,
    protocol,
};
use crate::maps::config::{OUTER_MASK6, OUTER_PREFIX6};
use crate::maps::family::Family;
use crate::maps::v6::V6;
use crate::packet::ip::{Header, Network, OUTER_HOP_LIMIT, Outer, Plain, ports_of};
use crate::packet::shape::{Piece, Preface, Shape};
use crate::packet::{MOST_HEADERS, Packet};
use crate::verdict::{UNTOUCHED, Verdict};

impl Header for V6 {
    #[inline(always)]
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8> {
        let header = packet.read::<Ipv6>(network)?;
        Some(header.next_header)
    }
    #[inline(always)]
    fn peek_destination<P: Packet, T>(
        packet: &P,
        network: usize,
        ask: impl FnOnce(&Addr6, u8) -> T,
    ) -> Option<T> {
        let header = packet.at::<Ipv6>(network)?;
        // SAFETY: `at` checked the bound, and an address is its words.
        let (address, protocol) =
            unsafe { ((&raw const (*header).destination).cast::<Addr6>(), (*header).next_header) };
        // SAFETY: as above.
        Some(ask(unsafe { &*address }, protocol))
    }
    #[inline(always)]
    fn peek_ports<P: Packet>(packet: &P, network: usize) -> Option<(u8, Ports)> {
        let header = packet.read::<Ipv6>(network)?;
        ports_of(packet, header.next_header, network + Self::HEADER)
    }
    #[inline(always)]
    fn parse_network<P: Packet>(
        packet: &P,
        network: usize,
        read_shape: impl FnOnce() -> Result<Shape, Verdict>,
    ) -> Result<Network<Addr6>, Verdict> {
        let mut header = packet.at::<Ipv6>(network).ok_or(UNTOUCHED)?;
        // SAFETY: `at` checked the bound; the kernel runs these programs only where words may lie anywhere.
        let mut shape = Shape::plain(network + Self::HEADER, unsafe { (*header).next_header });
        if is_extension(shape.protocol) {
            shape = read_shape()?;
            header = packet.at::<Ipv6>(network).ok_or(UNTOUCHED)?;
        }
        let place = shape.place();
        // SAFETY: as above.
        let header = unsafe { &*header };
        let first = u32::from_be(header.first_word);
        let claimed = u32::from(u16::from_be(header.payload_length));
        let length = packet.network_length(claimed, network + 40) + 40;
        if first >> 28 != 6 || !packet.has_bytes(network as u32 + length) {
            return Err(UNTOUCHED);
        }
        Ok(Network {
            source: Addr6(header.source),
            destination: Addr6(header.destination),
            protocol: shape.protocol,
            place,
            length,
            traffic_class: (first >> 20) as u8,
            hop_limit: header.hop_limit,
        })
    }
    /// Steps over extension headers.
    ///
    /// The stack gets packets with an authentication header, or with a routing header that is not used up:
    /// their ports or their destination are not where the programs would read them. Behind the header of a
    /// later fragment there is nothing to step over.
    #[inline(always)]
    fn read_preface<P: Packet>(packet: &P, network: usize) -> Option<Preface> {
        const MOST: usize = 4;
        packet.pull(MOST_HEADERS);
        let header = packet.read::<Ipv6>(network)?;
        let (next_header, length) = (header.next_header, header.payload_length);
        let payload = (network + Self::HEADER) as u32;
        let end = payload + u32::from(u16::from_be(length));
        let mut preface =
            Preface { protocol: next_header, payload, end, piece: Piece::Whole, id: 0, place: 0 };
        for _ in 0..MOST {
            if !is_extension(preface.protocol) || preface.piece == Piece::Later {
                break;
            }
            step_over(packet, &mut preface)?;
        }
        Some(preface)
    }
    #[inline(always)]
    fn read_addresses<P: Packet>(packet: &P, network: usize) -> Option<(Addr6, Addr6)> {
        let header = packet.read::<Ipv6>(network)?;
        Some((Addr6(header.source), Addr6(header.destination)))
    }
    #[inline(always)]
    fn write_addresses<P: Packet>(
        packet: &P,
        network: usize,
        source: &Addr6,
        destination: &Addr6,
        _addresses: Difference,
    ) -> Option<()> {
        packet.update::<Ipv6>(network, |header| {
            header.source = source.0;
            header.destination = destination.0;
        })
    }
    #[inline(always)]
    fn decrement_hop_limit<P: Packet>(packet: &P, network: usize) -> Option<()> {
        packet.update::<Ipv6>(network, |header| header.hop_limit = header.hop_limit.wrapping_sub(1))
    }
    #[inline(always)]
    fn write_outer<P: Packet>(packet: &P, network: usize, outer: &Outer<Addr6>) -> Option<()> {
        let first_word = 6 << 28 | u32::from(outer.traffic_class) << 20 | outer.hint & 0x000f_ffff;
        packet.write(
            network,
            Ipv6 {
                first_word: first_word.to_be(),
                payload_length: (outer.inner_length as u16).to_be(),
                next_header: outer.protocol,
                hop_limit: OUTER_HOP_LIMIT,
                source: outer.source.0,
                destination: outer.destination.0,
            },
        )
    }
    #[inline(always)]
    fn spread_source<P: Packet>(packet: &P, network: usize, hash: u32) -> Option<()> {
        let (prefix, mask) = (OUTER_PREFIX6.load(), OUTER_MASK6.load());
        if mask == [0; 4] {
            return Some(());
        }
        let [a, b, c, d] = prefix;
        let [mask_a, mask_b, mask_c, mask_d] = mask;
        let source = [a | hash & !mask_a, b | hash & !mask_b, c | hash & !mask_c, d | hash & !mask_d];
        packet.update::<Ipv6>(network, |header| header.source = source)
    }
    #[inline(always)]
    fn read_hint<P: Packet>(packet: &P, network: usize) -> Option<u32> {
        let header = packet.read::<Ipv6>(network)?;
        Some(u32::from_be(header.first_word) & 0x000f_ffff)
    }
    #[inline(always)]
    fn read_plain<P: Packet>(packet: &P, network: usize, protocol: u8) -> Option<Plain> {
        let header = packet.read::<Ipv6>(network)?;
        let first = u32::from_be(header.first_word);
        let length = u32::from(u16::from_be(header.payload_length)) + size_of::<Ipv6>() as u32;
        let (traffic_class, hop_limit) = ((first >> 20) as u8, header.hop_limit);
        (first >> 28 == 6 && header.next_header == protocol).then_some(Plain {
            length,
            traffic_class,
            hop_limit,
        })
    }
}

#[inline(always)]
fn step_over<P: Packet>(packet: &P, preface: &mut Preface) -> Option<()> {
    let offset = (preface.payload & 511) as usize;
    let extension = packet.read::<Extension>(offset)?;
    let Extension { next_header, length } = extension;
    if preface.protocol == protocol::FRAGMENT {
        read_fragment(packet, offset, preface)?;
        preface.payload += size_of::<FragmentHeader>() as u32;
    } else {
        if preface.protocol == protocol::ROUTING {
            check_routing(packet, offset)?;
        }
        preface.payload += (u32::from(length) + 1) << 3;
    }
    preface.protocol = next_header;
    (preface.payload as usize <= MOST_HEADERS).then_some(())
}

/// Reads a fragment header. One around a whole packet (RFC 6946) adds nothing.
#[inline(always)]
fn read_fragment<P: Packet>(packet: &P, offset: usize, preface: &mut Preface) -> Option<()> {
    let header = packet.read::<FragmentHeader>(offset)?;
    let FragmentHeader { offset, identification, .. } = header;
    preface.piece = if offset & FRAGMENT6_MASK == 0 {
        Piece::Whole
    } else if offset & OFFSET6_MASK == 0 {
        Piece::First
    } else {
        Piece::Later
    };
    preface.id = identification;
    preface.place = u32::from(u16::from_be(offset & OFFSET6_MASK)) / HELD_PIECE_BYTES;
    Some(())
}

/// Whether the packet has reached the destination of its routing header.
#[inline(always)]
fn check_routing<P: Packet>(packet: &P, offset: usize) -> Option<()> {
    let header = packet.read::<RoutingHeader>(offset)?;
    (header.segments_left == 0).then_some(())
}
