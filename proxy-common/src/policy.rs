//! The maps of the pod firewall, which carries out NetworkPolicies: `POLICY_*`.
//!
//! Its programs have an object, maps and a layout of their own, so nothing of it exists where it is off. They see
//! a pod's packets as the pod's own network sees them: behind the translation on the way in, before the restoring
//! of addresses on the way out.
//!
//! A packet costs one look-up for the pod (by device), and one for its connection. Without a connection follow one
//! for the peer (address to class) and one for the rule (profile, class, protocol, port).

use crate::layout::shared;
use crate::name::padded_text;
use crate::way::FOU_PORT;

/// The version of this layout: a part of the directory that all maps and links of the firewall are pinned below.
pub const POLICY_LAYOUT_VERSION: u32 = 1;

/// The number of entries in POLICY_PODS.
pub const POLICY_PODS_ENTRIES: u32 = 1 << 12;
/// The number of words in POLICY_CONFIG.
pub const POLICY_CONFIG_WORDS: u32 = 4;
/// Word of POLICY_CONFIG: the number of the present tables. A connection that was judged by others is judged again.
pub const POLICY_GENERATION: u32 = 0;
/// Word of POLICY_CONFIG: [`POLICY_OPEN_UNKNOWN`] or nothing.
pub const POLICY_FLAGS: u32 = 1;
/// Word of POLICY_CONFIG: the last [`PolicyPod::epoch`] that was given, for the agent alone.
pub const POLICY_LAST_EPOCH: u32 = 2;
/// Flag: the cluster has no policy, so a device whose pod is not known yet is open.
pub const POLICY_OPEN_UNKNOWN: u32 = 1 << 0;

/// 64-bit words of POLICY_GUARDED: a bit for each device, by the low bits of its index.
pub const POLICY_GUARDED_WORDS: u32 = 1 << 10;

/// Returns the word and the bit of a device in POLICY_GUARDED.
///
/// A set bit is a hint that policies isolate the pod, so that its packets are looked up in the table of connections
/// first. A wrong hint costs time and nothing else.
#[inline(always)]
#[must_use]
pub const fn guarded_place(device: u32) -> (u32, u64) {
    (device / u64::BITS % POLICY_GUARDED_WORDS, 1 << (device % u64::BITS))
}

/// Seconds after the isolation of a pod for which a TCP or SCTP packet in the midst of a connection without an entry may
/// also be a reply: [`PolicyPod::lenient_until`].
pub const LENIENT_SECONDS: u32 = 60;

/// A profile that is not isolated in this direction.
pub const NOT_ISOLATED: u32 = 0;
/// The profile of a device whose pod is not known: no rule has it.
pub const UNKNOWN_PROFILE: u32 = u32::MAX;

/// Flag of a value of POLICY_PEERS4/6: an address of this node, which always reaches its pods.
pub const PEER_OWN_NODE: u32 = 1 << 31;
/// Flag of a value of POLICY_PEERS4/6: an address of any node, or a link-local one of this node.
///
/// Nodes take off the outer headers of tunnels, so a pod could send in the name of others by a tunnel to one.
pub const PEER_NODE: u32 = 1 << 30;
/// The bits of the class in a value of POLICY_PEERS4/6. An address without an entry has class 0.
pub const PEER_CLASS: u32 = PEER_NODE - 1;

/// Bytes of a [`PolicyName`]. Namespace and name of a pod (63 and 253) fit, and some names of policies.
pub const POLICY_NAME_BYTES: usize = 1024;
/// The number of entries in POLICY_OWNERS: addresses of pods of the whole cluster.
pub const POLICY_OWNERS_ENTRIES: u32 = 1 << 17;
/// Bytes of a [`PolicyOwner`]'s text. Names that a controller generates fit, with any namespace (63 and 63).
///
/// An entry is then 256 bytes in the kernel with its key and its headers, which is a size of its allocator.
pub const POLICY_OWNER_BYTES: usize = 176;

/// Leading bits of a [`PolicyRule`] that stand for any protocol.
pub const RULE_ANY_PROTOCOL: u32 = 64;
/// Leading bits of a [`PolicyRule`] that stand for any port of a protocol.
pub const RULE_ANY_PORT: u32 = 80;
/// All bits of a [`PolicyRule`].
pub const RULE_EXACT: u32 = 96;

/// The peer opened the connection: [`PolicyFlow::opened`].
pub const OPENED_BY_PEER: u16 = 0;
/// The pod opened the connection: [`PolicyFlow::opened`].
pub const OPENED_BY_POD: u16 = 1;

