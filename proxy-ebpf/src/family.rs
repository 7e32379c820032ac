//! IPv4 and IPv6 as one generic source: what differs between them, and nothing else.

use aya_ebpf::bindings::bpf_fib_lookup;
use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::addr::Address;
use proxy_common::backend::Backend;
use proxy_common::checksum::Difference;
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::hop::{Device, Hop};
use proxy_common::source_range::SourceRange;
use proxy_common::{Addr4, Addr6};

use crate::maps::{self, AffinityMap, FlowsMap, FlowsNewMap};
use crate::packet::header::{DONT_FRAGMENT, Extension, FRAGMENT_MASK, Ipv4, Ipv6, ether_type, protocol};
use crate::packet::parse::Network;
use crate::packet::{MOST_HEADERS, Packet};
use crate::verdict::{UNTOUCHED, Verdict};

/// IPv4 or IPv6.
pub trait Family: Copy {
    /// Address in 32-bit words.
    type Address: Address;
    /// EtherType, network byte order.
    const ETHER_TYPE: u16;
    /// Bytes of a header without options or extensions.
    const HEADER: usize;
    /// Whether the IP header has a checksum of its own.
    const HAS_HEADER_CHECKSUM: bool;
    /// Protocol number of this family inside an IP packet.
    const ENCAPSULATED: u8;

    /// Looks a frontend up.
    fn frontend(key: &FrontendKey<Self::Address>) -> Option<Frontend>;
    /// Reads a backend.
    fn backend(id: u32) -> Option<&'static Backend<Self::Address>>;
    /// Whether a prefix that the key falls into is there.
    fn is_in_source_range(key: &Key<SourceRange<Self::Address>>) -> bool;
    /// Which backend a client had last.
    fn affinity() -> &'static AffinityMap<Self::Address>;
    /// The hop a backend id has in HOPS.
    fn hop(id: u32) -> Option<*mut Hop<Self::Address>>;
    /// This CPU's note from one walk to the next.
    fn scratch() -> Option<*mut FlowOf<Self>>;
    /// Says from where and whereto the FIB is asked.
    fn ask(query: &mut bpf_fib_lookup, source: &Self::Address, destination: &Self::Address);
    /// The source address the FIB answered.
    fn answered_source(query: &bpf_fib_lookup) -> Self::Address;
    /// The source address of what leaves by a device.
    fn source_of(device: &Device) -> Self::Address;
    /// Connections the client has answered in.
    fn flows() -> &'static FlowsMap<Self::Address>;
    /// Connections with nothing but the client's first packet.
    fn flows_new() -> &'static FlowsNewMap<Self::Address>;

    /// The protocol field of the IP header at `network`, extension headers not looked into.
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8>;
    /// Reads an IP header. `Network::payload` is behind all options and extension headers we can skip.
    fn parse_network<P: Packet>(packet: &P, network: usize) -> Result<Network<Self::Address>, Verdict>;
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
    /// Reads hint and flags from an outer header at `network`.
    fn read_hint<P: Packet>(packet: &P, network: usize) -> Option<u32>;
    /// The address in a v4-mapped field of a way.
    fn unmap(words: &[u32; 4]) -> Self::Address;
    /// The v4-mapped form.
    fn map(address: &Self::Address) -> [u32; 4];
}

/// What an outer header is made of.
#[derive(Clone, Copy)]
pub struct Outer<A> {
    pub source: A,
    pub destination: A,
    /// Protocol number of the inner packet's family.
    pub protocol: u8,
    pub traffic_class: u8,
    /// Bytes of the inner packet.
    pub inner_length: u32,
    /// Hint (bits 0..14) and `dsr::ONWARD` (bit 14).
    pub hint: u32,
}

const OUTER_HOP_LIMIT: u8 = 64;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// IPv4.
#[derive(Clone, Copy)]
pub struct V4;

/// IPv6.
#[derive(Clone, Copy)]
pub struct V6;

