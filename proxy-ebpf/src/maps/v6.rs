//! What is particular to IPv6.

use aya_ebpf::bindings::bpf_fib_lookup;
use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::Addr6;
use proxy_common::backend::Backend;
use proxy_common::checksum::Difference;
use proxy_common::fragment::HELD_PIECE_BYTES;
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::hop::{Device, Hop};
use proxy_common::source_range::SourceRange;
use proxy_common::way::PeerKey;

use super::family::{Family, FlowOf, KeyOf, OUTER_HOP_LIMIT, Outer};
use crate::header::{
    Extension, FRAGMENT6_MASK, FragmentHeader, Ipv6, OFFSET6_MASK, RoutingHeader, ether_type, is_extension,
    protocol,
};
use crate::maps::config::{OUTER_MASK6, OUTER_PREFIX6};
use crate::maps::{self, AffinityMap, FlowsMap, FlowsNewMap, FragmentsMap, NodeFlowsMap};
use crate::packet::parsed::Network;
use crate::packet::shape::{Piece, Preface, Shape};
use crate::packet::{MOST_HEADERS, Packet};
use crate::parse::unusual::{self, Fragments};
use crate::verdict::{UNTOUCHED, Verdict};

const AF_INET6: u8 = 10;

/// IPv6.
#[derive(Clone, Copy)]
pub struct V6;

impl Family for V6 {
    type Address = Addr6;
    const ETHER_TYPE: u16 = ether_type::IPV6;
    const HEADER: usize = size_of::<Ipv6>();
    const HAS_HEADER_CHECKSUM: bool = false;
    const ENCAPSULATED: u8 = protocol::IPV6;

