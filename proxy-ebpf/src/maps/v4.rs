//! The parts that only IPv4 has.

use aya_ebpf::bindings::bpf_fib_lookup;
use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::Addr4;
use proxy_common::backend::Backend;
use proxy_common::figures::BackendConnections;
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::frontend_index::IndexedFrontend;
use proxy_common::hop::{Device, Hop};
use proxy_common::part::Part;
use proxy_common::source_range::SourceRange;
use proxy_common::way::PeerKey;

use super::family::{Family, FlowOf, KeyOf};
use crate::header::{Ipv4, ether_type, protocol};
use crate::maps::config::{OUTER_MASK4, OUTER_PREFIX4};
use crate::maps::{self, AffinityMap, FlowsMap, FlowsNewMap, FragmentsMap, NodeFlowsMap};

pub const AF_INET: u8 = 2;

/// IPv4.
#[derive(Clone, Copy)]
pub struct V4;

impl Family for V4 {
    type Address = Addr4;
    const ETHER_TYPE: u16 = ether_type::IPV4;
    const HEADER: usize = size_of::<Ipv4>();
    const HAS_HEADER_CHECKSUM: bool = true;
    const ENCAPSULATED: u8 = protocol::IPV4;
    const CLIENT: Option<Part> = None;
    const ICMP: Part = Part::Icmp4;
    const TUNNEL: Part = Part::Tunnel4;
    const TUNNEL_ICMP: Part = Part::TunnelIcmp4;
    const SNAT: Part = Part::Snat4;
    const SNAT_REPLY: Part = Part::SnatReply4;
    const REFUSAL: Part = Part::Refusal4;

    #[inline(always)]
    fn is_transport(_protocol: u8) -> bool {
        true
    }
    #[inline(always)]
    fn frontend_at(index: u32) -> Option<&'static IndexedFrontend<Addr4>> {
        maps::FRONTEND_INDEX4.get(index)
    }
    #[inline(always)]
    fn unindexed_frontend(key: &FrontendKey<Addr4>) -> Option<Frontend> {
        // SAFETY: copied at once; frontends are never rewritten by an endpoint change.
        unsafe { maps::FRONTENDS4.get(key).copied() }
    }
    #[inline(always)]
    fn backend_at(id: u32) -> Option<&'static Backend<Addr4>> {
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
    fn backend_connections(id: u32) -> Option<*mut BackendConnections> {
        maps::BACKEND_CONNECTIONS4.get_ptr_mut(id)
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
    fn is_outer_source(address: &Addr4) -> bool {
        let ([word], mask) = (address.0, OUTER_MASK4.load());
        mask != 0 && word & mask == OUTER_PREFIX4.load()
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
