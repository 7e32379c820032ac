//! The progress of the first listing of all kinds, and the objects that it could not read.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The progress, shared by the followers of all kinds.
#[derive(Debug)]
pub(super) struct Progress<K>(Mutex<State<K>>);

#[derive(Debug)]
struct State<K> {
    /// Number of kinds that were not listed yet.
    unlisted: usize,
    /// Objects that were unreadable since the start.
    unread: BTreeSet<K>,
}

impl<K: Ord + Clone> Progress<K> {
    /// Returns the progress of a listing of this many kinds.
    pub fn of(kinds: usize) -> Self {
        Self(Mutex::new(State { unlisted: kinds, unread: BTreeSet::new() }))
    }

    /// Records that a kind was listed, except for `unread`. Returns the unreadable objects of all kinds
    /// once all were listed.
    pub fn listed(&self, unread: impl Iterator<Item = K>) -> Option<BTreeSet<K>> {
        let mut state = self.lock();
        state.unread.extend(unread);
        state.unlisted = state.unlisted.saturating_sub(1);
        (state.unlisted == 0).then(|| state.unread.clone())
    }

    /// Records that an unreadable object was read after all, or is gone. Returns the
    /// others that are left if the listing had ended.
    pub fn resolve(&self, key: &K) -> Option<BTreeSet<K>> {
        let mut state = self.lock();
        let changed = state.unread.remove(key);
        (changed && state.unlisted == 0).then(|| state.unread.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