    /// Extension headers, and the number that says that nothing follows, are not.
    #[inline(always)]
    fn is_transport(protocol: u8) -> bool {
        !matches!(protocol, 0 | 43 | 44 | 50 | 51 | 59 | 60 | 135 | 139 | 140)
    }
    #[inline(always)]
    fn frontend(key: &FrontendKey<Addr6>) -> Option<Frontend> {
        // SAFETY: copied at once; frontends are never rewritten by an endpoint change.
        unsafe { maps::FRONTENDS6.get(key).copied() }
    }
    #[inline(always)]
    fn backend(id: u32) -> Option<&'static Backend<Addr6>> {
        maps::BACKENDS6.get(id)
    }
    #[inline(always)]
    fn is_in_source_range(key: &Key<SourceRange<Addr6>>) -> bool {
        maps::SOURCE_RANGES6.get(key).is_some()
    }
    #[inline(always)]
    fn affinity() -> &'static AffinityMap<Addr6> {
        &maps::AFFINITY6
    }
    #[inline(always)]
    fn hop(id: u32) -> Option<*mut Hop<Addr6>> {
        maps::HOPS6.get_ptr_mut(id)
    }
    #[inline(always)]
    fn scratch() -> Option<*mut FlowOf<Self>> {
        maps::SCRATCH6.get_ptr_mut(0)
    }
    #[inline(always)]
    fn key_scratch(index: u32) -> Option<*mut KeyOf<Self>> {
        maps::KEYS6.get_ptr_mut(index)
    }
    #[inline(always)]
    fn ask(query: &mut bpf_fib_lookup, source: &Addr6, destination: &Addr6) {
        query.family = AF_INET6;
        query.__bindgen_anon_3.ipv6_src = source.0;
        query.__bindgen_anon_4.ipv6_dst = destination.0;
    }
    #[inline(always)]
    fn answered_source(query: &bpf_fib_lookup) -> Addr6 {
        // SAFETY: all fields of the union are integers.
        Addr6(unsafe { query.__bindgen_anon_3.ipv6_src })
    }
    #[inline(always)]
    fn source_of(device: &Device) -> Addr6 {
        Addr6(device.source6)
    }
    #[inline(always)]
    fn fragments() -> &'static FragmentsMap<Addr6> {
        &maps::FRAGMENTS6
    }
    #[inline(always)]
    fn flows() -> &'static FlowsMap<Addr6> {
        &maps::FLOWS6
    }
    #[inline(always)]
    fn flows_new() -> &'static FlowsNewMap<Addr6> {
        &maps::FLOWS_NEW6
    }
    #[inline(always)]
    fn node_flows() -> &'static NodeFlowsMap<Addr6> {
        &maps::NODE_FLOWS6
    }

    #[inline(always)]
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8> {
        let header = packet.at::<Ipv6>(network)?;
        // SAFETY: `at` checked the bound.
        Some(unsafe { (*header).next_header })
    }
    #[inline(always)]
    fn parse_network<P: Packet>(
        packet: &P,
        network: usize,
        fragments: Fragments,
    ) -> Result<Network<Addr6>, Verdict> {
        let mut header = packet.at::<Ipv6>(network).ok_or(UNTOUCHED)?;
        // SAFETY: `at` checked the bound; the kernel runs these programs only where words may lie anywhere.
        let mut shape = Shape::plain(network + Self::HEADER, unsafe { (*header).next_header });
        if is_extension(shape.protocol) {
            shape = unusual::look_at::<P, Self>(packet, network, fragments)?;
            header = packet.at::<Ipv6>(network).ok_or(UNTOUCHED)?;
        }
        let place = shape.place();
        // SAFETY: as above.
        let header = unsafe { &*header };
        let first = u32::from_be(header.first_word);
        let claimed = u32::from(u16::from_be(header.payload_length));
        let length = packet.network_length(claimed, network + 40) + 40;
        if first >> 28 != 6 || !packet.holds(network as u32 + length) {
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
    /// Steps over extension headers. What has an authentication header, or a routing header that is not used up, is left to the
    /// stack: its ports or its destination are not where we would read them. Behind the header of a later fragment there is
    /// nothing to step over.
    #[inline(always)]
    fn read_preface<P: Packet>(packet: &P, network: usize) -> Option<Preface> {
        const MOST: usize = 4;
        packet.need(MOST_HEADERS);
        let header = packet.at::<Ipv6>(network)?;
        // SAFETY: `at` checked the bound.
        let (next_header, length) = unsafe { ((*header).next_header, (*header).payload_length) };
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
        let header = packet.at::<Ipv6>(network)?;
        // SAFETY: `at` checked the bound.
        Some(unsafe { (Addr6((*header).source), Addr6((*header).destination)) })
    }
    #[inline(always)]
    fn write_addresses<P: Packet>(
        packet: &P,
        network: usize,
        source: &Addr6,
        destination: &Addr6,
        _addresses: Difference,
    ) -> Option<()> {
        let header = packet.at::<Ipv6>(network)?;
        // SAFETY: `at` checked the bound.
        unsafe {
            (*header).source = source.0;
            (*header).destination = destination.0;
        }
        Some(())
    }
    #[inline(always)]
    fn decrement_hop_limit<P: Packet>(packet: &P, network: usize) -> Option<()> {
        let header = packet.at::<Ipv6>(network)?;
        // SAFETY: `at` checked the bound.
        unsafe { (*header).hop_limit = (*header).hop_limit.wrapping_sub(1) };
        Some(())
    }
    #[inline(always)]
    fn write_outer<P: Packet>(packet: &P, network: usize, outer: &Outer<Addr6>) -> Option<()> {
        let header = packet.at::<Ipv6>(network)?;
        let first_word = 6 << 28 | u32::from(outer.traffic_class) << 20 | outer.hint & 0x000f_ffff;
        // SAFETY: `at` checked the bound.
        unsafe {
            *header = Ipv6 {
                first_word: first_word.to_be(),
                payload_length: (outer.inner_length as u16).to_be(),
                next_header: outer.protocol,
                hop_limit: OUTER_HOP_LIMIT,
                source: outer.source.0,
                destination: outer.destination.0,
            };
        }
        Some(())
    }
    #[inline(always)]
    fn spread_source<P: Packet>(packet: &P, network: usize, hash: u32) -> Option<()> {
        let (prefix, mask) = (OUTER_PREFIX6.load(), OUTER_MASK6.load());
        if mask == [0; 4] {
            return Some(());
        }
        let header = packet.at::<Ipv6>(network)?;
        let [a, b, c, d] = prefix;
        let [mask_a, mask_b, mask_c, mask_d] = mask;
        let source = [a | hash & !mask_a, b | hash & !mask_b, c | hash & !mask_c, d | hash & !mask_d];
        // SAFETY: `at` checked the bound.
        unsafe { (*header).source = source };
        Some(())
    }
    #[inline(always)]
    fn is_outer_source(address: &Addr6) -> bool {
        let (prefix, mask) = (OUTER_PREFIX6.load(), OUTER_MASK6.load());
        let [mask_a, ..] = mask;
        let words = address.0.into_iter().zip(mask).zip(prefix);
        mask_a != 0 && words.fold(0, |differ, ((word, mask), prefix)| differ | word & mask ^ prefix) == 0
    }
    #[inline(always)]
    fn read_hint<P: Packet>(packet: &P, network: usize) -> Option<u32> {
        let header = packet.at::<Ipv6>(network)?;
        // SAFETY: `at` checked the bound.
        Some(unsafe { u32::from_be((*header).first_word) } & 0x000f_ffff)
    }
    #[inline(always)]
    fn unmap(words: &[u32; 4]) -> Addr6 {
        Addr6(*words)
    }
    #[inline(always)]
    fn map(address: &Addr6) -> [u32; 4] {
        address.0
    }
    #[inline(always)]
    fn with_peer_key<T>(address: &Addr6, ask: impl FnOnce(&PeerKey) -> T) -> T {
        const {
            assert!(
                size_of::<PeerKey>() == size_of::<Addr6>() && align_of::<PeerKey>() == align_of::<Addr6>()
            );
        };
        // SAFETY: both are four words and nothing else.
        ask(unsafe { &*core::ptr::from_ref(address).cast() })
    }
}

#[inline(always)]
fn step_over<P: Packet>(packet: &P, preface: &mut Preface) -> Option<()> {
    let offset = (preface.payload & 511) as usize;
    let extension = packet.at::<Extension>(offset)?;
    // SAFETY: `at` checked the bound.
    let Extension { next_header, length } = unsafe { *extension };
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

/// What a fragment header says; one around a whole packet (RFC 6946) nothing.
#[inline(always)]
fn read_fragment<P: Packet>(packet: &P, offset: usize, preface: &mut Preface) -> Option<()> {
    let header = packet.at::<FragmentHeader>(offset)?;
    // SAFETY: `at` checked the bound.
    let FragmentHeader { offset, identification, .. } = unsafe { *header };
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

/// Whether the packet is where its routing header sends it.
#[inline(always)]
fn check_routing<P: Packet>(packet: &P, offset: usize) -> Option<()> {
    let header = packet.at::<RoutingHeader>(offset)?;
    // SAFETY: `at` checked the bound.
    (unsafe { (*header).segments_left } == 0).then_some(())
}
