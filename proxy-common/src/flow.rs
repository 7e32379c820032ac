//! FLOWS4/6 and FLOWS_NEW4/6: the flow entries, which record the decision for each connection.
//!
//! A connection has two entries, one for each direction, in the same table. A program finds an
//! entry by the tuple that the packet carries when the program meets it. FLOWS_NEW holds
//! unconfirmed connections, so a SYN flood evicts only those. FLOWS holds a connection once the
//! client's packets have confirmed it (decision 128).

use crate::Address;
use crate::hash::flow_hash;
use crate::layout::shared;
pub use crate::tuple::FlowKey;

/// State of [`Flow`]: the program saw only the client's SYN.
pub const FLOW_SYN: u8 = 1;
/// State of [`Flow`]: the client has answered, and data may flow.
pub const FLOW_ESTABLISHED: u8 = 2;
/// State of [`Flow`]: both sides have sent a FIN, or one a RST. On a director with DSR, the
/// client's FIN is enough. A later packet renews the entry's time.
pub const FLOW_CLOSING: u8 = 3;
/// State of [`Flow`]: a flow of datagrams, not TCP.
pub const FLOW_DATAGRAM: u8 = 4;

/// Flag of [`Flow`]: write `source` and `source_port` into the packet.
pub const FLOW_REWRITE_SOURCE: u8 = 1 << 0;
/// Flag of [`Flow`]: write `destination` and `destination_port` into the packet.
pub const FLOW_REWRITE_DESTINATION: u8 = 1 << 1;
/// Flag of [`Flow`]: the entry belongs to the reply direction.
pub const FLOW_REPLY: u8 = 1 << 2;
/// Flag of [`Flow`]: the backend is on another node, and the packet travels there encapsulated.
pub const FLOW_ENCAPSULATE: u8 = 1 << 3;
/// Flag of [`Flow`]: the client has sent its FIN.
pub const FLOW_FIN_CLIENT: u8 = 1 << 4;
/// Flag of [`Flow`]: the backend has sent its FIN. A director with DSR does not see that. There the
/// flag means that the client's last packet was a RST.
pub const FLOW_FIN_BACKEND: u8 = 1 << 5;
/// Flag of [`Flow`]: the packets came in encapsulated (DSR). This node is the backend's, not the
/// director.
pub const FLOW_DECAPSULATED: u8 = 1 << 6;
/// Flag of [`Flow`]: the packets came in with an outer IPv6 header, which is 20 bytes larger than
/// an IPv4 one.
pub const FLOW_OUTER_IPV6: u8 = 1 << 7;
/// Flag of a [`Flow`] with a fingerprint (SNAT): the backend has answered. Before that, the
/// connection's port may be taken from it (decision 56). Such an entry never came in encapsulated,
/// so it shares the bit with [`FLOW_DECAPSULATED`].
pub const FLOW_ANSWERED: u8 = FLOW_DECAPSULATED;

/// Seconds for which a SNAT port stays with a connection that has ended.
///
/// A Linux backend may be in TIME-WAIT as long. It then refuses half of the connections from the
/// same address and port.
pub const FLOW_TIME_WAIT: u32 = 60;

/// Seconds of silence after which a SNAT port is taken more readily: an unconfirmed connection then
/// counts as abandoned, and a RST as genuine (decision 127).
pub const FLOW_QUIET: u32 = 3;

/// Most seconds between two renewals of an entry. The renewal also makes the other direction's entry
/// again, if that was evicted: so long may a connection stand still then (decision 141).
pub const FLOW_RENEWAL: u32 = 8;

/// Seconds for which a director with DSR keeps a connection after the client's FIN.
///
/// The director sees neither the rest of the backend's data nor the end. 240 seconds are the
/// minimum of a NAT (RFC 5382, section 5; decision 77).
pub const FLOW_HALF_CLOSED: u32 = 240;

