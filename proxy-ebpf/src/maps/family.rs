//! IPv4 and IPv6 as one generic source: types and maps. [`Header`](crate::packet::ip::Header) has the
//! differences of their headers.

use aya_ebpf::bindings::bpf_fib_lookup;
use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::addr::Address;
use proxy_common::backend::Backend;
use proxy_common::figures::BackendConnections;
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::frontend_index::{IndexedFrontend, choices};
use proxy_common::hop::{Device, Hop};
use proxy_common::part::Part;
use proxy_common::selection::BackendRef;
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
    /// The part that serves packets with ports; `None` if the program itself does.
    const CLIENT: Option<Part>;
    /// The part that serves ICMP.
    const ICMP: Part;
    /// The part that receives tunnel packets with an outer header of this family.
    const TUNNEL: Part;
    /// The part that receives ICMP errors in them.
    const TUNNEL_ICMP: Part;
    /// The part that translates a client's address, too.
    const SNAT: Part;
    /// The part that translates replies to such a client.
    const SNAT_REPLY: Part;
    /// The part that answers refused packets.
    const REFUSAL: Part;

    /// Whether a protocol number can be that of a payload, not of a header of the network layer.
    fn is_transport(protocol: u8) -> bool;
    /// Looks a frontend up: in the index first, which has nearly all.
    #[inline(always)]
    fn frontend(key: &FrontendKey<Self::Address>) -> Option<Frontend> {
        for index in choices(key) {
            if let Some(entry) = Self::frontend_at(index)
                && entry.is(key)
            {
                return Some(entry.frontend);
            }
        }
        Self::unindexed_frontend(key)
    }
    /// The flags of a frontend; zero if there is none.
    ///
    /// From `is_some_and` LLVM would make a test of flags that no instruction has loaded, which the verifier
    /// refuses.
    #[inline(always)]
    fn frontend_flags(key: &FrontendKey<Self::Address>) -> u32 {
        Self::frontend(key).map_or(0, |frontend| frontend.flags)
    }
    /// Reads an entry of the index of frontends.
    fn frontend_at(index: u32) -> Option<&'static IndexedFrontend<Self::Address>>;
    /// Looks a frontend up in the map that has all of them.
    fn unindexed_frontend(key: &FrontendKey<Self::Address>) -> Option<Frontend>;
    /// Reads the backend with an id.
    fn backend_at(id: u32) -> Option<&'static Backend<Self::Address>>;
    /// The backend of a reference, unless it is gone or its id means another one by now.
    #[inline(always)]
    fn backend(reference: BackendRef) -> Option<&'static Backend<Self::Address>> {
        Self::backend_at(reference.id()).filter(|backend| backend.is(reference))
    }
    /// Whether a stored prefix covers the key.
    fn is_in_source_range(key: &Key<SourceRange<Self::Address>>) -> bool;
    /// The last backend of each client.
    fn affinity() -> &'static AffinityMap<Self::Address>;
    /// The counts a backend id has in BACKEND_CONNECTIONS.
    fn backend_connections(id: u32) -> Option<*mut BackendConnections>;
    /// The hop a backend id has in HOPS.
    fn hop(id: u32) -> Option<*mut Hop<Self::Address>>;
    /// This CPU's entry of SCRATCH, which one stage leaves for the next.
    fn scratch() -> Option<*mut FlowOf<Self>>;
    /// This CPU's entries of KEYS, for global functions.
    fn key_scratch(index: u32) -> Option<*mut KeyOf<Self>>;
    /// Sets source and destination of a FIB query.
    fn ask(query: &mut bpf_fib_lookup, source: &Self::Address, destination: &Self::Address);
    /// The source address in the FIB's answer.
    fn answered_source(query: &bpf_fib_lookup) -> Self::Address;
    /// The source address of packets that leave by a device.
    fn source_of(device: &Device) -> Self::Address;
    /// The packets that fragments belong to.
    fn fragments() -> &'static FragmentsMap<Self::Address>;
    /// Connections the client has answered in.
    fn flows() -> &'static FlowsMap<Self::Address>;
    /// Connections with nothing but the client's first packet.
    fn flows_new() -> &'static FlowsNewMap<Self::Address>;
    /// This node's own connections at ports that frontends have, too.
    fn node_flows() -> &'static NodeFlowsMap<Self::Address>;

    /// Whether an address is in the prefix of outer sources.
    fn is_outer_source(address: &Self::Address) -> bool;
    /// The address in a v4-mapped field of a way.
    fn unmap(words: &[u32; 4]) -> Self::Address;
    /// The v4-mapped form.
    fn map(address: &Self::Address) -> [u32; 4];
    /// Calls `ask` with the key of an address in PEERS.
    ///
    /// An IPv6 address is its own key, in place: the stack has no room for a second one.
    fn with_peer_key<T>(address: &Self::Address, ask: impl FnOnce(&PeerKey) -> T) -> T;
}

/// A flow entry of a family.
pub type FlowOf<F> = Flow<<F as Family>::Address>;
/// Key of [`FlowOf`].
pub type KeyOf<F> = FlowKey<<F as Family>::Address>;

/// An address and a port, both in network byte order.
pub type Endpoint<F> = (<F as Family>::Address, u16);
