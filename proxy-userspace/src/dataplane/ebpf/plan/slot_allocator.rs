//! The allocator of slots in SELECTION.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use proxy_common::selection::Slot;

use super::change::Extent;
use super::ids::REST;

/// The free and the resting runs of slots. All other slots belong to a slice.
#[derive(Clone, Debug)]
pub struct SlotAllocator {
    /// Free runs: offset -> length. No two of them are adjacent.
    free: BTreeMap<u32, u32>,
    /// Released runs, by the end of their rest.
    resting: BTreeSet<(Duration, Extent)>,
    /// The number of slots in free and resting runs.
    spare: u32,
}

impl SlotAllocator {
    /// Returns an allocator without slots in use.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self { free: BTreeMap::from([(0, capacity)]), resting: BTreeSet::new(), spare: capacity }
    }

    /// Returns an allocator for a map with slices.
    ///
    /// A non-zero slot outside them may have been released a moment ago, so it rests. A zero slot
    /// is free. `slots` are the slots of the map up to the last one that is not zero.
    pub fn adopt(capacity: u32, slices: &BTreeSet<Extent>, slots: &[Slot], now: Duration) -> Self {
        let mut allocator = Self { free: BTreeMap::new(), resting: BTreeSet::new(), spare: 0 };
        let mut start = 0;
        let end = Extent { offset: capacity, length: 0 };
        for slice in slices.iter().chain([&end]) {
            allocator.adopt_gap(start..slice.offset, slots, now);
            start = slice.offset + slice.length;
        }
        allocator
    }

    fn adopt_gap(&mut self, gap: Range<u32>, slots: &[Slot], now: Duration) {
        let mut run = Extent { offset: gap.start, length: 0 };
        let mut clear = true;
        let in_use = u32::try_from(slots.len()).unwrap_or(u32::MAX).clamp(gap.start, gap.end);
        // Zero slots come last, in a run of any length.
        let ahead = (gap.start..in_use).map(|slot| (slot_at(slots, slot) == Slot::default(), 1));
        for (is_clear, length) in ahead.chain([(true, gap.end - in_use)]) {
            if is_clear != clear {
                self.adopt_run(run, clear, now);
                run = Extent { offset: run.offset + run.length, length: 0 };
                clear = is_clear;
            }
            run.length += length;
        }
        self.adopt_run(run, clear, now);
    }

    fn adopt_run(&mut self, run: Extent, clear: bool, now: Duration) {
        match (run.length, clear) {
            (0, _) => {}
            (_, true) => {
                self.spare += run.length;
                self.insert(run);
            }
            (_, false) => self.rest(run, now),
        }
    }

    /// Allocates from the first free run that is long enough; `None` if there is none.
    pub fn allocate(&mut self, length: u32) -> Option<u32> {
        let (&offset, &free) = self.free.iter().find(|(_, free)| **free >= length)?;
        self.free.remove(&offset);
        if free > length {
            self.free.insert(offset + length, free - length);
        }
        self.spare -= length;
        Some(offset)
    }

    /// Releases a run.
    pub fn rest(&mut self, extent: Extent, now: Duration) {
        if extent.length > 0 {
            self.spare += extent.length;
            self.resting.insert((now + REST, extent));
        }
    }

    /// Returns the number of slots without a service.
    pub const fn spare(&self) -> u32 {
        self.spare
    }

    /// Returns the released runs after their rest. They can be [freed](Self::free) once they are
    /// zeroed.
    pub fn rested(&self, now: Duration) -> impl Iterator<Item = Extent> {
        self.resting.iter().take_while(move |(until, _)| *until <= now).map(|(_, extent)| *extent)
    }

    /// Frees a run that has rested.
    pub fn free(&mut self, extent: Extent) {
        if let Some(entry) = self.resting.iter().find(|(_, resting)| *resting == extent).copied() {
            self.resting.remove(&entry);
            self.insert(extent);
        }
    }

    fn insert(&mut self, extent: Extent) {
        let Extent { mut offset, mut length } = extent;
        if let Some((&before, &free)) = self.free.range(..offset).next_back()
            && before + free == offset
        {
            offset = before;
            length += free;
        }
        if let Some(free) = self.free.remove(&(offset + length)) {
            length += free;
        }
        self.free.insert(offset, length);
    }
}

/// Returns a slot of the map, which is zero after the last one in use.
pub(super) fn slot_at(slots: &[Slot], index: u32) -> Slot {
    usize::try_from(index).ok().and_then(|index| slots.get(index)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn free_all(allocator: &mut SlotAllocator, now: Duration) {
        for extent in allocator.rested(now).collect::<Vec<_>>() {
            allocator.free(extent);
        }
    }

    #[test]
    fn adopted_space_outside_the_slices_rests_unless_it_is_clear() {
        let slices = BTreeSet::from([Extent { offset: 2, length: 3 }, Extent { offset: 8, length: 1 }]);
        let mut slots = [Slot::default(); 7];
        slots[5..].fill(Slot(1));
        let mut allocator = SlotAllocator::adopt(12, &slices, &slots, NOW);
        assert_eq!(allocator.spare, 8, "those at rest are spare, too");
        let mut lengths: Vec<_> = allocator.free.clone().into_iter().collect();
        assert_eq!(lengths, [(0, 2), (7, 1), (9, 3)]);
        free_all(&mut allocator, NOW + REST);
        lengths = allocator.free.clone().into_iter().collect();
        assert_eq!(lengths, [(0, 2), (5, 3), (9, 3)]);
    }

    proptest! {
        /// For any allocations and releases: no slot has two owners, no slot is reused before its
        /// rest, no slot is lost, and adjacent free runs become one.
        #[test]
        fn slots_have_one_owner_rest_and_are_never_lost(
            steps in proptest::collection::vec((1_u32..20, any::<prop::sample::Index>(), 0_u64..6), 1..80),
        ) {
            const CAPACITY: u32 = 100;
            let mut allocator = SlotAllocator::new(CAPACITY);
            let mut owned: Vec<Extent> = Vec::new();
            let mut released = vec![Duration::ZERO; CAPACITY as usize];
            let mut now = NOW;
            for (length, index, seconds) in steps {
                now += Duration::from_secs(seconds);
                free_all(&mut allocator, now);
                if length % 3 == 0 && !owned.is_empty() {
                    let extent = owned.remove(index.index(owned.len()));
                    for slot in extent.offset..extent.offset + extent.length {
                        released[slot as usize] = now + REST;
                    }
                    allocator.rest(extent, now);
                } else if let Some(offset) = allocator.allocate(length) {
                    prop_assert!(offset + length <= CAPACITY);
                    for slot in offset..offset + length {
                        prop_assert!(released[slot as usize] <= now);
                        prop_assert!(!owned.iter().any(|o| (o.offset..o.offset + o.length).contains(&slot)));
                    }
                    owned.push(Extent { offset, length });
                }
                prop_assert_eq!(allocator.spare() + owned.iter().map(|extent| extent.length).sum::<u32>(), CAPACITY);
            }
            for extent in owned.drain(..) {
                allocator.rest(extent, now);
            }
            free_all(&mut allocator, now + REST);
            prop_assert_eq!(allocator.spare(), CAPACITY);
            prop_assert_eq!(allocator.free, BTreeMap::from([(0, CAPACITY)]));
        }
    }
}
