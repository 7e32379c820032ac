//! COUNTERS and SERVICE_STATS: the reasons why packets end as they do, and how often.

use crate::layout::shared;

/// Declares the counted reasons, with the number, the name and the meaning of each in one place.
macro_rules! reasons {
    ($($(#[doc = $line:literal])+ $variant:ident = $number:literal, $name:literal;)+) => {
        /// The reason why a packet ended as it did.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[doc = $line])+ $variant = $number,)+ }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];
            /// The number of the last reason. The reasons are in the order of their numbers.
            const LAST: u32 = match Self::ALL.last() { Some(last) => *last as u32, None => 0 };

            /// Returns the name in tables, JSON and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the meaning in one or two sentences: the variant's own documentation.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($line),+).trim_ascii(),)+ }
            }
        }
    };
}

reasons! {
    /// Neither for a frontend nor a reply of a backend: passed to the stack untouched.
    NotOurs = 0, "not_ours";
    /// Translated to a backend on this node and passed to the stack.
    ServedLocal = 1, "served_local";
    /// Encapsulated and sent to the backend's node or pod (Direct Server Return).
    SentDsr = 2, "sent_dsr";
    /// Decapsulated, then translated to a backend on this node.
    ServedDsr = 3, "served_dsr";
    /// A reply, translated back to the frontend's address.
    Reply = 4, "reply";
    /// Encapsulated again and sent to the slot's other owner (second chance).
    SentOnward = 5, "sent_onward";
    /// Passed unchanged by XDP to the TC program: the next hop is not resolved, its device has no
    /// XDP, or the kernel refused metadata.
    HandedToTc = 6, "handed_to_tc";
    /// Translated to a backend on another node and sent there from an address of this node (SNAT).
    SentSnat = 7, "sent_snat";
    /// An echo request to a Service's address, answered by the program.
    Echo = 8, "echo";
    /// A reply of a backend on another node, translated back and sent to the client.
    ReplySnat = 9, "reply_snat";
    /// An ICMP error about a Service's connection, translated for its receiver or sent on to the
    /// backend's node.
    IcmpError = 10, "icmp_error";
    /// A pod's packet, translated to a backend on any node and passed to the stack.
    ServedPod = 11, "served_pod";
    /// A pod's packet to a Service whose backend is the pod itself, translated and returned to the
    /// pod.
    Hairpin = 12, "hairpin";
    /// A later fragment that came before the first one of its packet, held until the first one
    /// comes. It is then received and counted again. A fragment for this node's own address is also
    /// passed to the stack: it may belong to no Service.
    FragmentHeld = 13, "fragment_held";
    /// A connection, or a datagram of an unconnected socket, that a socket hook directed to a
    /// backend.
    Connected = 14, "connected";
    /// Cut in two, because it was too large for the next hop. Both parts are received and counted
    /// again.
    Fragmented = 15, "fragmented";
    /// The Service has no usable endpoint. The client is refused by ICMP, a socket by ECONNREFUSED.
    NoEndpoint = 16, "no_endpoint";
    /// The traffic policy is Local, and all endpoints are on other nodes.
    NoLocalEndpoint = 17, "no_local_endpoint";
    /// Encapsulated for a frontend, but the sender is no node of the cluster.
    NotPeer = 18, "not_peer";
    /// Decapsulated, but neither flow entry nor hint nor second chance names a backend on this
    /// node.
    NoBackendHere = 19, "no_backend_here";
    /// A later fragment for a Service's address that can't be held. The first one of its packet,
    /// which has the port, was not seen.
    FragmentUnknown = 20, "fragment_unknown";
    /// There is no route, or no resolved neighbour, towards the backend.
    NoWay = 21, "no_way";
    /// The hop limit (TTL) is used up.
    HopLimit = 22, "hop_limit";
    /// Larger than the MTU towards the backend, outer headers included.
    TooBig = 23, "too_big";
    /// Another live connection would have the same replies, and no other client port was free.
    ReplyKeyInUse = 24, "reply_key_in_use";
    /// The flow table refused an entry, or the kernel refused to change the size of the frame.
    NoRoom = 25, "no_room";
    /// The slot, or the backend that it names, is not in the maps (yet).
    NoBackend = 26, "no_backend";
    /// The client is outside the Service's `loadBalancerSourceRanges`, or asks for a ClusterIP from
    /// outside the cluster.
    SourceRefused = 27, "source_refused";
    /// No Service has this port of the Service's address. The client is refused by ICMP, a socket
    /// by ECONNREFUSED.
    UnknownPort = 28, "unknown_port";
    /// No port of this node was free for another connection to the backend.
    SnatPorts = 29, "snat_ports";
    /// An ICMP error that quotes a packet of a Service, but of no known connection.
    IcmpUnknown = 30, "icmp_unknown";
    /// No Service of this address has this protocol. The client is refused by ICMP.
    UnknownProtocol = 31, "unknown_protocol";
    /// Encapsulated for a frontend by a pod or a process of this node instead of by Millrace.
    /// Dropped on its way out.
    ForgedTunnel = 32, "forged_tunnel";
    /// Came from the network for a Service's address, was served by nothing on this node, and would
    /// be routed back to the network in a loop. Dropped on its way out.
    Unserved = 37, "unserved";
    /// A socket that is bound to a loopback address asked for a NodePort there, and the backend has
    /// no address of this node. The call fails with EADDRNOTAVAIL.
    LoopbackSource = 44, "loopback_source";
    /// A question for the MAC address of a Service's address that this node announces, answered by the program.
    Announced = 48, "announced";
}

