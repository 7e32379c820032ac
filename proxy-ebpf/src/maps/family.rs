//! IPv4 and IPv6 as one generic source: types and maps. What differs in their headers is in [`Header`](crate::packet::ip::Header).

use aya_ebpf::bindings::bpf_fib_lookup;
use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::addr::Address;
use proxy_common::backend::Backend;
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::hop::{Device, Hop};
use proxy_common::source_range::SourceRange;
use proxy_common::way::PeerKey;

use crate::maps::{AffinityMap, FlowsMap, FlowsNewMap, FragmentsMap, NodeFlowsMap};

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

    /// Whether a protocol number can be that of something in packets, not of a header that belongs to the network's own.
    fn is_transport(protocol: u8) -> bool;
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
    /// This CPU's entry of SCRATCH, which one stage leaves for the next.
    fn scratch() -> Option<*mut FlowOf<Self>>;
    /// This CPU's entries of KEYS, for global functions.
    fn key_scratch(index: u32) -> Option<*mut KeyOf<Self>>;
    /// Says from where and whereto the FIB is asked.
    fn ask(query: &mut bpf_fib_lookup, source: &Self::Address, destination: &Self::Address);
    /// The source address the FIB answered.
    fn answered_source(query: &bpf_fib_lookup) -> Self::Address;
    /// The source address of what leaves by a device.
    fn source_of(device: &Device) -> Self::Address;
    /// Which packets fragments belong to.
    fn fragments() -> &'static FragmentsMap<Self::Address>;
    /// Connections the client has answered in.
    fn flows() -> &'static FlowsMap<Self::Address>;
    /// Connections with nothing but the client's first packet.
    fn flows_new() -> &'static FlowsNewMap<Self::Address>;
    /// Connections of this node's own at ports that are frontends', too.
    fn node_flows() -> &'static NodeFlowsMap<Self::Address>;

    /// Whether an address is in that prefix.
    fn is_outer_source(address: &Self::Address) -> bool;
    /// The address in a v4-mapped field of a way.
    fn unmap(words: &[u32; 4]) -> Self::Address;
    /// The v4-mapped form.
    fn map(address: &Self::Address) -> [u32; 4];
    /// Asks with the key that an address has in PEERS. One of IPv6 is its own key, where it stands: there is no room on the stack
    /// for a second.
    fn with_peer_key<T>(address: &Self::Address, ask: impl FnOnce(&PeerKey) -> T) -> T;
}

/// The flow map's entry types are shared by both families' code.
pub type FlowOf<F> = Flow<<F as Family>::Address>;
/// Key of [`FlowOf`].
pub type KeyOf<F> = FlowKey<<F as Family>::Address>;

/// An address and a port, both in network byte order.
pub type Endpoint<F> = (<F as Family>::Address, u16);
