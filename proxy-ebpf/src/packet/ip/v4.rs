//! IPv4 headers.

use proxy_common::Addr4;
use proxy_common::checksum::Difference;
use proxy_common::fragment::HELD_PIECE_BYTES;

use crate::header::{DONT_FRAGMENT, FRAGMENT_MASK, Ipv4, OFFSET_MASK, Ports};
use crate::maps::config::{OUTER_MASK4, OUTER_PREFIX4};
use crate::maps::family::Family;
use crate::maps::v4::V4;
use crate::packet::ip::{Header, Network, OUTER_HOP_LIMIT, Outer, Plain, ports_of};
use crate::packet::shape::{Piece, Preface, Shape};
use crate::packet::{MOST_HEADERS, Packet};
use crate::verdict::{UNTOUCHED, Verdict};

/// The first byte of a header without options.
const PLAIN_START: u8 = 0x45;

impl Header for V4 {
    #[inline(always)]
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8> {
        let header = packet.read::<Ipv4>(network)?;
        Some(header.protocol)
    }
    #[inline(always)]
    fn peek_destination<P: Packet, T>(
        packet: &P,
        network: usize,
        ask: impl FnOnce(&Addr4, u8) -> T,
    ) -> Option<T> {
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound, and an address is its words.
        let (address, protocol) =
            unsafe { ((&raw const (*header).destination).cast::<Addr4>(), (*header).protocol) };
        // SAFETY: as above.
        Some(ask(unsafe { &*address }, protocol))
    }
    #[inline(always)]
    fn peek_ports<P: Packet>(packet: &P, network: usize) -> Option<(u8, Ports)> {
        let header = packet.read::<Ipv4>(network)?;
        let is_plain = header.version_and_length == PLAIN_START && header.fragment & FRAGMENT_MASK == 0;
        if is_plain { ports_of(packet, header.protocol, network + Self::HEADER) } else { None }
    }
    #[inline(always)]
    fn parse_network<P: Packet>(
        packet: &P,
        network: usize,
        read_shape: impl FnOnce() -> Result<Shape, Verdict>,
    ) -> Result<Network<Addr4>, Verdict> {
        let mut header = packet.at::<Ipv4>(network).ok_or(UNTOUCHED)?;
        let mut shape = Shape::plain(network + Self::HEADER, 0);
        // SAFETY: `at` checked the bound; the kernel runs these programs only where words may lie anywhere.
        let (start, fragment) = unsafe { ((*header).version_and_length, (*header).fragment) };
        if start != PLAIN_START || fragment & FRAGMENT_MASK != 0 {
            shape = read_shape()?;
            header = packet.at::<Ipv4>(network).ok_or(UNTOUCHED)?;
        }
        let place = shape.place();
        // SAFETY: as above.
        let header = unsafe { &*header };
        let length = packet.network_length(u32::from(u16::from_be(header.total_length)), network);
        if network as u32 + length < place.payload() || !packet.has_bytes(network as u32 + length) {
            return Err(UNTOUCHED);
        }
        Ok(Network {
            source: Addr4(header.source),
            destination: Addr4(header.destination),
            protocol: header.protocol,
            place,
            length,
            traffic_class: header.tos,
            hop_limit: header.ttl,
        })
    }
    #[inline(always)]
    fn read_preface<P: Packet>(packet: &P, network: usize) -> Option<Preface> {
        packet.pull(MOST_HEADERS);
        let header = packet.read::<Ipv4>(network)?;
        let header_length = u32::from(header.version_and_length & 0x0f) << 2;
        if header.version_and_length >> 4 != 4 || header_length < Self::HEADER as u32 {
            return None;
        }
        Some(Preface {
            protocol: header.protocol,
            payload: network as u32 + header_length,
            end: network as u32 + u32::from(u16::from_be(header.total_length)),
            piece: if header.fragment & FRAGMENT_MASK == 0 {
                Piece::Whole
            } else if header.fragment & OFFSET_MASK == 0 {
                Piece::First
            } else {
                Piece::Later
            },
            id: u32::from(header.identification),
            place: u32::from(u16::from_be(header.fragment & OFFSET_MASK)) * 8 / HELD_PIECE_BYTES,
        })
    }
    #[inline(always)]
    fn read_addresses<P: Packet>(packet: &P, network: usize) -> Option<(Addr4, Addr4)> {
        let header = packet.read::<Ipv4>(network)?;
        Some((Addr4(header.source), Addr4(header.destination)))
    }
    #[inline(always)]
    fn write_addresses<P: Packet>(
        packet: &P,
        network: usize,
        source: &Addr4,
        destination: &Addr4,
        addresses: Difference,
    ) -> Option<()> {
        packet.update::<Ipv4>(network, |header| {
            header.source = source.0;
            header.destination = destination.0;
            header.checksum = addresses.apply(header.checksum);
        })
    }
    #[inline(always)]
    fn decrement_hop_limit<P: Packet>(packet: &P, network: usize) -> Option<()> {
        packet.update::<Ipv4>(network, |header| {
            let old = u16::from_ne_bytes([header.ttl, header.protocol]);
            header.ttl = header.ttl.wrapping_sub(1);
            let new = u16::from_ne_bytes([header.ttl, header.protocol]);
            header.checksum = Difference::default().half(old, new).apply(header.checksum);
        })
    }
    #[inline(always)]
    fn write_outer<P: Packet>(packet: &P, network: usize, outer: &Outer<Addr4>) -> Option<()> {
        let header = packet.at::<Ipv4>(network)?;
        let total_length = (outer.inner_length as u16).wrapping_add(20).to_be();
        let identification = (outer.hint as u16).to_be();
        let [source] = outer.source.0;
        let [destination] = outer.destination.0;
        let sum = u64::from(u16::from_ne_bytes([0x45, outer.traffic_class]))
            + u64::from(total_length)
            + u64::from(identification)
            + u64::from(DONT_FRAGMENT)
            + u64::from(u16::from_ne_bytes([OUTER_HOP_LIMIT, outer.protocol]))
            + u64::from(source)
            + u64::from(destination);
        // SAFETY: `at` checked the bound.
        unsafe {
            *header = Ipv4 {
                version_and_length: 0x45,
                tos: outer.traffic_class,
                total_length,
                identification,
                fragment: DONT_FRAGMENT,
                ttl: OUTER_HOP_LIMIT,
                protocol: outer.protocol,
                checksum: !proxy_common::checksum::fold(sum),
                source: [source],
                destination: [destination],
            };
        }
        Some(())
    }
    #[inline(always)]
    fn spread_source<P: Packet>(packet: &P, network: usize, hash: u32) -> Option<()> {
        let (prefix, mask) = (OUTER_PREFIX4.load(), OUTER_MASK4.load());
        if mask == 0 {
            return Some(());
        }
        packet.update::<Ipv4>(network, |header| {
            let ([old], new) = (header.source, prefix | hash & !mask);
            header.source = [new];
            header.checksum = Difference::default().word(old, new).apply(header.checksum);
        })
    }
    #[inline(always)]
    fn read_hint<P: Packet>(packet: &P, network: usize) -> Option<u32> {
        let header = packet.read::<Ipv4>(network)?;
        let (identification, fragment) = (header.identification, header.fragment);
        // Without DF the kernel sets the identification, for fragments.
        Some(if fragment & DONT_FRAGMENT != 0 { u32::from(u16::from_be(identification)) } else { 0 })
    }
    #[inline(always)]
    fn read_plain<P: Packet>(packet: &P, network: usize, protocol: u8) -> Option<Plain> {
        let header = packet.read::<Ipv4>(network)?;
        let is_plain = header.version_and_length == 0x45 && header.fragment & FRAGMENT_MASK == 0;
        let length = u32::from(u16::from_be(header.total_length));
        let (traffic_class, hop_limit) = (header.tos, header.ttl);
        (is_plain && header.protocol == protocol).then_some(Plain { length, traffic_class, hop_limit })
    }
}
