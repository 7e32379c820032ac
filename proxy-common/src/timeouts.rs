//! How long a flow entry lives without a packet, and when a packet renews it.

use crate::flow::{
    FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ENCAPSULATE, FLOW_ESTABLISHED, FLOW_FIN_CLIENT, FLOW_SYN, Flow,
};

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

impl<A: Copy> Flow<A> {
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
    use super::*;
    use crate::Addr4;
    use crate::flow::FLOW_FIN_BACKEND;

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
