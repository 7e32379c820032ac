//! What is particular to IPv4.

use aya_ebpf::bindings::bpf_fib_lookup;
use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::Addr4;
use proxy_common::backend::Backend;
use proxy_common::checksum::Difference;
use proxy_common::fragment::HELD_PIECE_BYTES;
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::hop::{Device, Hop};
use proxy_common::source_range::SourceRange;
use proxy_common::way::PeerKey;

use super::family::{Family, FlowOf, KeyOf, OUTER_HOP_LIMIT, Outer};
use crate::header::{DONT_FRAGMENT, FRAGMENT_MASK, Ipv4, OFFSET_MASK, ether_type, protocol};
use crate::maps::config::{OUTER_MASK4, OUTER_PREFIX4};
use crate::maps::{self, AffinityMap, FlowsMap, FlowsNewMap, FragmentsMap, NodeFlowsMap};
use crate::packet::parsed::Network;
use crate::packet::shape::{Piece, Preface, Shape};
use crate::packet::{MOST_HEADERS, Packet};
use crate::parse::unusual::{self, Fragments};
use crate::verdict::{UNTOUCHED, Verdict};

pub const AF_INET: u8 = 2;
/// The first byte of a header without options.
const PLAIN_START: u8 = 0x45;

/// IPv4.
#[derive(Clone, Copy)]
pub struct V4;

impl Family for V4 {
    type Address = Addr4;
    const ETHER_TYPE: u16 = ether_type::IPV4;
    const HEADER: usize = size_of::<Ipv4>();
    const HAS_HEADER_CHECKSUM: bool = true;
    const ENCAPSULATED: u8 = protocol::IPV4;

