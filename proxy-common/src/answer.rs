//! ANSWERS: what a client must have seen of its backend, for its connection to count as one.
//!
//! Anybody can send a SYN and an ACK in another's name. The number that the backend has chosen meanwhile is known only to who
//! gets its answer.

/// Number of rows in ANSWERS; the hash of a reply's key chooses one.
pub const ANSWERS_ENTRIES: u32 = 1 << 15;
/// Words of a row: as many connections whose hashes choose it can be answered at once.
pub const ANSWERS_ROW: usize = 4;

/// How far a client's number may be above that of a first answer: what a backend sends right behind it (RFC 7413) may be acknowledged
/// with it.
const ABOVE_FIRST: u32 = 0xffff;
/// How far it may be from that of a later packet, which what is under way keeps them apart.
const FROM_LATER: u32 = 1 << 20;

const KIND_MASK: u32 = 3;
const FIRST: u32 = 1;
const LATER: u32 = 2;
const ANY: u32 = 3;

/// A word of ANSWERS: the upper half is a hash of the reply's key, but for two bits that say what the lower half is: the number that
/// acknowledges a backend's first answer, that of a later packet, or nothing where any will do.
///
/// One that loses its word to another connection of its row stays where new ones are, until its backend says more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer(pub u64);

impl Answer {
    /// The backend has answered what opens a connection; `number` is what acknowledges that.
    #[inline(always)]
    #[must_use]
    pub const fn first(hash: u32, number: u32) -> Self {
        Self::new(hash, FIRST, number)
    }
    /// The word after a later packet of the backend, whose number is the next it sends. One that says no more than its first answer did
    /// may come from a backend that has not been answered yet (RFC 9293, section 3.10.7.4): the word stays then.
    #[inline(always)]
    #[must_use]
    pub const fn later(self, hash: u32, number: u32) -> Self {
        if self.0 == Self::first(hash, number).0 { self } else { Self::new(hash, LATER, number) }
    }
    /// The backend has sent what it sends in a connection only.
    #[inline(always)]
    #[must_use]
    pub const fn any(hash: u32) -> Self {
        Self::new(hash, ANY, 0)
    }
    /// Whether a client's number shows that it has seen the answer.
    #[inline(always)]
    #[must_use]
    pub const fn is_shown_by(self, hash: u32, number: u32) -> bool {
        if !self.is_of(hash) {
            return false;
        }
        let ahead = number.wrapping_sub(self.0 as u32);
        match (self.0 >> 32) as u32 & KIND_MASK {
            FIRST => ahead <= ABOVE_FIRST,
            LATER => ahead.wrapping_add(FROM_LATER) <= 2 * FROM_LATER,
            ANY => true,
            _ => false,
        }
    }

    /// Whether it is about the connection with this hash.
    #[inline(always)]
    #[must_use]
    pub const fn is_of(self, hash: u32) -> bool {
        ((self.0 >> 32) as u32 ^ hash) & !KIND_MASK == 0
    }

    #[inline(always)]
    const fn new(hash: u32, kind: u32, number: u32) -> Self {
        Self(((hash & !KIND_MASK | kind) as u64) << 32 | number as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: u32 = 0x89ab_cdef;

    #[test]
    fn a_first_answer_is_shown_by_what_acknowledges_it_and_the_data_behind_it() {
        let answer = Answer::first(HASH, u32::MAX);
        assert!([u32::MAX, 0, 0xfffe].iter().all(|number| answer.is_shown_by(HASH, *number)));
        assert!([u32::MAX - 1, 0xffff, 1 << 31].iter().all(|number| !answer.is_shown_by(HASH, *number)));
    }

    #[test]
    fn no_number_shows_what_another_connection_was_answered() {
        for answer in [Answer::first(HASH, 7), Answer::default().later(HASH, 7), Answer::any(HASH)] {
            assert!(answer.is_shown_by(HASH, 7) && !answer.is_shown_by(HASH ^ 1 << 20, 7));
        }
        assert!(!Answer::default().is_shown_by(0, 0), "nobody has answered");
    }

    #[test]
    fn a_packet_that_says_no_more_than_the_first_answer_makes_nothing_easier() {
        let first = Answer::first(HASH, 1000);
        assert_eq!(first.later(HASH, 1000), first);
        let moved_on = first.later(HASH, 2_000_000);
        assert!(moved_on.is_shown_by(HASH, 1_500_000) && !moved_on.is_shown_by(HASH, 1000));
    }

    proptest! {
        #[test]
        fn few_numbers_of_all_show_a_first_answer(value in any::<u32>(), guess in any::<u32>()) {
            let is_shown = Answer::first(HASH, value).is_shown_by(HASH, guess);
            prop_assert_eq!(is_shown, guess.wrapping_sub(value) < 1 << 16);
        }
    }
}
