//! FLOWS4/6 and FLOWS_NEW4/6: what was decided for a connection.
//!
//! A connection has two entries, one for each direction, in the same table; each is found by the tuple a
//! packet of its direction carries when it meets our program. FLOWS_NEW holds both until the client's first
//! packet after its SYN (after its first datagram), so that a SYN flood evicts only embryos.

use crate::Address;
use crate::hash::flow_hash;
use crate::layout::shared;

/// State of [`Flow`]: only the client's SYN was seen.
pub const FLOW_SYN: u8 = 1;
/// State of [`Flow`]: the client answered; data may flow.
pub const FLOW_ESTABLISHED: u8 = 2;
/// State of [`Flow`]: both sides sent a FIN, or one a RST; or, of what is encapsulated, the client a FIN. A later packet renews
/// the entry's time.
pub const FLOW_CLOSING: u8 = 3;
/// State of [`Flow`]: not TCP.
pub const FLOW_DATAGRAM: u8 = 4;

/// Flag of [`Flow`]: write `source` and `source_port` into the packet.
pub const FLOW_REWRITE_SOURCE: u8 = 1 << 0;
/// Flag of [`Flow`]: write `destination` and `destination_port` into the packet.
pub const FLOW_REWRITE_DESTINATION: u8 = 1 << 1;
/// Flag of [`Flow`]: this is the entry of the reply direction.
pub const FLOW_REPLY: u8 = 1 << 2;
/// Flag of [`Flow`]: the backend is on another node and the packet travels there encapsulated.
pub const FLOW_ENCAPSULATE: u8 = 1 << 3;
/// Flag of [`Flow`]: the client has sent its FIN.
pub const FLOW_FIN_CLIENT: u8 = 1 << 4;
/// Flag of [`Flow`]: the backend has sent its FIN. On a director, which does not see that: the client's last packet was a RST.
pub const FLOW_FIN_BACKEND: u8 = 1 << 5;
/// Flag of [`Flow`]: came in encapsulated (DSR): this node is the backend's, not the director.
pub const FLOW_DECAPSULATED: u8 = 1 << 6;
/// Flag of [`Flow`]: it came in with an outer IPv6 header, which is 20 bytes larger than an IPv4 one.
pub const FLOW_OUTER_IPV6: u8 = 1 << 7;
/// Flag of a [`Flow`] with a fingerprint (SNAT), which never comes in encapsulated: the backend has answered. Before, a port is
/// only lent.
pub const FLOW_ANSWERED: u8 = FLOW_DECAPSULATED;

/// Seconds for which a port of this node stays with a connection that has ended (SNAT): as long as a Linux backend may be in
/// TIME-WAIT, where it refuses half of the connections that come from the same address and port.
pub const FLOW_TIME_WAIT: u32 = 60;

/// Seconds of silence after which a connection counts as quiet (SNAT): what was begun is abandoned then, and a RST was believed.
pub const FLOW_QUIET: u32 = 3;

/// Seconds for which a director keeps a connection whose client has sent its FIN, and which it encapsulates: it does not see what
/// the backend still sends, nor that this ends. As long as a NAT has to (RFC 5382, section 5).
pub const FLOW_HALF_CLOSED: u32 = 240;

shared! {
    /// Key of FLOWS4/6: the tuple as it stands in the packet when our program meets it.
    pub struct FlowKey<A> {
        /// Source address of the packet.
        pub source: A,
        /// Destination address of the packet.
        pub destination: A,
        /// Source port, network byte order.
        pub source_port: u16,
        /// Destination port, network byte order.
        pub destination_port: u16,
        /// IP protocol number.
        pub protocol: u8,
        /// Zero.
        pub reserved: u8,
        /// Zero.
        pub unused: u16,
    }
}

