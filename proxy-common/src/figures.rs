//! Figures of each Service and endpoint: SERVICE_DROPS, SERVICE_CONNECTIONS, SERVICE_HANDSHAKES,
//! BACKEND_CONNECTIONS4/6 and HANDSHAKES.
//!
//! The programs write them with events of connections, never with a packet of an established one. A
//! connection counts on the node that translates it: with DSR on its backend's node, else on the director.

use crate::layout::shared;
use crate::selection::BackendRef;

shared! {
    /// Key of SERVICE_DROPS. The value is a [`Counter`](crate::verdict::Counter) for each CPU.
    pub struct DropKey {
        /// Service id.
        pub service: u32,
        /// Number of the [`Reason`](crate::verdict::Reason).
        pub reason: u32,
    }

    /// Value of SERVICE_CONNECTIONS: connections, and exchanges of datagrams, by what became of them.
    pub struct Connections {
        /// Their first packet was seen.
        pub opened: u64,
        /// The client showed that it had seen an answer.
        pub established: u64,
        /// The backend answered the first packet with a RST.
        pub refused: u64,
        /// The backend ended them with a RST after they were established.
        pub reset: u64,
    }

    /// Value of BACKEND_CONNECTIONS4/6, as [`Connections`]. Counts wrap around.
    pub struct BackendConnections {
        /// [`BackendRef`] of the endpoint that the counts belong to. An event of another one, which has the id
        /// now, begins anew.
        pub reference: u32,
        /// As [`Connections::opened`].
        pub opened: u32,
        /// As [`Connections::established`].
        pub established: u32,
        /// As [`Connections::refused`].
        pub refused: u32,
        /// As [`Connections::reset`].
        pub reset: u32,
    }

    /// Value of SERVICE_HANDSHAKES: times from a client's SYN to its backend's answer, of one connection in
    /// [`HANDSHAKES_SAMPLED`].
    pub struct Handshakes {
        /// Counts by [`handshake_bucket`].
        pub counts: [u32; HANDSHAKE_BUCKETS],
    }
}

/// An event of a connection: an index of the counts in [`Connections`] and [`BackendConnections`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// See [`Connections::opened`].
    Opened = 0,
    /// See [`Connections::established`].
    Established = 1,
    /// See [`Connections::refused`].
    Refused = 2,
    /// See [`Connections::reset`].
    Reset = 3,
}

impl BackendConnections {
    /// Returns whether the counts are those of an endpoint.
    #[must_use]
    pub const fn is_of(&self, reference: BackendRef) -> bool {
        self.reference == reference.0
    }
}

/// Entries of SERVICE_DROPS.
pub const SERVICE_DROPS_ENTRIES: u32 = 1 << 13;
/// Buckets of [`Handshakes`].
pub const HANDSHAKE_BUCKETS: usize = 16;
/// One connection in so many is timed, by its client's port.
pub const HANDSHAKES_SAMPLED: u16 = 8;
/// Words of HANDSHAKES: the time of a SYN by the hash of the reply. If two connections share a word, one is not
/// timed.
pub const HANDSHAKES_ENTRIES: u32 = 1 << 12;

/// Returns whether a connection of a client's port (network byte order) is timed.
#[inline(always)]
#[must_use]
pub const fn is_timed(client_port: u16) -> bool {
    // The low bits: ephemeral ports differ there.
    u16::from_be(client_port).is_multiple_of(HANDSHAKES_SAMPLED)
}

/// A word of HANDSHAKES: the upper bits of the reply's hash, and the microsecond of the SYN.
#[inline(always)]
#[must_use]
pub const fn handshake_word(hash: u32, microsecond: u64) -> u64 {
    const TIME: u32 = 44;
    (hash as u64 >> 12) << TIME | microsecond & ((1 << TIME) - 1)
}

/// Returns the microseconds since the SYN of a word, if it is this connection's.
#[inline(always)]
#[must_use]
pub const fn handshake_time(word: u64, hash: u32, microsecond: u64) -> Option<u64> {
    let difference = handshake_word(hash, microsecond).wrapping_sub(word);
    // Another hash leaves its difference in the upper bits.
    if difference >> 32 == 0 { Some(difference) } else { None }
}

/// Returns the bucket of a time in microseconds: bucket `n` ends at `64 << n` microseconds, and the last one has no
/// end.
#[inline(always)]
#[must_use]
pub const fn handshake_bucket(microseconds: u64) -> usize {
    let bits = u64::BITS - (microseconds >> 6).leading_zeros();
    if bits as usize >= HANDSHAKE_BUCKETS { HANDSHAKE_BUCKETS - 1 } else { bits as usize }
}

/// Returns the upper end of a bucket in microseconds; `None` for the last one.
#[must_use]
pub const fn bucket_end(bucket: usize) -> Option<u64> {
    if bucket + 1 < HANDSHAKE_BUCKETS { Some(64 << bucket) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_bucket_that_ends_above_it() {
        for (time, bucket) in [(0, 0), (63, 0), (64, 1), (127, 1), (128, 2), (1_000_000, 14), (1 << 40, 15)] {
            assert_eq!(handshake_bucket(time), bucket, "{time}");
            assert!(bucket_end(bucket).is_none_or(|end| time < end), "{time}");
            assert!(bucket == 0 || bucket_end(bucket - 1).is_some_and(|end| time >= end), "{time}");
        }
        assert_eq!(bucket_end(HANDSHAKE_BUCKETS - 1), None);
    }

    #[test]
    fn a_word_tells_the_time_of_its_own_connection_only() {
        let word = handshake_word(0xabcd_e123, 5_000_000);
        assert_eq!(handshake_time(word, 0xabcd_e123, 5_000_250), Some(250));
        assert_eq!(handshake_time(word, 0xabcd_f123, 5_000_250), None, "another hash");
        assert_eq!(handshake_time(word, 0xabcd_e123, 4_999_999), None, "a clock that ran back");
        assert_eq!(handshake_time(0, 0xabcd_e123, 5_000_250), None, "an empty word");
    }

    #[test]
    fn one_port_in_eight_is_timed() {
        let timed = (0_u16..=u16::MAX).filter(|port| is_timed(port.to_be())).count();
        assert_eq!(timed, (1 << 16) / usize::from(HANDSHAKES_SAMPLED));
    }
}
