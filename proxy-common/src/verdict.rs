//! What the programs decide, and the counters that say how often.

use crate::layout::shared;

/// Declares the counted reasons: one place for the number, the name people see, and what it means.
macro_rules! reasons {
    ($($(#[$meta:meta])* $variant:ident = $number:literal, $name:literal;)+) => {
        /// Why a packet ended as it did.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$meta])* $variant = $number,)+ }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];
            /// The number of the last one: they stand in order.
            const LAST: u32 = match Self::ALL.last() { Some(last) => *last as u32, None => 0 };

            /// The name in tables, JSON and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

reasons! {
    /// Not a frontend of ours, not a reply of ours: to the stack, untouched.
    NotOurs = 0, "not_ours";
    /// Translated to a backend on this node and passed up.
    ServedLocal = 1, "served_local";
    /// Encapsulated and sent to the backend's node (Direct Server Return).
    SentDsr = 2, "sent_dsr";
    /// Decapsulated and translated to a backend on this node.
    ServedDsr = 3, "served_dsr";
    /// A reply whose source was restored to the frontend.
    Reply = 4, "reply";
    /// Sent once more, flagged, to the slot's other owner (second chance).
    SentOnward = 5, "sent_onward";
    /// Given unchanged to the TC program: no resolved way, no XDP on the device, or metadata refused.
    HandedToTc = 6, "handed_to_tc";
    /// Translated to a backend on another node and sent there from an address of this node (SNAT).
    SentSnat = 7, "sent_snat";
    /// An echo request to a service's address, answered.
    Echo = 8, "echo";
    /// The reply of a backend on another node, translated back and sent to the client.
    ReplySnat = 9, "reply_snat";
    /// An ICMP error about a connection of ours, translated for whoever has it, or sent on to the backend's node.
    IcmpError = 10, "icmp_error";
    /// A pod's own packet, translated to a backend on whatever node and passed up.
    ServedPod = 11, "served_pod";
    /// A pod's own packet to a service whose backend it is itself, translated and given back to it.
    Hairpin = 12, "hairpin";
    /// A fragment for an address of a service, or of this node, that came before the first one of its packet, held until that comes;
    /// then it is received, and counted, once more. What is for this node goes up as well: it may be no service's.
    FragmentHeld = 13, "fragment_held";
    /// A connection, or a datagram of a socket that is not connected, that a socket hook turned to a backend.
    Connected = 14, "connected";
    /// Cut in two, of which the first fits where it has to go; both come in again and are counted then.
    Fragmented = 15, "fragmented";
    /// Dropped: the service has no usable endpoint at all.
    NoEndpoint = 16, "no_endpoint";
    /// Dropped: traffic policy Local, and all endpoints are on other nodes.
    NoLocalEndpoint = 17, "no_local_endpoint";
    /// Dropped: encapsulated for a frontend of ours, but the sender is no node of the cluster.
    NotPeer = 18, "not_peer";
    /// Dropped: decapsulated, but neither flow, hint nor second chance names a backend on this node.
    NoBackendHere = 19, "no_backend_here";
    /// Dropped: a fragment for a service's address, of a packet of which no first one says for which port, and that can't be held.
    FragmentUnknown = 20, "fragment_unknown";
    /// Dropped: no route or neighbour towards the backend's node.
    NoWay = 21, "no_way";
    /// Dropped: hop limit used up.
    HopLimit = 22, "hop_limit";
    /// Dropped: larger than the way's MTU once encapsulated.
    TooBig = 23, "too_big";
    /// Dropped: the reply's key is in use by another live flow, and no other slot was free.
    ReplyKeyInUse = 24, "reply_key_in_use";
    /// Dropped: a map refused the flow entry, or the kernel the change of the frame's size.
    NoRoom = 25, "no_room";
    /// Dropped: the slot or the backend it names is not (yet) there.
    NoBackend = 26, "no_backend";
    /// Dropped: the client is outside the Service's `loadBalancerSourceRanges`, or asks for a cluster IP from outside the cluster.
    SourceRefused = 27, "source_refused";
    /// Dropped, and refused by ICMP: nobody serves this port of a service's address.
    UnknownPort = 28, "unknown_port";
    /// Dropped: no port of this node was free for another connection to the backend, in as many tries as there are.
    SnatPorts = 29, "snat_ports";
    /// Dropped: an ICMP error that quotes a packet of a service, but no connection that is known here.
    IcmpUnknown = 30, "icmp_unknown";
    /// Dropped, and refused by ICMP: no service has this protocol.
    UnknownProtocol = 31, "unknown_protocol";
    /// Dropped on its way out: encapsulated for a frontend of ours, but by a pod or a process of this node, not by our programs.
    ForgedTunnel = 32, "forged_tunnel";
    /// Dropped on its way out: it came in from the network for a service's address, nobody here serves it, and the network would send
    /// it back here for ever.
    Unserved = 37, "unserved";
    /// Refused: a socket that is bound to a loopback address asks for a NodePort there, and the backend has no address of this node.
    LoopbackSource = 44, "loopback_source";
}

/// Numbers reserved for reasons: the stride of COUNTERS.
pub const REASONS: u32 = 64;
/// Number of entries in COUNTERS.
pub const COUNTER_ENTRIES: u32 = Program::ALL.len() as u32 * REASONS;
/// The numbers of the reasons that are drops; those below and above are not.
const DROPS: core::ops::Range<u8> = 16..48;

const _: () = assert!(Reason::LAST < REASONS, "a reason's number is beyond the stride of COUNTERS");

/// The program that counted. A packet that XDP passes up untouched is counted by XDP and again by TC.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Program {
    /// `xdp_ingress`.
    XdpIngress = 0,
    /// `tc_ingress`.
    TcIngress = 1,
    /// `tc_egress`.
    TcEgress = 2,
    /// `cg_connect4`; what it counts are connections, that of a UDP socket included.
    CgConnect4 = 3,
    /// `cg_connect6`.
    CgConnect6 = 4,
    /// `cg_sendmsg4`; what it counts are datagrams of sockets that are not connected.
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

    /// The name the program has in the kernel.
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

    /// Whether this program is known to give a reason. Metrics show a counter of such a pair while it is zero, too, and one
    /// of another pair only when it is not: a pair that is left out by mistake is late, not lost.
    #[must_use]
    pub const fn can(self, reason: Reason) -> bool {
        match self {
            Self::XdpIngress => Self::can_at_uplink(reason) && !matches!(reason, Reason::Fragmented),
            Self::TcIngress => Self::can_at_uplink(reason) && !matches!(reason, Reason::HandedToTc),
            Self::TcPodIn => !matches!(
                reason,
                Reason::ServedLocal
                    | Reason::ServedDsr
                    | Reason::SentOnward
                    | Reason::HandedToTc
                    | Reason::Connected
                    | Reason::NotPeer
            ),
            Self::TcEgress | Self::TcPodOut => matches!(
                reason,
                Reason::NotOurs
                    | Reason::Reply
                    | Reason::IcmpError
                    | Reason::FragmentHeld
                    | Reason::FragmentUnknown
                    | Reason::NoRoom
            ),
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

    /// What is a pod's or a socket's alone does not come in over an uplink.
    const fn can_at_uplink(reason: Reason) -> bool {
        !matches!(reason, Reason::ServedPod | Reason::Hairpin | Reason::Connected)
    }

    /// The index into COUNTERS of what this program counts for `reason`.
    #[inline(always)]
    #[must_use]
    pub const fn counter(self, reason: Reason) -> u32 {
        self as u32 * REASONS + reason as u32
    }
}

impl Reason {
    /// Whether the packet was dropped.
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
    /// Value of COUNTERS (by program and reason) and SERVICE_STATS (by service id), one for each CPU.
    pub struct Counter {
        /// Packets.
        pub packets: u64,
        /// Bytes of the frames, link-layer header included, as they came in; XDP counts a multi-buffer frame's first
        /// buffer only.
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
}
