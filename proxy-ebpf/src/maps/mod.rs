//! Every map. The kernel may recycle a hash value under a reference, so callers copy it, or check its owner.
//!
//! The sizes here are defaults; the agent overrides them when it loads the object.

pub mod clock;
pub mod config;
pub mod drops;
pub mod family;
pub mod figures;
pub mod global;
pub mod mode;
pub mod observe;
pub mod peers;
pub mod recorder;
pub mod v4;
pub mod v6;

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_COMMON_LRU, BPF_F_NO_PREALLOC};
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, LruHashMap, LruPerCpuHashMap, PerCpuArray, ProgramArray};
use aya_ebpf::macros::btf_map;
use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::announced::{ANNOUNCED_ENTRIES, AnnouncedKey};
use proxy_common::answer::{ANSWERS_ENTRIES, ANSWERS_ROW};
use proxy_common::backend::Backend;
use proxy_common::config::{AGENT_WORDS, PORT_GROUP, PORT_GROUPS};
use proxy_common::device_mac::DEVICE_MAC_WORDS;
use proxy_common::event::{EVENTS_PER_CPU, Event, Monitor, Recording};
use proxy_common::figures::{
    BackendConnections, Connections, DropKey, HANDSHAKES_ENTRIES, Handshakes, SERVICE_DROPS_ENTRIES,
};
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::fragment::{FragmentKey, HELD_PER_CPU, Held, HeldKey};
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::frontend_index::{FRONTEND_INDEX_ENTRIES, IndexedFrontend};
use proxy_common::hop::{Device, Hop};
use proxy_common::icmp::{KINDS, SourcePrefix};
use proxy_common::name::ServiceName;
use proxy_common::node_flow::NODE_PORT_WORDS;
use proxy_common::part::PART_ENTRIES;
use proxy_common::selection::HintKey;
use proxy_common::socket::{SocketFrontend, SocketKey};
use proxy_common::source_range::SourceRange;
use proxy_common::verdict::{COUNTER_ENTRIES, Counter};
use proxy_common::vip::{ADDRESS_FILTER_WORDS, VipKey};
use proxy_common::way::{PeerKey, Way};
use proxy_common::{Addr4, Addr6};

use crate::header::Ethernet;

const MMAPABLE: usize = BPF_F_MMAPABLE as usize;
/// The map takes memory for an entry when the entry comes, and gives it back.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;
const SERVICES_DEFAULT: usize = 1 << 16;
const SLOTS_DEFAULT: usize = 1 << 20;
const BACKENDS_DEFAULT: usize = 1 << 16;
const WAYS_DEFAULT: usize = 1 << 13;
const SOURCE_RANGES_DEFAULT: usize = 1 << 14;
const AFFINITY_DEFAULT: usize = 1 << 16;
const DEVICES_DEFAULT: usize = 1 << 10;
const FLOWS_DEFAULT: usize = 1 << 18;
const FLOWS_NEW_DEFAULT: usize = 1 << 16;
const FRAGMENTS_ENTRIES: usize = 1 << 14;
const NODE_FLOWS_ENTRIES: usize = 1 << 14;
const HELD_DEFAULT: usize = HELD_PER_CPU as usize;
/// A common list would keep back 128 entries for each CPU, which is more than the map has.
const HELD_FLAGS: usize = BPF_F_NO_COMMON_LRU as usize;
const SOCKETS_DEFAULT: usize = 1 << 16;
/// Words of [`SNAT_FULL`].
pub const SNAT_FULL_ENTRIES: u32 = 1 << 10;
const ICMP_SOURCES_ENTRIES: usize = 1 << 12;

/// The type of [`FLOWS4`] and [`FLOWS6`].
pub type FlowsMap<A> = HashMap<FlowKey<A>, Flow<A>, FLOWS_DEFAULT, ON_DEMAND>;
/// The type of [`FLOWS_NEW4`] and [`FLOWS_NEW6`].
pub type FlowsNewMap<A> = LruHashMap<FlowKey<A>, Flow<A>, FLOWS_NEW_DEFAULT>;

/// The type of [`FRONTEND_INDEX4`] and [`FRONTEND_INDEX6`].
pub type FrontendIndex<A> = Array<IndexedFrontend<A>, { FRONTEND_INDEX_ENTRIES as usize }, MMAPABLE>;

