//! FRAGMENTS4/6: what the later fragments of a packet do not say. Only the first one has ports.

use crate::Address;
use crate::hash::mix;
use crate::layout::shared;

/// Seconds after which the other fragments of a packet are not waited for: those of Linux' own `ipfrag_time`.
pub const FRAGMENT_SECONDS: u32 = 30;

shared! {
    /// Key of FRAGMENTS4/6: what all fragments of a packet share.
    pub struct FragmentKey<A> {
        /// Source address.
        pub source: A,
        /// Destination address.
        pub destination: A,
        /// Identification, bytes in network order: 16 bits of IPv4, 32 of IPv6.
        pub id: u32,
        /// IPv4's protocol. Zero with IPv6, whose fragments are told apart without it, and only the first's counts (RFC 8200,
        /// section 4.5).
        pub protocol: u32,
    }
}

/// Ports and protocol of a packet that was cut up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentOf {
    /// Source port, network byte order.
    pub source_port: u16,
    /// Destination port, network byte order.
    pub destination_port: u16,
    /// IP protocol number of what the packet carries.
    pub protocol: u8,
}

/// Value of FRAGMENTS4/6. One word, so that none is read torn; eight bits of the key's hash tell one that was given to another
/// key while it was read.
///
/// From the lowest bit: source port (16), destination port (16), protocol (8), check (8), the lower half of the monotonic
/// seconds at which the first fragment was seen (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentWord(pub u64);

impl FragmentOf {
    /// The five bytes as the lower ones of a word.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.source_port as u64 | (self.destination_port as u64) << 16 | (self.protocol as u64) << 32
    }
    /// The inverse; what stands above is not looked at.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { source_port: bits as u16, destination_port: (bits >> 16) as u16, protocol: (bits >> 32) as u8 }
    }
}

impl FragmentWord {
    /// The entry for a first fragment seen at `now` (monotonic seconds).
    #[inline(always)]
    #[must_use]
    pub fn new<A: Address>(key: &FragmentKey<A>, of: FragmentOf, now: u32) -> Self {
        Self(of.to_bits() | check(key) << 40 | (now as u64 & 0xffff) << 48)
    }
    /// What a fragment with this key belongs to, unless the entry is too old or another's.
    #[inline(always)]
    #[must_use]
    pub fn read<A: Address>(self, key: &FragmentKey<A>, now: u32) -> Option<FragmentOf> {
        // Another CPU may be a tick ahead.
        let age = (now as u16).wrapping_sub((self.0 >> 48) as u16).wrapping_add(1);
        let is_fresh = u32::from(age) <= FRAGMENT_SECONDS + 1;
        (is_fresh && self.0 >> 40 & 0xff == check(key)).then_some(FragmentOf::from_bits(self.0))
    }
}

#[inline(always)]
fn check<A: Address>(key: &FragmentKey<A>) -> u64 {
    let start = u64::from(key.id) << 32 | u64::from(key.protocol);
    let words = key.source.words().iter().chain(key.destination.words());
    words.fold(mix(start), |sum, word| mix(sum ^ u64::from(*word))) >> 56
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Addr4;

    fn key(id: u32) -> FragmentKey<Addr4> {
        FragmentKey { source: Addr4([0x0a00_0001]), destination: Addr4([7]), id, protocol: 17 }
    }

    proptest! {
        #[test]
        fn what_the_first_fragment_said_is_read_for_thirty_seconds(
            source_port: u16, destination_port: u16, protocol: u8, now: u32, id: u32,
        ) {
            let of = FragmentOf { source_port, destination_port, protocol };
            let word = FragmentWord::new(&key(id), of, now);
            for age in 0..=FRAGMENT_SECONDS {
                prop_assert_eq!(word.read(&key(id), now.wrapping_add(age)), Some(of));
            }
            prop_assert_eq!(word.read(&key(id), now.wrapping_add(FRAGMENT_SECONDS + 1)), None);
            prop_assert_eq!(word.read(&key(id), now.wrapping_sub(1)), Some(of), "a clock that is a tick behind");
        }
    }

    #[test]
    fn an_entry_of_another_key_is_nearly_always_told() {
        let word = FragmentWord::new(&key(1), FragmentOf::default(), 100);
        let wrong = (2..10_002).filter(|id| word.read(&key(*id), 100).is_some()).count();
        assert!(wrong < 100, "{wrong} of 10000");
    }
}
