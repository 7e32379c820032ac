//! The parts that only IPv6 has.

use aya_ebpf::bindings::bpf_fib_lookup;
use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::Addr6;
use proxy_common::backend::Backend;
use proxy_common::figures::BackendConnections;
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::frontend_index::IndexedFrontend;
use proxy_common::hop::{Device, Hop};
use proxy_common::part::Part;
use proxy_common::source_range::SourceRange;
use proxy_common::way::PeerKey;

use super::family::{Family, FlowOf, KeyOf};
use crate::header::{Ipv6, ether_type, protocol};
use crate::maps::config::{OUTER_MASK6, OUTER_PREFIX6};
use crate::maps::{self, AffinityMap, FlowsMap, FlowsNewMap, FragmentsMap, NodeFlowsMap};

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
    const CLIENT: Option<Part> = Some(Part::Ipv6);
    const ICMP: Part = Part::Icmp6;
    const TUNNEL: Part = Part::Tunnel6;
    const TUNNEL_ICMP: Part = Part::TunnelIcmp6;
    const SNAT: Part = Part::Snat6;
    const SNAT_REPLY: Part = Part::SnatReply6;
    const REFUSAL: Part = Part::Refusal6;

    /// Excludes extension headers, and the number for "no next header".
    #[inline(always)]
    fn is_transport(protocol: u8) -> bool {
        !matches!(protocol, 0 | 43 | 44 | 50 | 51 | 59 | 60 | 135 | 139 | 140)
    }
    #[inline(always)]
    fn frontend_at(index: u32) -> Option<&'static IndexedFrontend<Addr6>> {
        maps::FRONTEND_INDEX6.get(index)
    }
    #[inline(always)]
    fn unindexed_frontend(key: &FrontendKey<Addr6>) -> Option<Frontend> {
        // SAFETY: copied at once; frontends are never rewritten by an endpoint change.
        unsafe { maps::FRONTENDS6.get(key).copied() }
    }
    #[inline(always)]
    fn backend_at(id: u32) -> Option<&'static Backend<Addr6>> {
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
    fn backend_connections(id: u32) -> Option<*mut BackendConnections> {
        maps::BACKEND_CONNECTIONS6.get_ptr_mut(id)
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
    fn is_outer_source(address: &Addr6) -> bool {
        let (prefix, mask) = (OUTER_PREFIX6.load(), OUTER_MASK6.load());
        let [mask_a, ..] = mask;
        let words = address.0.into_iter().zip(mask).zip(prefix);
        mask_a != 0 && words.fold(0, |differ, ((word, mask), prefix)| differ | word & mask ^ prefix) == 0
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