shared! {
    /// Value of FLOWS4/6. Only the programs write it, as a whole. The agent reads and deletes.
    pub struct Flow<A> {
        /// New source address with `FLOW_REWRITE_SOURCE`, else the packet's own.
        pub source: A,
        /// New destination address with `FLOW_REWRITE_DESTINATION`, else the packet's own.
        pub destination: A,
        /// New source port, network byte order.
        pub source_port: u16,
        /// New destination port, network byte order.
        pub destination_port: u16,
        /// [`BackendRef`](crate::selection::BackendRef) of the backend that serves the connection.
        pub backend: u32,
        /// Service id of the list that the backend was chosen from.
        pub service: u32,
        /// Monotonic second (CLOCK_MONOTONIC_COARSE / 1e9) of a packet. The last one may be later by
        /// [`Limits::renewal`].
        pub last_seen: u32,
        /// `FLOW_SYN`, `FLOW_ESTABLISHED`, `FLOW_CLOSING` or `FLOW_DATAGRAM`.
        pub state: u8,
        /// `FLOW_*` bits.
        pub flags: u8,
        /// [`fingerprint`] of the entry's key for SNAT, else 0. All other entries hold their
        /// client's address (decisions 12 and 54).
        pub check: u16,
    }
}

/// Returns 16 bits of the key's hash, never zero. They tell an entry of another key if the entry
/// does not hold its client.
#[inline(always)]
pub fn fingerprint<A: Address>(key: &FlowKey<A>) -> u16 {
    (flow_hash(key) >> 16) as u16 | 1
}

impl<A: Address> Flow<A> {
    /// Returns whether the entry is that of a client's packets with this key.
    ///
    /// The map may give a value to another key while a program reads it: an LRU map reuses nodes at
    /// once, and an update of an existing key frees one. Every entry therefore holds its client, or
    /// a fingerprint, which shows another connection's entry.
    #[inline(always)]
    #[must_use]
    pub fn is_clients(&self, key: &FlowKey<A>) -> bool {
        if self.check != 0 {
            return self.flags & FLOW_REPLY == 0 && self.check == fingerprint(key);
        }
        let same_port = self.source_port == key.source_port || self.flags & FLOW_REWRITE_SOURCE != 0;
        self.flags & FLOW_REPLY == 0 && self.source == key.source && same_port
    }
    /// Returns whether the entry is that of replies with this key, which go to the client.
    ///
    /// As in [`is_clients`](Self::is_clients), it shows another connection's entry.
    #[inline(always)]
    #[must_use]
    pub fn is_reply(&self, key: &FlowKey<A>) -> bool {
        if self.check != 0 {
            return self.flags & FLOW_REPLY != 0 && self.check == fingerprint(key);
        }
        let same_port =
            self.destination_port == key.destination_port || self.flags & FLOW_REWRITE_DESTINATION != 0;
        self.flags & FLOW_REPLY != 0 && self.destination == key.destination && same_port
    }
    /// Returns whether the entry is that of the other direction of this key.
    #[inline(always)]
    #[must_use]
    pub fn is_twin_of(&self, key: &FlowKey<A>) -> bool {
        self.source == key.destination
            && self.source_port == key.destination_port
            && self.destination == key.source
            && self.destination_port == key.source_port
    }
    /// Turns the client's entry into the reply's, or the reverse: `twin` takes the place of `key`.
    #[inline(always)]
    pub fn reverse(&mut self, key: &FlowKey<A>, twin: &FlowKey<A>) {
        const REWRITES: u8 = FLOW_REWRITE_SOURCE | FLOW_REWRITE_DESTINATION;
        self.source = key.destination;
        self.source_port = key.destination_port;
        self.destination = key.source;
        self.destination_port = key.source_port;
        self.flags = (self.flags ^ FLOW_REPLY) & !REWRITES | swap_rewrites(self.flags);
        if self.check != 0 {
            self.check = fingerprint(twin);
        }
    }
}

/// Swaps the rewrite flags: the source of one direction is the destination of the other.
#[inline(always)]
const fn swap_rewrites(flags: u8) -> u8 {
    (flags & FLOW_REWRITE_SOURCE) << 1 | (flags & FLOW_REWRITE_DESTINATION) >> 1
}

