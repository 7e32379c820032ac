//! Every map of the firewall. The sizes here are defaults; the agent overrides them when it loads the object.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray};
use aya_ebpf::macros::btf_map;
use proxy_common::policy::{
    POLICY_CONFIG_WORDS, POLICY_COUNTERS_ENTRIES, POLICY_EVENTS_ENTRIES, POLICY_GUARDED_WORDS,
    POLICY_OWNERS_ENTRIES, POLICY_PODS_ENTRIES, PolicyEvent, PolicyFlow, PolicyFlowKey, PolicyFragmentKey,
    PolicyName, PolicyOwner, PolicyPod, PolicyRule,
};
use proxy_common::verdict::Counter;
use proxy_common::{Addr4, Addr6};

/// The map takes memory for an entry when the entry comes, and gives it back.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;
const PEERS_DEFAULT: usize = 1 << 16;
const RULES_DEFAULT: usize = 1 << 17;
const FLOWS_DEFAULT: usize = 1 << 17;
const FRAGMENTS_DEFAULT: usize = 1 << 12;

/// The type of [`POLICY_FLOWS4`] and [`POLICY_FLOWS6`].
pub type FlowsMap<A> = LruHashMap<PolicyFlowKey<A>, PolicyFlow, FLOWS_DEFAULT>;
/// The type of [`POLICY_FRAGMENTS4`] and [`POLICY_FRAGMENTS6`].
pub type FragmentsMap<A> = LruHashMap<PolicyFragmentKey<A>, u32, FRAGMENTS_DEFAULT>;

/// Words of settings, by the constants of [`proxy_common::policy`]. Written by the agent.
#[btf_map]
pub static POLICY_CONFIG: Array<u32, { POLICY_CONFIG_WORDS as usize }> = Array::new();
/// Pods by the index of their device on the node. Written by the agent.
#[btf_map]
pub static POLICY_PODS: HashMap<u32, PolicyPod, { POLICY_PODS_ENTRIES as usize }, ON_DEMAND> = HashMap::new();
/// A hint for each device whether policies isolate its pod
/// ([`guarded_place`](proxy_common::policy::guarded_place)). Written by the agent.
#[btf_map]
pub static POLICY_GUARDED: Array<u64, { POLICY_GUARDED_WORDS as usize }> = Array::new();
/// Names by the index of a pod's device, for people. Written by the agent; no program reads it.
#[btf_map]
pub static POLICY_NAMES: HashMap<u32, PolicyName, { POLICY_PODS_ENTRIES as usize }, ON_DEMAND> =
    HashMap::new();
/// The pods of all nodes by their addresses, for people. Written by the agent; no program reads it.
#[btf_map]
pub static POLICY_OWNERS: HashMap<Addr6, PolicyOwner, { POLICY_OWNERS_ENTRIES as usize }, ON_DEMAND> =
    HashMap::new();
/// Classes of IPv4 peers by prefix; `PEER_OWN_NODE` is set at addresses of this node. Written by the agent.
#[btf_map]
pub static POLICY_PEERS4: LpmTrie<Addr4, u32, PEERS_DEFAULT> = LpmTrie::new();
/// The same for IPv6; as [`POLICY_PEERS4`].
#[btf_map]
pub static POLICY_PEERS6: LpmTrie<Addr6, u32, PEERS_DEFAULT> = LpmTrie::new();
/// What is allowed: profile, class, protocol and port. The value has no meaning. Written by the agent.
#[btf_map]
pub static POLICY_RULES: LpmTrie<PolicyRule, u32, RULES_DEFAULT> = LpmTrie::new();
/// IPv4 connections of isolated pods. Written by the programs.
///
/// A connection whose entry is evicted is judged again with its next packet.
#[btf_map]
pub static POLICY_FLOWS4: FlowsMap<Addr4> = LruHashMap::new();
/// The same for IPv6; as [`POLICY_FLOWS4`].
#[btf_map]
pub static POLICY_FLOWS6: FlowsMap<Addr6> = LruHashMap::new();
/// The second in which the first fragment of an IPv4 packet passed. Written by the programs.
///
/// A packet whose entry is evicted loses its other fragments.
#[btf_map]
pub static POLICY_FRAGMENTS4: FragmentsMap<Addr4> = LruHashMap::new();
/// The same for IPv6; as [`POLICY_FRAGMENTS4`].
#[btf_map]
pub static POLICY_FRAGMENTS6: FragmentsMap<Addr6> = LruHashMap::new();
/// Packets and bytes by direction and reason. Written by the programs.
#[btf_map]
pub static POLICY_COUNTERS: PerCpuArray<Counter, { POLICY_COUNTERS_ENTRIES as usize }> = PerCpuArray::new();
/// The last dropped packets of each CPU. Written by the programs.
#[btf_map]
pub static POLICY_EVENTS: PerCpuArray<PolicyEvent, { POLICY_EVENTS_ENTRIES as usize }> = PerCpuArray::new();
/// The number of the last event of each CPU. Written by the programs.
#[btf_map]
pub static POLICY_RECORDING: PerCpuArray<u64, 1> = PerCpuArray::new();