    #[inline(always)]
    fn is_transport(_protocol: u8) -> bool {
        true
    }
    #[inline(always)]
    fn frontend(key: &FrontendKey<Addr4>) -> Option<Frontend> {
        // SAFETY: copied at once; frontends are never rewritten by an endpoint change.
        unsafe { maps::FRONTENDS4.get(key).copied() }
    }
    #[inline(always)]
    fn backend(id: u32) -> Option<&'static Backend<Addr4>> {
        maps::BACKENDS4.get(id)
    }
    #[inline(always)]
    fn is_in_source_range(key: &Key<SourceRange<Addr4>>) -> bool {
        maps::SOURCE_RANGES4.get(key).is_some()
    }
    #[inline(always)]
    fn affinity() -> &'static AffinityMap<Addr4> {
        &maps::AFFINITY4
    }
    #[inline(always)]
    fn hop(id: u32) -> Option<*mut Hop<Addr4>> {
        maps::HOPS4.get_ptr_mut(id)
    }
    #[inline(always)]
    fn scratch() -> Option<*mut FlowOf<Self>> {
        maps::SCRATCH4.get_ptr_mut(0)
    }
    #[inline(always)]
    fn key_scratch(index: u32) -> Option<*mut KeyOf<Self>> {
        maps::KEYS4.get_ptr_mut(index)
    }
    #[inline(always)]
    fn ask(query: &mut bpf_fib_lookup, source: &Addr4, destination: &Addr4) {
        query.family = AF_INET;
        [query.__bindgen_anon_3.ipv4_src] = source.0;
        [query.__bindgen_anon_4.ipv4_dst] = destination.0;
    }
    #[inline(always)]
    fn answered_source(query: &bpf_fib_lookup) -> Addr4 {
        // SAFETY: all fields of the union are integers.
        Addr4([unsafe { query.__bindgen_anon_3.ipv4_src }])
    }
    #[inline(always)]
    fn source_of(device: &Device) -> Addr4 {
        Addr4(device.source4)
    }
    #[inline(always)]
    fn fragments() -> &'static FragmentsMap<Addr4> {
        &maps::FRAGMENTS4
    }
    #[inline(always)]
    fn flows() -> &'static FlowsMap<Addr4> {
        &maps::FLOWS4
    }
    #[inline(always)]
    fn flows_new() -> &'static FlowsNewMap<Addr4> {
        &maps::FLOWS_NEW4
    }
    #[inline(always)]
    fn node_flows() -> &'static NodeFlowsMap<Addr4> {
        &maps::NODE_FLOWS4
    }

    #[inline(always)]
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8> {
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound.
        Some(unsafe { (*header).protocol })
    }
    #[inline(always)]
    fn parse_network<P: Packet>(
        packet: &P,
        network: usize,
        fragments: Fragments,
    ) -> Result<Network<Addr4>, Verdict> {
        let mut header = packet.at::<Ipv4>(network).ok_or(UNTOUCHED)?;
        let mut shape = Shape::plain(network + Self::HEADER, 0);
        // SAFETY: `at` checked the bound; the kernel runs these programs only where words may lie anywhere.
        let (start, fragment) = unsafe { ((*header).version_and_length, (*header).fragment) };
        if start != PLAIN_START || fragment & FRAGMENT_MASK != 0 {
            shape = unusual::look_at::<P, Self>(packet, network, fragments)?;
            header = packet.at::<Ipv4>(network).ok_or(UNTOUCHED)?;
        }
        let place = shape.place();
        // SAFETY: as above.
        let header = unsafe { &*header };
        let length = packet.network_length(u32::from(u16::from_be(header.total_length)), network);
        if network as u32 + length < place.payload() || !packet.holds(network as u32 + length) {
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
        packet.need(MOST_HEADERS);
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound.
        let header = unsafe { &*header };
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
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound.
        Some(unsafe { (Addr4((*header).source), Addr4((*header).destination)) })
    }
    #[inline(always)]
    fn write_addresses<P: Packet>(
        packet: &P,
        network: usize,
        source: &Addr4,
        destination: &Addr4,
        addresses: Difference,
    ) -> Option<()> {
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound.
        unsafe {
            (*header).source = source.0;
            (*header).destination = destination.0;
            (*header).checksum = addresses.apply((*header).checksum);
        }
        Some(())
    }
    #[inline(always)]
    fn decrement_hop_limit<P: Packet>(packet: &P, network: usize) -> Option<()> {
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound.
        unsafe {
            let old = u16::from_ne_bytes([(*header).ttl, (*header).protocol]);
            (*header).ttl = (*header).ttl.wrapping_sub(1);
            let new = u16::from_ne_bytes([(*header).ttl, (*header).protocol]);
            (*header).checksum = Difference::default().half(old, new).apply((*header).checksum);
        }
        Some(())
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
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound.
        unsafe {
            let ([old], new) = ((*header).source, prefix | hash & !mask);
            (*header).source = [new];
            (*header).checksum = Difference::default().word(old, new).apply((*header).checksum);
        }
        Some(())
    }
    #[inline(always)]
    fn is_outer_source(address: &Addr4) -> bool {
        let ([word], mask) = (address.0, OUTER_MASK4.load());
        mask != 0 && word & mask == OUTER_PREFIX4.load()
    }
    #[inline(always)]
    fn read_hint<P: Packet>(packet: &P, network: usize) -> Option<u32> {
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound.
        let (identification, fragment) = unsafe { ((*header).identification, (*header).fragment) };
        // Without DF the identification is the kernel's own, for fragments.
        Some(if fragment & DONT_FRAGMENT != 0 { u32::from(u16::from_be(identification)) } else { 0 })
    }
    #[inline(always)]
    fn unmap(words: &[u32; 4]) -> Addr4 {
        let [_, _, _, word] = *words;
        Addr4([word])
    }
    #[inline(always)]
    fn map(address: &Addr4) -> [u32; 4] {
        let [word] = address.0;
        [0, 0, 0xffff_u32.to_be(), word]
    }
    #[inline(always)]
    fn with_peer_key<T>(address: &Addr4, ask: impl FnOnce(&PeerKey) -> T) -> T {
        ask(&PeerKey { address: Self::map(address) })
    }
}