/// The count of numbers reserved for reasons: the stride of COUNTERS.
pub const REASONS: u32 = 64;
/// The number of entries in COUNTERS.
pub const COUNTER_ENTRIES: u32 = Program::ALL.len() as u32 * REASONS;
/// The numbers of the reasons that are drops. All others are not.
const DROPS: core::ops::Range<u8> = 16..48;

const _: () = assert!(Reason::LAST < REASONS, "a reason's number is beyond the stride of COUNTERS");

/// The program that counts. A packet that XDP passes untouched is counted by XDP and again by TC.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Program {
    /// `xdp_ingress`.
    XdpIngress = 0,
    /// `tc_ingress`.
    TcIngress = 1,
    /// `tc_egress`.
    TcEgress = 2,
    /// `cg_connect4`, which counts connections, also those of UDP sockets.
    CgConnect4 = 3,
    /// `cg_connect6`.
    CgConnect6 = 4,
    /// `cg_sendmsg4`, which counts datagrams of unconnected sockets.
    CgSendmsg4 = 5,
    /// `cg_sendmsg6`.
    CgSendmsg6 = 6,
    /// `tc_pod_in`.
    TcPodIn = 7,
    /// `tc_pod_out`.
    TcPodOut = 8,
}

impl Program {
    /// All programs, in the order of their numbers.
    pub const ALL: &[Self] = &[
        Self::XdpIngress,
        Self::TcIngress,
        Self::TcEgress,
        Self::CgConnect4,
        Self::CgConnect6,
        Self::CgSendmsg4,
        Self::CgSendmsg6,
        Self::TcPodIn,
        Self::TcPodOut,
    ];