shared! {
    /// Value of FLOWS4/6. Written whole by the programs and by nobody else; the agent only reads and deletes.
    pub struct Flow<A> {
        /// New source address, where `FLOW_REWRITE_SOURCE`; else the packet's own.
        pub source: A,
        /// New destination address, where `FLOW_REWRITE_DESTINATION`; else the packet's own.
        pub destination: A,
        /// New source port, network byte order.
        pub source_port: u16,
        /// New destination port, network byte order.
        pub destination_port: u16,
        /// [`BackendRef`](crate::selection::BackendRef) of the backend that serves the connection.
        pub backend: u32,
        /// Service id the backend was chosen for.
        pub service: u32,
        /// Monotonic seconds (CLOCK_MONOTONIC_COARSE / 1e9) of the last packet, written at most once a second.
        pub last_seen: u32,
        /// `FLOW_SYN`, `FLOW_ESTABLISHED`, `FLOW_CLOSING` or `FLOW_DATAGRAM`.
        pub state: u8,
        /// `FLOW_*` bits.
        pub flags: u8,
        /// [`fingerprint`] of the entry's key where the client's address is translated (SNAT), else 0: every other entry
        /// holds its client.
        pub check: u16,
    }
}

/// What tells an entry of another key, where the entry does not hold its client: 16 bits of the key's hash, never zero.
#[inline(always)]
pub fn fingerprint<A: Address>(key: &FlowKey<A>) -> u16 {
    (flow_hash(key) >> 16) as u16 | 1
}

impl<A: Copy> FlowKey<A> {
    /// The same connection seen from the other side.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
            reserved: 0,
            unused: 0,
        }
    }
}

impl<A: Copy> Flow<A> {
    /// Whether the client's address is translated (SNAT).
    #[inline(always)]
    #[must_use]
    pub const fn is_translated(&self) -> bool {
        self.check != 0
    }
    /// Whether it counts as none at `now`, in monotonic seconds.
    #[inline(always)]
    #[must_use]
    pub const fn has_expired(&self, timeouts: &Timeouts, now: u32) -> bool {
        const HALF_CLOSED: u8 = FLOW_ENCAPSULATE | FLOW_FIN_CLIENT;
        let closing = if self.is_translated() {
            at_least(FLOW_TIME_WAIT, timeouts.closing)
        } else if self.flags & (HALF_CLOSED | FLOW_FIN_BACKEND) == HALF_CLOSED {
            let established = timeouts.established;
            let half_closed = if established < FLOW_HALF_CLOSED { established } else { FLOW_HALF_CLOSED };
            at_least(half_closed, timeouts.closing)
        } else {
            timeouts.closing
        };
        Timeouts { closing, ..*timeouts }.expired(self.state, self.last_seen, now)
    }
    /// The key of the entry for the other direction: the translated tuple, reversed.
    ///
    /// Built field by field, because BPF's stack has no room for the tuple in between.
    #[inline(always)]
    pub const fn twin(&self, key: &FlowKey<A>) -> FlowKey<A> {
        let (source, source_port) = if self.flags & FLOW_REWRITE_DESTINATION != 0 {
            (self.destination, self.destination_port)
        } else {
            (key.destination, key.destination_port)
        };
        let (destination, destination_port) = if self.flags & FLOW_REWRITE_SOURCE != 0 {
            (self.source, self.source_port)
        } else {
            (key.source, key.source_port)
        };
        FlowKey {
            source,
            destination,
            source_port,
            destination_port,
            protocol: key.protocol,
            reserved: 0,
            unused: 0,
        }
    }
}

#[inline(always)]
const fn at_least(least: u32, seconds: u32) -> u32 {
    if seconds < least { least } else { seconds }
}

/// Seconds without a packet after which an entry of `state` counts as none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// `FLOW_SYN`.
    pub syn: u32,
    /// `FLOW_ESTABLISHED`.
    pub established: u32,
    /// `FLOW_CLOSING`.
    pub closing: u32,
    /// `FLOW_DATAGRAM`.
    pub datagram: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { syn: 60, established: 8000, closing: 10, datagram: 60 }
    }
}

