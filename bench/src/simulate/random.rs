//! Repeatable random numbers: the same seed gives the same run.

use proxy_common::hash::mix;

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x9e37_79b9_7f4a_7c15))
    }

    /// Returns the next number of the stream.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `bound`, or 0 without one.
    pub const fn below(&mut self, bound: usize) -> usize {
        (((self.number() >> 32) * bound as u64) >> 32) as usize
    }

    /// Takes an element out of a list.
    pub fn take<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        let chosen = self.below(from.len());
        (!from.is_empty()).then(|| from.swap_remove(chosen))
    }
}
