//! ICMP_SOURCES and ICMP_TOTAL: the rate limits of ICMP messages.
//!
//! Each value is a token bucket in one word: the time at which the bucket will be full again, in
//! nanoseconds of `CLOCK_MONOTONIC_COARSE`. A message moves that time on by one interval. It is
//! sent only if the time is then at most [`BURST`] intervals ahead.

use crate::layout::shared;

/// Interval of one source prefix in nanoseconds: 100 messages a second.
pub const SOURCE_INTERVAL: u64 = 10_000_000;
/// Interval of one CPU in nanoseconds: 1000 messages a second.
pub const TOTAL_INTERVAL: u64 = 1_000_000;
/// The number of messages in a full bucket.
pub const BURST: u64 = 100;
/// Kind of messages that refuse a packet: nothing serves it, or its hop limit is used up. Small
/// packets of anybody can cause them.
pub const KIND_REFUSAL: u32 = 0;
/// Kind of messages about a packet that is too large. Without them connections stand still
/// (decision 121).
pub const KIND_SIZE: u32 = 1;
/// The number of kinds. Each kind has its own buckets.
pub const KINDS: u32 = 2;

shared! {
    /// Key of ICMP_SOURCES: an IPv4 /24 as `::a.b.c.0`, the upper half of an IPv6 address, or the
    /// [device](SourcePrefix::of_pod) of a pod.
    pub struct SourcePrefix {
        /// The prefix, bytes in network order.
        pub words: [u32; 2],
        /// The `KIND_*` of the messages.
        pub kind: u32,
    }
}

impl SourcePrefix {
    /// Returns the key of a prefix's bucket for refusals.
    #[inline(always)]
    #[must_use]
    pub const fn new(words: [u32; 2]) -> Self {
        Self { words, kind: KIND_REFUSAL }
    }
    /// Returns the key of a pod's bucket for refusals, by the index of the pod's device.
    ///
    /// A pod may forge its source address. Keyed by device, it takes no token of another pod. No
    /// source has such a key: as a prefix it would be one of multicast addresses.
    #[inline(always)]
    #[must_use]
    pub const fn of_pod(device: u32) -> Self {
        Self::new([u32::MAX, device])
    }
    /// Returns the key of the same source's bucket for messages about size.
    #[inline(always)]
    #[must_use]
    pub const fn about_size(self) -> Self {
        Self { kind: KIND_SIZE, ..self }
    }
}

/// Returns the bucket after one more message at `now`, or `None` if the bucket is empty.
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
