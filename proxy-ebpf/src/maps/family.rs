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
use proxy_common::way::PeerKey;

use crate::maps::{AffinityMap, FlowsMap, FlowsNewMap, FragmentsMap, NodeFlowsMap};
use crate::packet::Packet;
use crate::packet::parsed::Network;
use crate::packet::shape::Preface;
use crate::parse::unusual::Fragments;
use crate::verdict::Verdict;

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
    /// This CPU's note from one walk to the next.
    fn scratch() -> Option<*mut FlowOf<Self>>;
    /// This CPU's keys for functions that the verifier walks apart.
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

    /// The protocol field of the IP header at `network`, extension headers not looked into.
    fn peek_protocol<P: Packet>(packet: &P, network: usize) -> Option<u8>;
    /// Reads an IP header. `Network::payload` is behind all options and extension headers we can skip.
    fn parse_network<P: Packet>(
        packet: &P,
        network: usize,
        fragments: Fragments,
    ) -> Result<Network<Self::Address>, Verdict>;
    /// Reads what stands in front of the transport header of a packet that is not plain.
    fn read_preface<P: Packet>(packet: &P, network: usize) -> Option<Preface>;
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
    /// Makes the source of an outer header at `network` one of the prefix that is set for that, if one is: its host bits are the
    /// hash's.
    fn spread_source<P: Packet>(packet: &P, network: usize, hash: u32) -> Option<()>;
    /// Whether an address is in that prefix.
    fn is_outer_source(address: &Self::Address) -> bool;
    /// Reads hint and flags from an outer header at `network`.
    fn read_hint<P: Packet>(packet: &P, network: usize) -> Option<u32>;
    /// The address in a v4-mapped field of a way.
    fn unmap(words: &[u32; 4]) -> Self::Address;
    /// The v4-mapped form.
    fn map(address: &Self::Address) -> [u32; 4];
    /// Asks with the key that an address has in PEERS. One of IPv6 is its own key, where it stands: there is no room on the stack
    /// for a second.
    fn with_peer_key<T>(address: &Self::Address, ask: impl FnOnce(&PeerKey) -> T) -> T;
}

/// What an outer header is made of.
#[derive(Clone, Copy)]
pub struct Outer<A> {
    pub source: A,
    pub destination: A,
    /// Protocol number of what follows: the inner packet's family, or UDP.
    pub protocol: u8,
    pub traffic_class: u8,
    /// Bytes of what follows.
    pub inner_length: u32,
    /// Hint (bits 0..14) and `dsr::ONWARD` (bit 14).
    pub hint: u32,
}

pub const OUTER_HOP_LIMIT: u8 = 64;

/// The flow map's entry types are shared by both families' code.
pub type FlowOf<F> = Flow<<F as Family>::Address>;
/// Key of [`FlowOf`].
pub type KeyOf<F> = FlowKey<<F as Family>::Address>;

/// An address and a port, both in network byte order.
pub type Endpoint<F> = (<F as Family>::Address, u16);
