//! The Internet checksum: folding, incremental update (RFC 1624), and its two zeros.
//!
//! Sums are 16-bit words added into a `u64`, without regard to byte order. Swapping the bytes of
//! all words swaps the bytes of their one's complement sum (RFC 1071, section 2). So words are read
//! as they lie in memory.

/// Folds a sum of 16-bit or 32-bit words to 16 bits.
#[inline(always)]
#[must_use]
pub const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// A running difference between the bytes that a checksum covered and the bytes that it is to
/// cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference(pub u64);

impl Difference {
    /// Adds the change of one 32-bit word.
    #[inline(always)]
    #[must_use]
    pub const fn word(self, old: u32, new: u32) -> Self {
        Self(self.0.wrapping_add((!old) as u64).wrapping_add(new as u64))
    }
    /// Adds the change of one 16-bit word.
    #[inline(always)]
    #[must_use]
    pub const fn half(self, old: u16, new: u16) -> Self {
        Self(self.0.wrapping_add((!old) as u64).wrapping_add(new as u64))
    }
    /// Returns the checksum field after the change: HC' = ~(~HC + ~m + m'), RFC 1624 equation 3.
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold(self.0.wrapping_add((!checksum) as u64))
    }
    /// Returns the UDP checksum field after the change.
    ///
    /// Zero means "no checksum" in UDP (RFC 768) and stays. A sum of zero is sent as 0xffff.
    #[inline(always)]
    #[must_use]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        if checksum == 0 {
            return 0;
        }
        let updated = self.apply(checksum);
        if updated == 0 { 0xffff } else { updated }
    }
}

/// Returns the checksum field of 16-bit words, as they lie in memory.
#[must_use]
pub fn over(words: impl IntoIterator<Item = u16>) -> u16 {
    !fold(words.into_iter().fold(0, |sum, word| sum + u64::from(word)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Zero has two forms in one's complement. Both verify.
    fn same(left: u16, right: u16) -> bool {
        left == right || (left.is_multiple_of(0xffff) && right.is_multiple_of(0xffff))
    }

    proptest! {
        #[test]
        fn an_incremental_update_equals_a_fresh_sum(
            mut words in proptest::collection::vec(any::<u16>(), 4..40), new in any::<u32>(), half in any::<u16>(),
        ) {
            let before = over(words.iter().copied());
            let old = u32::from(words[0]) | u32::from(words[1]) << 16;
            let difference = Difference::default().word(old, new).half(words[2], half);
            words[0] = new as u16;
            words[1] = (new >> 16) as u16;
            words[2] = half;
            prop_assert!(same(difference.apply(before), over(words.iter().copied())));
        }

        #[test]
        fn fold_loses_nothing(sum in any::<u64>()) {
            prop_assert_eq!(u64::from(fold(sum)) % 0xffff, sum % 0xffff);
        }
    }

    #[test]
    fn a_udp_checksum_of_zero_stays_and_no_other_becomes_zero() {
        assert_eq!(Difference::default().word(1, 2).apply_udp(0), 0);
        // ~0x0001 + 0xffff folds to 0xffff. Its complement is zero, which must not be sent.
        assert_eq!(Difference::default().half(0, 1).apply(1), 0);
        assert_eq!(Difference::default().half(0, 1).apply_udp(1), 0xffff);
        for checksum in 1..=u16::MAX {
            assert_ne!(Difference::default().half(7, 9).apply_udp(checksum), 0);
        }
    }
}
