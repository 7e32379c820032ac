//! ICMP_SOURCES and ICMP_TOTAL: how often ICMP messages are sent.
//!
//! Each value is a token bucket in one word: the time (nanoseconds of `CLOCK_MONOTONIC_COARSE`) at which it will be full
//! again. A message is sent while that is at most [`BURST`] messages ahead, and moves it on by one.

use crate::layout::shared;

/// Nanoseconds after which one source prefix may have another message: 100 a second.
pub const SOURCE_INTERVAL: u64 = 10_000_000;
/// Nanoseconds after which one CPU may send another message: 1000 a second.
pub const TOTAL_INTERVAL: u64 = 1_000_000;
/// Messages in a full bucket.
pub const BURST: u64 = 100;
/// Kind of what refuses a packet: nobody serves it, or its hop limit is used up. Whoever wants to can ask for these with small packets.
pub const KIND_REFUSAL: u32 = 0;
/// Kind of what says that a packet is too large: connections stand still without it.
pub const KIND_SIZE: u32 = 1;
/// Number of kinds. Each has buckets of its own.
pub const KINDS: u32 = 2;

shared! {
    /// Key of ICMP_SOURCES: an IPv4 /24 as `::a.b.c.0`, or the upper half of an IPv6 address; for a pod its
    /// [device](SourcePrefix::of_pod).
    pub struct SourcePrefix {
        /// The prefix, bytes in network order.
        pub words: [u32; 2],
        /// `KIND_*`: what its messages are about.
        pub kind: u32,
    }
}

impl SourcePrefix {
    /// The bucket of a prefix for refusals.
    #[inline(always)]
    #[must_use]
    pub const fn new(words: [u32; 2]) -> Self {
        Self { words, kind: KIND_REFUSAL }
    }
    /// All that comes from a pod's device, by its index: one pod, whatever address it says it has, takes no token of another. As a
    /// prefix it would be one of multicast addresses, which are no source.
    #[inline(always)]
    #[must_use]
    pub const fn of_pod(device: u32) -> Self {
        Self::new([u32::MAX, device])
    }
    /// The bucket of the same source for messages about the size of its packets.
    #[inline(always)]
    #[must_use]
    pub const fn about_size(self) -> Self {
        Self { kind: KIND_SIZE, ..self }
    }
}

/// The bucket after one more message at `now`, if it has one.
#[inline(always)]
#[must_use]
pub const fn take(full_at: u64, now: u64, interval: u64) -> Option<u64> {
    let full_at = if full_at > now { full_at } else { now };
    if full_at - now > (BURST - 1) * interval { None } else { Some(full_at + interval) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_a_bucket_for_each_kind() {
        let refusals = SourcePrefix::of_pod(7);
        let sizes = refusals.about_size();
        assert_eq!((refusals.kind, sizes.kind, refusals.words), (KIND_REFUSAL, KIND_SIZE, sizes.words));
        assert!(refusals.kind < KINDS && sizes.kind < KINDS);
    }

    #[test]
    fn a_bucket_holds_a_burst_and_fills_one_by_one() {
        let now = 7_000_000_000;
        let mut full_at = 0;
        for _ in 0..BURST {
            full_at = take(full_at, now, SOURCE_INTERVAL).unwrap();
        }
        assert_eq!(take(full_at, now, SOURCE_INTERVAL), None);
        assert_eq!(take(full_at, now + SOURCE_INTERVAL - 1, SOURCE_INTERVAL), None);
        full_at = take(full_at, now + SOURCE_INTERVAL, SOURCE_INTERVAL).unwrap();
        assert_eq!(take(full_at, now + SOURCE_INTERVAL, SOURCE_INTERVAL), None);
        assert!(take(full_at, now + 3600 * 1_000_000_000, SOURCE_INTERVAL).is_some());
    }
}
