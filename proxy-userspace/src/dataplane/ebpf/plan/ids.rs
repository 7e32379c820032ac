//! Ids that rest before they are used again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time an id or a run of slots rests after its release.
///
/// A running program may have read the id before the release, and user space has no grace period to
/// wait for.
pub const REST: Duration = Duration::from_secs(10);

/// Allocates ids from 1 up to the size of a map.
///
/// Unused ids come first, then the id with the longest rest. The later the reuse, the later the
/// generations wrap around.
#[derive(Clone, Debug)]
pub struct IdPool {
    /// The number of entries in the map; all ids are lower.
    capacity: u32,
    /// All ids from this one on were never used.
    next: u32,
    /// When each released id may be used again.
    resting: BTreeMap<u32, Duration>,
    /// The same, by time.
    queue: BTreeSet<(Duration, u32)>,
}

impl IdPool {
    /// Returns a pool for an unused map.
    #[must_use]
    pub const fn new(capacity: u32) -> Self {
        Self { capacity, next: 1, resting: BTreeMap::new(), queue: BTreeSet::new() }
    }

    /// Returns the number of entries in the map.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of ids in use.
    #[must_use]
    pub fn used(&self) -> u32 {
        let resting = u32::try_from(self.resting.len()).unwrap_or(u32::MAX);
        (self.next - 1).saturating_sub(resting)
    }

    /// Marks an id found in use. Lower ids not seen before are free.
    pub fn adopt(&mut self, id: u32) {
        for skipped in self.next..id {
            self.resting.insert(skipped, Duration::ZERO);
            self.queue.insert((Duration::ZERO, skipped));
        }
        self.next = self.next.max(id + 1);
        self.resume(id);
    }

    /// Returns an unused id; `None` while all are in use or rest. `is_clean` may refuse an id that
    /// has rested.
    pub fn allocate(&mut self, now: Duration, is_clean: impl Fn(u32) -> bool) -> Option<u32> {
        if self.next < self.capacity {
            self.next += 1;
            return Some(self.next - 1);
        }
        let mut rested = self.queue.iter().take_while(|(until, _)| *until <= now).map(|(_, id)| *id);
        let id = rested.find(|id| is_clean(*id))?;
        self.resume(id);
        Some(id)
    }

    /// Releases an id.
    pub fn rest(&mut self, id: u32, now: Duration) {
        self.resume(id);
        self.resting.insert(id, now + REST);
        self.queue.insert((now + REST, id));
    }

    /// Ends the rest of a released id: its owner has returned.
    pub fn resume(&mut self, id: u32) {
        if let Some(until) = self.resting.remove(&id) {
            self.queue.remove(&(until, id));
        }
    }

    /// Returns whether an id was released.
    #[must_use]
    pub fn is_resting(&self, id: u32) -> bool {
        self.resting.contains_key(&id)
    }

    /// Returns the end of the rest of a released id; `None` if the rest is not over.
    #[must_use]
    pub fn rested(&self, id: u32, now: Duration) -> Option<Duration> {
        self.resting.get(&id).copied().filter(|until| *until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn an_id_is_not_given_out_again_before_it_has_rested() {
        let mut pool = IdPool::new(3);
        assert_eq!(
            (pool.allocate(NOW, |_| true), pool.allocate(NOW, |_| true), pool.allocate(NOW, |_| true)),
            (Some(1), Some(2), None)
        );
        assert_eq!(pool.used(), 2);
        pool.rest(1, NOW);
        assert_eq!(pool.used(), 1);
        assert_eq!(pool.allocate(NOW + Duration::from_millis(9_999), |_| true), None);
        assert_eq!((pool.rested(1, NOW), pool.rested(1, NOW + REST)), (None, Some(NOW + REST)));
        assert_eq!(pool.allocate(NOW + REST, |_| true), Some(1));
    }

    #[test]
    fn an_adopted_id_is_taken_and_the_gap_below_it_is_free() {
        let mut pool = IdPool::new(5);
        pool.adopt(3);
        pool.adopt(2);
        assert_eq!([(); 3].map(|()| pool.allocate(NOW, |_| true)), [Some(4), Some(1), None]);
    }

    #[test]
    fn an_id_is_used_again_only_when_all_were_used() {
        let mut pool = IdPool::new(4);
        let mut now = NOW;
        for expected in [1, 2, 3, 1, 2, 3] {
            assert_eq!(pool.allocate(now, |_| true), Some(expected));
            pool.rest(expected, now);
            now += REST;
        }
    }

    #[test]
    fn an_owner_that_returns_gets_its_id_back() {
        let mut pool = IdPool::new(2);
        assert_eq!(pool.allocate(NOW, |_| true), Some(1));
        pool.rest(1, NOW);
        assert!(pool.is_resting(1));
        pool.resume(1);
        assert_eq!(pool.allocate(NOW + REST, |_| true), None);
    }
}