impl<A: Copy> Flow<A> {
    /// Returns whether the client's address is translated (SNAT).
    #[inline(always)]
    #[must_use]
    pub const fn is_translated(&self) -> bool {
        self.check != 0
    }
    /// Returns the entry's place in a table of [`Limits`].
    #[must_use]
    pub const fn limits_index(&self) -> usize {
        limits_index(self.state, self.flags, self.is_translated() as usize)
    }
    /// Returns whether the entry has expired at `now` (monotonic seconds). It then counts as none.
    #[inline(always)]
    #[must_use]
    pub fn has_expired(&self, timeouts: &Timeouts, now: u32) -> bool {
        silence(self.last_seen, now) > timeouts.limits(self.limits_index()).expiry
    }
    /// Returns the key of the entry for the other direction: the translated tuple, reversed.
    ///
    /// The key is built field by field: the BPF stack has no room for the translated tuple in
    /// between.
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

/// Returns the place of an entry in a table of [`Limits`]. `translated` is 1 for SNAT, else 0.
///
/// It is computed without a branch, behind which the verifier would walk everything again.
#[inline(always)]
#[must_use]
pub const fn limits_index(state: u8, flags: u8, translated: usize) -> usize {
    (state & 7) as usize | (flags as usize >> 3 & 7) << 3 | translated << 6
}

/// Returns the seconds between `last_seen` and `now`.
///
/// The clock of another CPU may be a tick ahead, so a `last_seen` in the future is not old.
#[inline(always)]
#[must_use]
pub const fn silence(last_seen: u32, now: u32) -> u32 {
    now.saturating_sub(last_seen)
}

const fn no_less_than(least: u32, seconds: u32) -> u32 {
    if seconds < least { least } else { seconds }
}

const fn no_more_than(most: u32, seconds: u32) -> u32 {
    if seconds > most { most } else { seconds }
}

/// Number of entries in a table of [`Limits`].
pub const LIMITS_ENTRIES: usize = 128;
/// Number of `u32` words in a table of [`Limits`]: `expiry`, then `renewal`, by
/// [`Flow::limits_index`].
pub const LIMITS_WORDS: usize = LIMITS_ENTRIES * 2;

/// The seconds of silence that matter to an entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The entry has expired if the silence is longer.
    pub expiry: u32,
    /// A packet writes its time into the entry if the silence is longer.
    pub renewal: u32,
}

/// The time-outs of flow entries: seconds without a packet after which an entry of each state has
/// expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Seconds for [`FLOW_SYN`].
    pub syn: u32,
    /// Seconds for [`FLOW_ESTABLISHED`].
    pub established: u32,
    /// Seconds for [`FLOW_CLOSING`].
    pub closing: u32,
    /// Seconds for [`FLOW_DATAGRAM`].
    pub datagram: u32,
}