/// The type of [`FRAGMENTS4`] and [`FRAGMENTS6`].
pub type FragmentsMap<A> = LruHashMap<FragmentKey<A>, u64, FRAGMENTS_ENTRIES>;

/// The type of [`NODE_FLOWS4`] and [`NODE_FLOWS6`].
pub type NodeFlowsMap<A> = LruHashMap<FlowKey<A>, u32, NODE_FLOWS_ENTRIES>;

/// The type of [`AFFINITY4`] and [`AFFINITY6`].
pub type AffinityMap<A> = LruHashMap<AffinityKey<A>, Affinity, AFFINITY_DEFAULT>;

/// Words of [`BUFFER`], which holds the rest of a frame of 9216 bytes behind a fragment of 1280.
pub const BUFFER_WORDS: usize = 1024;
/// The type of [`BUFFER`].
pub type Buffer = [u64; BUFFER_WORDS];
/// The type of [`SOCK_REV4`], [`SOCK_TCP4`], and IPv6's.
pub type SocketsMap<A> = LruHashMap<SocketKey<A>, SocketFrontend<A>, SOCKETS_DEFAULT>;

/// Frontends of IPv4 Services. Written by the agent, read by every program; nothing is evicted.
#[btf_map]
pub static FRONTENDS4: HashMap<FrontendKey<Addr4>, Frontend, SERVICES_DEFAULT, ON_DEMAND> = HashMap::new();
/// Frontends of IPv6 Services; as [`FRONTENDS4`].
#[btf_map]
pub static FRONTENDS6: HashMap<FrontendKey<Addr6>, Frontend, SERVICES_DEFAULT, ON_DEMAND> = HashMap::new();
/// Copies of IPv4 frontends, which are found without a call; see
/// [`frontend_index`](proxy_common::frontend_index). The agent stores through its memory mapping.
#[btf_map]
pub static FRONTEND_INDEX4: FrontendIndex<Addr4> = Array::new();
/// The same for IPv6; as [`FRONTEND_INDEX4`].
#[btf_map]
pub static FRONTEND_INDEX6: FrontendIndex<Addr6> = Array::new();
/// [`ServiceEntry`](proxy_common::selection::ServiceEntry) words by Service id. The agent stores through its
/// memory mapping.
#[btf_map]
pub static SERVICES: Array<u64, SERVICES_DEFAULT, MMAPABLE> = Array::new();
/// [`Slot`](proxy_common::selection::Slot) words. The agent stores through its memory mapping.
#[btf_map]
pub static SELECTION: Array<u64, SLOTS_DEFAULT, MMAPABLE> = Array::new();
/// IPv4 endpoints by backend id. Written by the agent.
#[btf_map]
pub static BACKENDS4: Array<Backend<Addr4>, BACKENDS_DEFAULT> = Array::new();
/// IPv6 endpoints by backend id. Written by the agent.
#[btf_map]
pub static BACKENDS6: Array<Backend<Addr6>, BACKENDS_DEFAULT> = Array::new();
/// Ways to other nodes, by way id. Written by the agent.
#[btf_map]
pub static WAYS: Array<Way, WAYS_DEFAULT> = Array::new();
/// A [`Narrowing`](proxy_common::way::Narrowing) word by way id, if the MTU in WAYS is a router's; else 0.
/// Written by the programs.
#[btf_map]
pub static NARROWED: Array<u64, WAYS_DEFAULT> = Array::new();
/// Backends on this node by Service id and hint; the value is a `BackendRef`. Written by the agent.
#[btf_map]
pub static HINTS: HashMap<HintKey, u32, BACKENDS_DEFAULT, ON_DEMAND> = HashMap::new();
/// Nodes of the cluster and this node's own addresses. Written by the agent.
///
/// The value is a set of `PEER_*` bits, and above them the id of the way to the address.
#[btf_map]
pub static PEERS: HashMap<PeerKey, u32, WAYS_DEFAULT, ON_DEMAND> = HashMap::new();
/// IPv4 connections the client has answered in.
///
/// Written by the programs; the agent reads, deletes, and copies into a map of another size. Nothing is evicted: the
/// agent removes the entries that were silent longest before the map is full.
#[btf_map]
pub static FLOWS4: FlowsMap<Addr4> = HashMap::new();
/// IPv6 connections; as [`FLOWS4`].
#[btf_map]
pub static FLOWS6: FlowsMap<Addr6> = HashMap::new();
/// IPv4 connections with nothing but the client's first packet. A SYN flood evicts entries here only.
#[btf_map]
pub static FLOWS_NEW4: FlowsNewMap<Addr4> = LruHashMap::new();
/// IPv6 embryos; as [`FLOWS_NEW4`].
#[btf_map]
pub static FLOWS_NEW6: FlowsNewMap<Addr6> = LruHashMap::new();
/// Rows of [`Answer`](proxy_common::answer::Answer) words: proof that a client has seen its backend's answer.
/// Written by the programs.
#[btf_map]
pub static ANSWERS: Array<[u64; ANSWERS_ROW], { ANSWERS_ENTRIES as usize }> = Array::new();
/// Ports of IPv4 packets whose first fragment was seen; a
/// [`FragmentWord`](proxy_common::fragment::FragmentWord).
///
/// Written by the programs. A packet whose entry is evicted loses its other fragments.
#[btf_map]
pub static FRAGMENTS4: FragmentsMap<Addr4> = LruHashMap::new();
/// The same for IPv6; as [`FRAGMENTS4`].
#[btf_map]
pub static FRAGMENTS6: FragmentsMap<Addr6> = LruHashMap::new();
/// Fragments, as whole frames, that came before the first one of their packet.
///
/// Written by `tc_ingress` and `tc_pod_in`. The size is for each CPU. An evicted fragment is lost.
#[btf_map]
pub static HELD: LruHashMap<HeldKey, Held, HELD_DEFAULT, HELD_FLAGS> = LruHashMap::new();
/// Source prefixes that may use an IPv4 frontend, and prefixes inside the cluster. Written by the agent;
/// nothing is evicted.
#[btf_map]
pub static SOURCE_RANGES4: LpmTrie<SourceRange<Addr4>, u32, SOURCE_RANGES_DEFAULT> = LpmTrie::new();
/// The same for IPv6; as [`SOURCE_RANGES4`].
#[btf_map]
pub static SOURCE_RANGES6: LpmTrie<SourceRange<Addr6>, u32, SOURCE_RANGES_DEFAULT> = LpmTrie::new();
/// The last backend of an IPv4 client of a Service with session affinity.
///
/// Written by the programs. A client whose entry is evicted gets the backend of its slot.
#[btf_map]
pub static AFFINITY4: AffinityMap<Addr4> = LruHashMap::new();
/// The same for IPv6; as [`AFFINITY4`].
#[btf_map]
pub static AFFINITY6: AffinityMap<Addr6> = LruHashMap::new();
/// Packets and bytes by program and reason; index:
/// [`Program::counter`](proxy_common::verdict::Program::counter). Written by the programs.
#[btf_map]
pub static COUNTERS: PerCpuArray<Counter, { COUNTER_ENTRIES as usize }> = PerCpuArray::new();
/// Packets and bytes of a Service's clients, by Service id. Written by the programs.
#[btf_map]
pub static SERVICE_STATS: PerCpuArray<Counter, SERVICES_DEFAULT> = PerCpuArray::new();
/// The name of each Service id. Written by the agent, read by the command line and at adoption, never by a
/// program.
#[btf_map]
pub static NAMES: HashMap<u32, ServiceName, SERVICES_DEFAULT, ON_DEMAND> = HashMap::new();
/// The agent's heartbeat; see `proxy_common::config::AGENT_*`. The agent stores through its memory mapping.
#[btf_map]
pub static AGENT: Array<u64, { AGENT_WORDS as usize }, MMAPABLE> = Array::new();
/// One byte for each port (network byte order, as a number), set once a backend with it gets a connection
/// whose replies are restored here.
///
/// `tc_egress` and `tc_pod_out` look here first. Written by the programs.
#[btf_map]
pub static SERVED_PORTS: Array<[u8; PORT_GROUP as usize], { PORT_GROUPS as usize }> = Array::new();
/// The MAC address of each uplink, by the low bits of its interface index (`device_mac`).
///
/// The agent stores through its memory mapping.
#[btf_map]
pub static DEVICE_MACS: Array<u64, { DEVICE_MAC_WORDS as usize }, MMAPABLE> = Array::new();
/// Addresses that this node answers for on a link, by device; the value is the MAC address. Written by the agent, read
/// by the programs.
#[btf_map]
pub static ANNOUNCED: HashMap<AnnouncedKey, u64, { ANNOUNCED_ENTRIES as usize }, ON_DEMAND> = HashMap::new();
/// One bit for each port (network byte order, as a number) that a frontend on an address of this node may
/// have.
///
/// The agent stores through its memory mapping, and clears no bit. A deleted frontend's port costs its
/// packets a look-up in FRONTENDS.
#[btf_map]
pub static NODE_PORTS: Array<u64, { NODE_PORT_WORDS as usize }, MMAPABLE> = Array::new();
/// The time of the last IPv4 packet of this node's own connections at such a port, in monotonic seconds.
///
/// They belong to its sockets, and to pods that its CNI masquerades. The key is that of incoming packets.
/// Written by `tc_egress`, and by the agent when it starts. A connection whose entry is evicted gets one
/// again with its next packet.
#[btf_map]
pub static NODE_FLOWS4: NodeFlowsMap<Addr4> = LruHashMap::new();
/// The same for IPv6; as [`NODE_FLOWS4`].
#[btf_map]
pub static NODE_FLOWS6: NodeFlowsMap<Addr6> = LruHashMap::new();
/// Hops to IPv4 backends on other nodes, by backend id. The programs write the FIB's answers.
#[btf_map]
pub static HOPS4: Array<Hop<Addr4>, BACKENDS_DEFAULT> = Array::new();
/// The same for IPv6; as [`HOPS4`].
#[btf_map]
pub static HOPS6: Array<Hop<Addr6>, BACKENDS_DEFAULT> = Array::new();
/// The last time that no port of this node (SNAT) was found free or quiet, by the hash of a destination.
///
/// The word's upper half is the hash, inverted if ports in use can be lent. The lower half is the monotonic
/// clock's milliseconds. Written by the
/// programs. If two destinations share a word, one entry is lost.
#[btf_map]
pub static SNAT_FULL: Array<u64, { SNAT_FULL_ENTRIES as usize }> = Array::new();
/// Devices that translated packets may leave by, by interface index. Written by the agent.
#[btf_map]
pub static DEVICES: HashMap<u32, Device, DEVICES_DEFAULT, ON_DEMAND> = HashMap::new();
/// The time at which the bucket of a source prefix and kind of message is full again; see
/// [`proxy_common::icmp`].
///
/// Written by the programs. A prefix whose entry is evicted has a full bucket.
#[btf_map]
pub static ICMP_SOURCES: LruHashMap<SourcePrefix, u64, ICMP_SOURCES_ENTRIES> = LruHashMap::new();
/// The time at which this CPU's bucket for all ICMP messages of a kind is full again. Written by the
/// programs.
#[btf_map]
pub static ICMP_TOTAL: PerCpuArray<u64, { KINDS as usize }> = PerCpuArray::new();
/// Addresses of Services; the value is a set of `VIP_*` bits, or `VIP_ON_NODE` alone for a node's address. Written
/// by the agent.
#[btf_map]
pub static VIPS: HashMap<VipKey, u32, SERVICES_DEFAULT, ON_DEMAND> = HashMap::new();
/// The first question about a packet: may the programs have anything to do with its destination? See
/// [`filter_place`](proxy_common::vip::filter_place).
///
/// The agent stores through its memory mapping, and clears no bit. Packets for a deleted address cost a
/// look-up in VIPS, or one in FRONTENDS.
#[btf_map]
pub static ADDRESS_FILTER: Array<u64, { ADDRESS_FILTER_WORDS as usize }, MMAPABLE> = Array::new();
/// The flow entry that one stage of an IPv4 packet leaves for the next. One for each CPU, written by the
/// programs.
#[btf_map]
pub static SCRATCH4: PerCpuArray<Flow<Addr4>, 1> = PerCpuArray::new();
/// The same for IPv6; as [`SCRATCH4`].
#[btf_map]
pub static SCRATCH6: PerCpuArray<Flow<Addr6>, 1> = PerCpuArray::new();
/// A buffer for data that fits no stack. One for each CPU, written by the programs.
#[btf_map]
pub static BUFFER: PerCpuArray<Buffer, 1> = PerCpuArray::new();
/// Keys for global functions. One for each CPU, written by the programs.
#[btf_map]
pub static KEYS4: PerCpuArray<FlowKey<Addr4>, 2> = PerCpuArray::new();
/// The same for IPv6; as [`KEYS4`].
#[btf_map]
pub static KEYS6: PerCpuArray<FlowKey<Addr6>, 2> = PerCpuArray::new();
/// The frontend that a UDP socket's IPv4 backend stands for.
///
/// Written by the socket hooks; the agent only reads and deletes. A socket whose entry is evicted sees its
/// backend's own address, and is not destroyed with its backend.
#[btf_map]
pub static SOCK_REV4: SocketsMap<Addr4> = LruHashMap::new();
/// The same for IPv6; as [`SOCK_REV4`].
#[btf_map]
pub static SOCK_REV6: SocketsMap<Addr6> = LruHashMap::new();
/// The same for TCP's sockets, which are many and would evict those of UDP. Written and read by the socket
/// hooks.
#[btf_map]
pub static SOCK_TCP4: SocketsMap<Addr4> = LruHashMap::new();
/// The same for IPv6; as [`SOCK_TCP4`].
#[btf_map]
pub static SOCK_TCP6: SocketsMap<Addr6> = LruHashMap::new();
/// The Ethernet header that a bare frame lacks. One for each CPU, written by the programs.
#[btf_map]
pub static LINKS: PerCpuArray<Ethernet, 1> = PerCpuArray::new();
/// Packets of a Service that were dropped, by Service id and reason. Written by the programs. An evicted entry
/// begins anew.
#[btf_map]
pub static SERVICE_DROPS: LruPerCpuHashMap<DropKey, Counter, { SERVICE_DROPS_ENTRIES as usize }> =
    LruPerCpuHashMap::new();