impl Timeouts {
    /// Seconds for one state; an unknown state has none and is expired at once.
    #[inline(always)]
    #[must_use]
    pub const fn of(&self, state: u8) -> u32 {
        match state {
            FLOW_SYN => self.syn,
            FLOW_ESTABLISHED => self.established,
            FLOW_CLOSING => self.closing,
            FLOW_DATAGRAM => self.datagram,
            _ => 0,
        }
    }
    /// Whether an entry is too old at `now` (both in monotonic seconds). A `last_seen` in the future, by
    /// another CPU that is a tick ahead, is not old.
    #[inline(always)]
    #[must_use]
    pub const fn expired(&self, state: u8, last_seen: u32, now: u32) -> bool {
        now.saturating_sub(last_seen) > self.of(state)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::Addr4;

    fn key() -> impl Strategy<Value = FlowKey<Addr4>> {
        (any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>(), any::<u8>()).prop_map(
            |(s, d, sp, dp, protocol)| FlowKey {
                source: Addr4::from(Ipv4Addr::from(s)),
                destination: Addr4::from(Ipv4Addr::from(d)),
                source_port: sp,
                destination_port: dp,
                protocol,
                reserved: 0,
                unused: 0,
            },
        )
    }

    proptest! {
        #[test]
        fn reversing_twice_changes_nothing(key in key()) {
            prop_assert_eq!(key.reversed().reversed(), key);
        }

        #[test]
        fn the_twin_of_the_twin_is_the_entry_itself(
            key in key(), new in key(), rewrite_source in any::<bool>(), rewrite_destination in any::<bool>(),
        ) {
            let flags = if rewrite_source { FLOW_REWRITE_SOURCE } else { 0 }
                | if rewrite_destination { FLOW_REWRITE_DESTINATION } else { 0 };
            let forward = Flow {
                source: new.source, destination: new.destination, source_port: new.source_port,
                destination_port: new.destination_port, flags, ..Flow::default()
            };
            let reply_key = forward.twin(&key);
            let reply = Flow {
                source: key.destination, destination: key.source,
                source_port: key.destination_port, destination_port: key.source_port,
                flags: if rewrite_source { FLOW_REWRITE_DESTINATION } else { 0 }
                    | if rewrite_destination { FLOW_REWRITE_SOURCE } else { 0 },
                ..Flow::default()
            };
            prop_assert_eq!(reply.twin(&reply_key), key);
        }
    }

    #[test]
    fn entries_expire_by_state_and_never_by_a_clock_that_is_behind() {
        let timeouts = Timeouts::default();
        assert!(!timeouts.expired(FLOW_ESTABLISHED, 100, 8100));
        assert!(timeouts.expired(FLOW_ESTABLISHED, 100, 8101));
        assert!(timeouts.expired(FLOW_CLOSING, 100, 111));
        assert!(!timeouts.expired(FLOW_SYN, 101, 100));
        assert!(timeouts.expired(0, 99, 100));
    }

    #[test]
    fn what_is_half_closed_on_a_director_outlives_what_both_sides_have_closed() {
        let timeouts = Timeouts::default();
        let lives = |flags: u8, timeouts: &Timeouts, seconds: u32| {
            let flow = Flow::<Addr4> { state: FLOW_CLOSING, flags, last_seen: 100, ..Flow::default() };
            !flow.has_expired(timeouts, 100 + seconds)
        };
        let half_closed = FLOW_ENCAPSULATE | FLOW_FIN_CLIENT;
        assert!(lives(half_closed, &timeouts, FLOW_HALF_CLOSED));
        assert!(!lives(half_closed, &timeouts, FLOW_HALF_CLOSED + 1));
        // A RST on a director, after a FIN too; both FINs on a backend's node.
        let reset = half_closed | FLOW_FIN_BACKEND;
        for flags in [FLOW_ENCAPSULATE, reset, FLOW_FIN_CLIENT | FLOW_FIN_BACKEND] {
            assert!(
                lives(flags, &timeouts, timeouts.closing) && !lives(flags, &timeouts, timeouts.closing + 1)
            );
        }
        let short = Timeouts { established: 100, ..timeouts };
        assert!(lives(half_closed, &short, 100) && !lives(half_closed, &short, 101));
        for established in [100, timeouts.established] {
            let long = Timeouts { closing: 1000, established, ..timeouts };
            assert!(lives(half_closed, &long, 1000) && !lives(half_closed, &long, 1001));
        }
    }
}