impl Timeouts {
    /// The time-outs without settings.
    pub const DEFAULT: Self = Self { syn: 60, established: 8000, closing: 10, datagram: 60 };
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Timeouts {
    /// Returns the seconds of one state. An unknown state has 0 and expires at once.
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
    /// Returns the limits of the entries with an [index](Flow::limits_index).
    ///
    /// A packet renews an entry only after a part of the time-out: the write costs a cache line of
    /// each direction. The expiry is later by this part, so no entry expires early (decision 141).
    /// Entries of SNAT are renewed each second: their silence decides who lends a port, and the renewal
    /// finds out that another connection has theirs.
    #[must_use]
    pub const fn limits(&self, index: usize) -> Limits {
        const ENCAPSULATE: u8 = FLOW_ENCAPSULATE >> 3;
        const FIN_CLIENT: u8 = FLOW_FIN_CLIENT >> 3;
        let (state, is_translated) = ((index & 7) as u8, index >> 6 & 1 != 0);
        let flags = (index >> 3 & 7) as u8;
        let timeout = if state != FLOW_CLOSING {
            self.of(state)
        } else if is_translated {
            no_less_than(FLOW_TIME_WAIT, self.closing)
        } else if flags == ENCAPSULATE | FIN_CLIENT {
            let established = self.established;
            let half_closed = if established < FLOW_HALF_CLOSED { established } else { FLOW_HALF_CLOSED };
            no_less_than(half_closed, self.closing)
        } else {
            self.closing
        };
        let renewal = match state {
            _ if is_translated => 0,
            FLOW_ESTABLISHED => no_more_than(FLOW_RENEWAL, timeout / 64),
            FLOW_DATAGRAM => no_more_than(FLOW_RENEWAL, timeout / 16),
            _ => 0,
        };
        Limits { expiry: timeout.saturating_add(renewal), renewal }
    }
    /// Returns the limits of all entries, for the programs.
    #[must_use]
    pub const fn table(&self) -> [u32; LIMITS_WORDS] {
        let (mut table, mut index) = ([0; LIMITS_WORDS], 0);
        let mut rest = table.as_mut_slice();
        while let [expiry, renewal, others @ ..] = rest {
            let limits = self.limits(index);
            (*expiry, *renewal) = (limits.expiry, limits.renewal);
            (rest, index) = (others, index + 1);
        }
        table
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
        let expires = |state, last_seen, now| {
            Flow::<Addr4> { last_seen, state, ..Flow::default() }.has_expired(&timeouts, now)
        };
        assert!(!expires(FLOW_ESTABLISHED, 100, 8100 + 8) && expires(FLOW_ESTABLISHED, 100, 8101 + 8));
        assert!(!expires(FLOW_DATAGRAM, 100, 160 + 3) && expires(FLOW_DATAGRAM, 100, 161 + 3));
        assert!(!expires(FLOW_CLOSING, 100, 110) && expires(FLOW_CLOSING, 100, 111));
        assert!(!expires(FLOW_SYN, 101, 100));
        assert!(expires(0, 99, 100));
    }

    #[test]
    fn no_entry_expires_earlier_than_its_time_out_after_the_last_packet() {
        for established in [1, 63, 64, 8000, u32::MAX] {
            let timeouts = Timeouts { established, datagram: established, ..Timeouts::default() };
            for index in 0..LIMITS_ENTRIES {
                let Limits { expiry, renewal } = timeouts.limits(index);
                let state = (index & 7) as u8;
                assert!(expiry >= timeouts.of(state).saturating_add(renewal), "{index}");
            }
        }
    }

    #[test]
    fn the_table_has_the_limits_of_each_entry() {
        let (timeouts, table) = (Timeouts::default(), Timeouts::DEFAULT.table());
        let states = [0, FLOW_SYN, FLOW_ESTABLISHED, FLOW_CLOSING, FLOW_DATAGRAM];
        for (state, flags, check) in states
            .into_iter()
            .flat_map(|state| (0..=u8::MAX).flat_map(move |flags| [(state, flags, 0), (state, flags, 7)]))
        {
            let index = Flow::<Addr4> { state, flags, check, ..Flow::default() }.limits_index();
            let limits = timeouts.limits(index);
            assert_eq!(table[index * 2..][..2], [limits.expiry, limits.renewal]);
        }
    }

    #[test]
    fn translated_entries_are_renewed_each_second_because_their_silence_lends_ports() {
        for (state, expiry) in [(FLOW_DATAGRAM, 60), (FLOW_ESTABLISHED, 8000)] {
            let flow = Flow::<Addr4> { state, check: 1, ..Flow::default() };
            assert_eq!(Timeouts::default().limits(flow.limits_index()), Limits { expiry, renewal: 0 });
        }
    }

    #[test]
    fn a_half_closed_connection_of_a_director_outlives_one_that_both_sides_closed() {
        let timeouts = Timeouts::default();
        let lives = |flags: u8, timeouts: &Timeouts, seconds: u32| {
            let flow = Flow::<Addr4> { state: FLOW_CLOSING, flags, last_seen: 100, ..Flow::default() };
            !flow.has_expired(timeouts, 100 + seconds)
        };
        let half_closed = FLOW_ENCAPSULATE | FLOW_FIN_CLIENT;
        assert!(lives(half_closed, &timeouts, FLOW_HALF_CLOSED));
        assert!(!lives(half_closed, &timeouts, FLOW_HALF_CLOSED + 1));
        // A RST on a director, also after a FIN. Both FINs on a backend's node.
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