impl Family for V4 {
    type Address = Addr4;
    const ETHER_TYPE: u16 = ether_type::IPV4;
    const HEADER: usize = size_of::<Ipv4>();
    const HAS_HEADER_CHECKSUM: bool = true;
    const ENCAPSULATED: u8 = protocol::IPV4;

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
    fn flows() -> &'static FlowsMap<Addr4> {
        &maps::FLOWS4
    }
    #[inline(always)]
    fn flows_new() -> &'static FlowsNewMap<Addr4> {
        &maps::FLOWS_NEW4
    }

    #[inline(always)]
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8> {
        let header = packet.at::<Ipv4>(network)?;
        // SAFETY: `at` checked the bound.
        Some(unsafe { (*header).protocol })
    }
    #[inline(always)]
    fn parse_network<P: Packet>(packet: &P, network: usize) -> Result<Network<Addr4>, Verdict> {
        let header = packet.at::<Ipv4>(network).ok_or(UNTOUCHED)?;
        // SAFETY: `at` checked the bound; the kernel runs these programs only where words may lie anywhere.
        let header = unsafe { &*header };
        let header_length = u32::from(header.version_and_length & 0x0f) << 2;
        let length = packet.network_length(u32::from(u16::from_be(header.total_length)), network);
        let whole = header.fragment & FRAGMENT_MASK == 0;
        if header.version_and_length >> 4 != 4 || header_length < 20 || length < header_length || !whole {
            return Err(UNTOUCHED);
        }
        if !packet.holds(network as u32 + length) {
            return Err(UNTOUCHED);
        }
        Ok(Network {
            source: Addr4(header.source),
            destination: Addr4(header.destination),
            protocol: header.protocol,
            payload: network as u32 + header_length,
            length,
            traffic_class: header.tos,
            hop_limit: header.ttl,
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
}

impl Family for V6 {
    type Address = Addr6;
    const ETHER_TYPE: u16 = ether_type::IPV6;
    const HEADER: usize = size_of::<Ipv6>();
    const HAS_HEADER_CHECKSUM: bool = false;
    const ENCAPSULATED: u8 = protocol::IPV6;

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
    fn flows() -> &'static FlowsMap<Addr6> {
        &maps::FLOWS6
    }
    #[inline(always)]
    fn flows_new() -> &'static FlowsNewMap<Addr6> {
        &maps::FLOWS_NEW6
    }

    #[inline(always)]
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8> {
        let header = packet.at::<Ipv6>(network)?;
        // SAFETY: `at` checked the bound.
        Some(unsafe { (*header).next_header })
    }
    #[inline(always)]
    fn parse_network<P: Packet>(packet: &P, network: usize) -> Result<Network<Addr6>, Verdict> {
        let header = packet.at::<Ipv6>(network).ok_or(UNTOUCHED)?;
        // SAFETY: `at` checked the bound; the kernel runs these programs only where words may lie anywhere.
        let header = unsafe { &*header };
        let first = u32::from_be(header.first_word);
        let claimed = u32::from(u16::from_be(header.payload_length));
        let length = packet.network_length(claimed, network + 40) + 40;
        if first >> 28 != 6 || !packet.holds(network as u32 + length) {
            return Err(UNTOUCHED);
        }
        let mut parsed = Network {
            source: Addr6(header.source),
            destination: Addr6(header.destination),
            protocol: header.next_header,
            payload: network as u32 + 40,
            length,
            traffic_class: (first >> 20) as u8,
            hop_limit: header.hop_limit,
        };
        if matches!(parsed.protocol, protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS) {
            skip_options(packet, &mut parsed)?;
        }
        Ok(parsed)
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
}

/// Steps over hop-by-hop and destination options. What has a routing, fragment or authentication header is left
/// to the stack: its destination or its ports are not where we would read them.
#[inline(always)]
fn skip_options<P: Packet>(packet: &P, parsed: &mut Network<Addr6>) -> Result<(), Verdict> {
    const MOST: usize = 3;
    packet.need(MOST_HEADERS);
    for _ in 0..MOST {
        if !matches!(parsed.protocol, protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS) {
            return Ok(());
        }
        let extension = packet.at::<Extension>((parsed.payload & 511) as usize).ok_or(UNTOUCHED)?;
        // SAFETY: `at` checked the bound.
        let Extension { next_header, length } = unsafe { *extension };
        parsed.payload += (u32::from(length) + 1) << 3;
        parsed.protocol = next_header;
        if parsed.payload as usize > MOST_HEADERS {
            return Err(UNTOUCHED);
        }
    }
    Ok(())
}

/// The flow map's entry types are shared by both families' code.
pub type FlowOf<F> = Flow<<F as Family>::Address>;
/// Key of [`FlowOf`].
pub type KeyOf<F> = FlowKey<<F as Family>::Address>;