/// Connections of a Service by what became of them, by Service id. Written by the programs.
#[btf_map]
pub static SERVICE_CONNECTIONS: Array<Connections, SERVICES_DEFAULT> = Array::new();
/// The same of IPv4 endpoints, by backend id.
#[btf_map]
pub static BACKEND_CONNECTIONS4: Array<BackendConnections, BACKENDS_DEFAULT> = Array::new();
/// The same of IPv6 endpoints, by backend id.
#[btf_map]
pub static BACKEND_CONNECTIONS6: Array<BackendConnections, BACKENDS_DEFAULT> = Array::new();
/// Times to the first answer, by Service id. Written by the programs.
#[btf_map]
pub static SERVICE_HANDSHAKES: Array<Handshakes, SERVICES_DEFAULT> = Array::new();
/// The times of SYNs that wait for an answer; see
/// [`handshake_word`](proxy_common::figures::handshake_word). Written by the programs.
#[btf_map]
pub static HANDSHAKES: Array<u64, { HANDSHAKES_ENTRIES as usize }> = Array::new();
/// The last events of each CPU. Written by the programs; see [`proxy_common::event`].
#[btf_map]
pub static EVENTS: Array<Event, { EVENTS_PER_CPU as usize }, MMAPABLE> = Array::new();
/// Where each CPU is in EVENTS. Written by the programs.
#[btf_map]
pub static RECORDING: PerCpuArray<Recording, 1> = PerCpuArray::new();
/// What is recorded. Written by the command that watches.
#[btf_map]
pub static MONITOR: Array<Monitor, 1> = Array::new();
/// The type of an array of [parts](proxy_common::part).
pub type Parts = ProgramArray<{ PART_ENTRIES as usize }>;
/// The parts of `xdp_ingress`. The agent fills it when it loads the programs.
#[btf_map]
pub static XDP_PARTS: Parts = ProgramArray::new();
/// The parts of `tc_ingress`; as [`XDP_PARTS`].
#[btf_map]
pub static TC_PARTS: Parts = ProgramArray::new();
/// The parts of `tc_ingress_l3`; as [`XDP_PARTS`].
#[btf_map]
pub static L3_PARTS: Parts = ProgramArray::new();
/// The parts of `tc_pod_in`; as [`XDP_PARTS`].
#[btf_map]
pub static POD_PARTS: Parts = ProgramArray::new();
