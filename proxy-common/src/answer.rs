//! ANSWERS: the numbers that confirm a client's connection (decision 128).
//!
//! Anybody can send a SYN and an ACK with a forged source address. Only the receiver of the
//! backend's answer knows the sequence number that the backend chose. A client's packet confirms
//! its connection by that number.

/// The number of rows in ANSWERS. The hash of a reply's key chooses the row.
pub const ANSWERS_ENTRIES: u32 = 1 << 15;
/// The number of words in a row: so many connections with that row can be unconfirmed at once.
pub const ANSWERS_ROW: usize = 4;

/// How far a client's acknowledgement may be above the first answer's. A backend may send data
/// right behind that answer (RFC 7413, TCP Fast Open), and the client may acknowledge both at once.
const ABOVE_FIRST: u32 = 0xffff;
/// How far it may be from the number of a later packet, in both directions: packets are under way.
const FROM_LATER: u32 = 1 << 20;

const KIND_MASK: u32 = 3;
const FIRST: u32 = 1;
const LATER: u32 = 2;
const ANY: u32 = 3;

/// A word of ANSWERS: what a client must acknowledge.
///
/// | Bits | Meaning |
/// |---|---|
/// | 0..32 | the number that acknowledges the backend's packet; 0 if any number will do |
/// | 32..34 | the kind: a first answer, a later packet, or any number |
/// | 34..64 | bits of the hash of the reply's key |
///
/// Another connection of the row may overwrite the word. Its connection then stays unconfirmed
/// until its backend sends again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer(pub u64);

impl Answer {
    /// Returns the word after the backend's answer to a SYN or INIT. `number` acknowledges that
    /// answer.
    #[inline(always)]
    #[must_use]
    pub const fn first(hash: u32, number: u32) -> Self {
        Self::new(hash, FIRST, number)
    }
    /// Returns the word after a later packet of the backend. `number` is the next number that the
    /// backend sends.
    ///
    /// A packet with the first answer's number may come from a backend that waits for the client's
    /// acknowledgement (RFC 9293, section 3.10.7.4). Such a packet changes nothing.
    #[inline(always)]
    #[must_use]
    pub const fn later(self, hash: u32, number: u32) -> Self {
        if self.0 == Self::first(hash, number).0 { self } else { Self::new(hash, LATER, number) }
    }
    /// Returns the word after a packet that a backend sends only within a connection: any number
    /// confirms.
    #[inline(always)]
    #[must_use]
    pub const fn any(hash: u32) -> Self {
        Self::new(hash, ANY, 0)
    }
    /// Returns whether a client's number shows that the client saw the answer.
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

    /// Returns whether the word belongs to the connection with this hash.
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
    fn a_first_answer_is_shown_by_an_acknowledgement_of_it_and_of_data_behind_it() {
        let answer = Answer::first(HASH, u32::MAX);
        assert!([u32::MAX, 0, 0xfffe].iter().all(|number| answer.is_shown_by(HASH, *number)));
        assert!([u32::MAX - 1, 0xffff, 1 << 31].iter().all(|number| !answer.is_shown_by(HASH, *number)));
    }

    #[test]
    fn no_number_shows_the_answer_to_another_connection() {
        for answer in [Answer::first(HASH, 7), Answer::default().later(HASH, 7), Answer::any(HASH)] {
            assert!(answer.is_shown_by(HASH, 7) && !answer.is_shown_by(HASH ^ 1 << 20, 7));
        }
        assert!(!Answer::default().is_shown_by(0, 0), "no backend has answered");
    }

    #[test]
    fn a_packet_with_the_first_answers_number_leaves_the_word() {
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