/// Seconds of silence after which an exchange of datagrams, or of a protocol without connections, has ended.
///
/// The kernel's own connection tracking gives UDP exchanges as much after the second packet.
pub const DATAGRAM_SECONDS: u32 = 120;
/// Seconds of silence after which an exchange of echo requests has ended, as in the kernel's connection tracking.
pub const ECHO_SECONDS: u32 = 30;

shared! {
    /// Value of POLICY_PODS, by the index of the pod's device on the node. The agent writes it.
    ///
    /// A device without an entry belongs to a pod that is not known yet.
    pub struct PolicyPod {
        /// The pod's IPv4 address; zero = none.
        pub address4: [u32; 1],
        /// The pod's IPv6 address; zeros = none.
        pub address6: [u32; 4],
        /// Profile for connections to the pod, or [`NOT_ISOLATED`].
        pub ingress: u32,
        /// Profile for connections of the pod, or [`NOT_ISOLATED`].
        pub egress: u32,
        /// A number that no other pod of this node has had. 0 stands for pods that are not known.
        pub epoch: u32,
        /// The monotonic second until which a TCP or SCTP packet in the midst of a connection without an entry may also
        /// be a reply; 0 = never.
        ///
        /// So the first policy cuts no connection that it allows: each of them gets an entry by its next packet. Later, a
        /// pod that may open no connections could send packets that look like replies to any address whose connections
        /// to the pod were allowed.
        pub lenient_until: u32,
    }

    /// Value of POLICY_NAMES, by the index of the pod's device on the node. The agent writes it for people, and no program
    /// reads it.
    ///
    /// It is UTF-8 text, padded with zeros. The first line is `namespace/name` of the pod. Each further line is a policy that
    /// isolates it: `i12 name` for ingress, `e7 name` for egress, `i12e7 name` for both. A number is the profile of the
    /// policy's rules alone in this direction, if it has one. A last line such as `+3` counts policies that had no room.
    pub struct PolicyName {
        /// The text. It is an array of arrays because `Default` ends at 32 elements.
        pub bytes: [[u8; 32]; 32],
    }

    /// Value of POLICY_OWNERS, by the address of a pod of any node, v4-mapped. The agent writes it for people, and no program
    /// reads it. An address of several pods has no entry.
    pub struct PolicyOwner {
        /// Monotonic nanoseconds at which the agent wrote it. An older packet may be of another pod.
        pub since: u64,
        /// `namespace/name`, UTF-8, padded with zeros. A longer one is cut off.
        pub bytes: [[u8; 16]; 11],
    }

    /// Key of POLICY_RULES, a longest-prefix-match trie; the value is 1. The agent writes it.
    ///
    /// Profiles that no pod has are those of single policies: they say to people which policy allows a connection.
    ///
    /// The kernel puts the prefix length in front of the key.
    pub struct PolicyRule {
        /// The profile, bytes in network order.
        pub profile: u32,
        /// The class, bytes in network order.
        pub class: u32,
        /// IP protocol number.
        pub protocol: u8,
        /// Zero.
        pub reserved: u8,
        /// Destination port, network byte order; 0 for protocols without ports.
        pub port: u16,
    }

    /// Value of POLICY_FLOWS4/6.
    pub struct PolicyFlow {
        /// The [`POLICY_GENERATION`] of the last judgement.
        pub generation: u32,
        /// Monotonic second of the last packet that passed.
        pub seen: u32,
        /// [`OPENED_BY_PEER`] or [`OPENED_BY_POD`].
        pub opened: u16,
        /// Not zero if the last judgement was to allow it.
        pub is_allowed: u16,
        /// [`PolicyPod::epoch`] at the last judgement. With another one the entry counts as none.
        pub epoch: u32,
    }

    /// Value of POLICY_EVENTS, a ring for each CPU: a dropped packet. The sequence number modulo
    /// [`POLICY_EVENTS_ENTRIES`] is the index.
    pub struct PolicyEvent {
        /// Number of the event on its CPU, from 1; 0 while it is being written.
        pub sequence: u64,
        /// Monotonic nanoseconds (CLOCK_MONOTONIC).
        pub at: u64,
        /// Index of the pod's device.
        pub device: u32,
        /// Bytes of the frame.
        pub length: u32,
        /// Source address, v4-mapped; zeros if it could not be read.
        pub source: [u32; 4],
        /// Destination address, v4-mapped; zeros if it could not be read.
        pub destination: [u32; 4],
        /// Source port, network byte order, or 0.
        pub source_port: u16,
        /// Destination port, network byte order, or 0.
        pub destination_port: u16,
        /// IP protocol number.
        pub protocol: u8,
        /// [`PolicyDirection`].
        pub direction: u8,
        /// [`PolicyDrop`].
        pub reason: u8,
        /// Zero.
        pub reserved: u8,
    }
}