    /// Returns the name of the program in the kernel.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XdpIngress => "xdp_ingress",
            Self::TcIngress => "tc_ingress",
            Self::TcEgress => "tc_egress",
            Self::CgConnect4 => "cg_connect4",
            Self::CgConnect6 => "cg_connect6",
            Self::CgSendmsg4 => "cg_sendmsg4",
            Self::CgSendmsg6 => "cg_sendmsg6",
            Self::TcPodIn => "tc_pod_in",
            Self::TcPodOut => "tc_pod_out",
        }
    }

    /// Returns whether this program is known to give a reason.
    ///
    /// The metrics show the counter of such a pair even while it is zero. They show the counter of
    /// any other pair once it is not zero. A pair that is left out by mistake is therefore late,
    /// not lost (decision 112).
    #[must_use]
    pub const fn can(self, reason: Reason) -> bool {
        match self {
            Self::XdpIngress => Self::can_at_uplink(reason) && !matches!(reason, Reason::Fragmented),
            Self::TcIngress => Self::can_at_uplink(reason) && !matches!(reason, Reason::HandedToTc),
            Self::TcPodIn => !matches!(
                reason,
                Reason::ServedLocal
                    | Reason::SentDsr
                    | Reason::ServedDsr
                    | Reason::SentOnward
                    | Reason::HandedToTc
                    | Reason::Connected
                    | Reason::NotPeer
                    | Reason::ForgedTunnel
                    | Reason::Unserved
                    | Reason::LoopbackSource
                    | Reason::Announced
            ),
            Self::TcEgress => Self::can_on_way_out(reason) || matches!(reason, Reason::Unserved),
            Self::TcPodOut => Self::can_on_way_out(reason),
            Self::CgConnect4 | Self::CgConnect6 | Self::CgSendmsg4 | Self::CgSendmsg6 => matches!(
                reason,
                Reason::NotOurs
                    | Reason::Connected
                    | Reason::NoEndpoint
                    | Reason::NoLocalEndpoint
                    | Reason::NoBackend
                    | Reason::UnknownPort
                    | Reason::LoopbackSource
            ),
        }
    }

    /// Reasons of packets that come in over an uplink: not those of pods, sockets and packets that
    /// leave.
    const fn can_at_uplink(reason: Reason) -> bool {
        !matches!(
            reason,
            Reason::ServedPod
                | Reason::Hairpin
                | Reason::Connected
                | Reason::ForgedTunnel
                | Reason::Unserved
                | Reason::LoopbackSource
        )
    }

    /// Reasons of packets that leave the node or go to a pod.
    const fn can_on_way_out(reason: Reason) -> bool {
        matches!(
            reason,
            Reason::NotOurs
                | Reason::Reply
                | Reason::IcmpError
                | Reason::FragmentHeld
                | Reason::FragmentUnknown
                | Reason::NoRoom
                | Reason::ForgedTunnel
        )
    }

    /// Returns the index into COUNTERS of this program's counter for `reason`.
    #[inline(always)]
    #[must_use]
    pub const fn counter(self, reason: Reason) -> u32 {
        self as u32 * REASONS + reason as u32
    }
}

impl Reason {
    /// Returns whether the packet was dropped.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        let number = self as u8;
        DROPS.start <= number && number < DROPS.end
    }
}

impl TryFrom<u32> for Reason {
    type Error = u32;

    fn try_from(number: u32) -> Result<Self, u32> {
        Self::ALL.iter().copied().find(|reason| *reason as u32 == number).ok_or(number)
    }
}

shared! {
    /// Value of COUNTERS (by program and reason) and SERVICE_STATS (by service id), one for each
    /// CPU.
    pub struct Counter {
        /// Packets.
        pub packets: u64,
        /// Bytes of the frames as they came in, link-layer header included. XDP counts only the
        /// first buffer of a multi-buffer frame.
        pub bytes: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_number_of_its_own_below_the_size_of_the_map() {
        for window in Reason::ALL.windows(2) {
            assert!((window[0] as u8) < window[1] as u8);
        }
        assert!(Reason::ALL.iter().all(|reason| u32::from(*reason as u8) < REASONS));
        assert_eq!(Reason::try_from(Reason::NotPeer as u32), Ok(Reason::NotPeer));
        assert_eq!(Reason::try_from(REASONS), Err(REASONS));
    }

    #[test]
    fn a_meaning_is_the_documentation_of_its_variant_on_one_line() {
        assert_eq!(Reason::Reply.meaning(), "A reply, translated back to the frontend's address.");
        for reason in Reason::ALL {
            let meaning = reason.meaning();
            assert!(meaning.ends_with('.') && !meaning.contains(['\n', '|']), "{reason:?}: {meaning}");
        }
    }

    #[test]
    fn every_reason_is_given_by_some_program() {
        for reason in Reason::ALL {
            assert!(Program::ALL.iter().any(|program| program.can(*reason)), "{reason:?}");
        }
        assert!(Program::TcEgress.can(Reason::ForgedTunnel) && Program::TcEgress.can(Reason::Unserved));
        assert!(!Program::XdpIngress.can(Reason::LoopbackSource));
        assert!(Program::XdpIngress.can(Reason::Announced) && !Program::TcPodIn.can(Reason::Announced));
        assert!(!Reason::Announced.is_drop());
    }
}
