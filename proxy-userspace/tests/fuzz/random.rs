//! A small generator of random numbers (SplitMix64): fast, and the same on every machine.

/// The generator.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    /// Returns the stream of one thread of a run.
    pub fn new(seed: u64, thread: u64) -> Self {
        Self { seed, state: seed ^ thread.wrapping_mul(0xa076_1d64_78bd_642f) }
    }

    /// Returns the seed, which repeats the whole run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns any number.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns one of the items.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