shared! {
    /// Key of POLICY_FLOWS4/6, connections of the pods. The programs write it.
    ///
    /// Both directions of a connection have one key, seen from the pod. Each end on the node has one of its own.
    pub struct PolicyFlowKey<A> {
        /// The pod's address.
        pub pod: A,
        /// The address at the other end.
        pub peer: A,
        /// The pod's port, network byte order. Of an echo exchange: the identifier if the pod asks, else 0.
        pub pod_port: u16,
        /// The port at the other end, network byte order. Of an echo exchange: the identifier if the peer asks,
        /// else 0.
        pub peer_port: u16,
        /// IP protocol number.
        pub protocol: u32,
        /// Index of the pod's device on the node.
        pub device: u32,
    }

    /// Key of POLICY_FRAGMENTS4/6: packets whose first fragment passed. The value is the monotonic second of that.
    pub struct PolicyFragmentKey<A> {
        /// Source address.
        pub source: A,
        /// Destination address.
        pub destination: A,
        /// Identification, bytes in network order.
        pub id: u32,
        /// IP protocol number; 0 for IPv6, which tells packets apart without it (RFC 8200, section 4.5).
        pub protocol: u32,
        /// Index of the device.
        pub device: u32,
        /// [`PolicyDirection`].
        pub direction: u32,
    }
}

padded_text!(PolicyName);
padded_text!(PolicyOwner);

const _: () = assert!(size_of::<PolicyName>() == POLICY_NAME_BYTES);
const _: () = assert!(size_of::<PolicyOwner>() == size_of::<u64>() + POLICY_OWNER_BYTES);

/// UDP ports of tunnels without keys, network byte order: VXLAN (Linux' own default and IANA's), Geneve, FoU.
pub const TUNNEL_PORTS: [u16; 4] = [8472_u16.to_be(), 4789_u16.to_be(), 6081_u16.to_be(), FOU_PORT.to_be()];

/// The number of entries in POLICY_EVENTS.
pub const POLICY_EVENTS_ENTRIES: u32 = 1 << 6;

/// The direction of a packet, seen from the pod.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyDirection {
    /// To the pod.
    Ingress = 0,
    /// From the pod.
    Egress = 1,
}

impl PolicyDirection {
    /// Both of them, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Returns the name in tables, JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// The reason why the firewall dropped a packet.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyDrop {
    /// Policies isolate the pod, and none of their rules allows the connection.
    Denied = 0,
    /// The pod of the device is not known yet.
    UnknownPod = 1,
    /// A packet, or an ARP or neighbour message, in the name of an address that is not the pod's.
    ForeignSource = 2,
    /// The programs can't tell which connection the packet belongs to, and policies isolate the pod.
    Unreadable = 3,
}

impl PolicyDrop {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Denied, Self::UnknownPod, Self::ForeignSource, Self::Unreadable];

    /// Returns the name in tables, JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::UnknownPod => "unknown_pod",
            Self::ForeignSource => "foreign_source",
            Self::Unreadable => "unreadable",
        }
    }

    /// Returns the reason with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == number)
    }

    /// Returns the index in POLICY_COUNTERS of packets that were dropped for this reason.
    #[inline(always)]
    #[must_use]
    pub const fn counter(self, direction: PolicyDirection) -> u32 {
        direction as u32 * POLICY_COUNTERS_STRIDE + self as u32
    }
}

/// The stride of a direction in POLICY_COUNTERS.
pub const POLICY_COUNTERS_STRIDE: u32 = 8;
/// The place behind the stride's begin for connections (or packets of none) that a judgement allowed.
pub const POLICY_ALLOWED: u32 = 7;
/// The number of entries in POLICY_COUNTERS, packets and bytes for each CPU.
pub const POLICY_COUNTERS_ENTRIES: u32 = 2 * POLICY_COUNTERS_STRIDE;

/// Returns the index in POLICY_COUNTERS of packets that a judgement allowed.
#[inline(always)]
#[must_use]
pub const fn allowed_counter(direction: PolicyDirection) -> u32 {
    direction as u32 * POLICY_COUNTERS_STRIDE + POLICY_ALLOWED
}
