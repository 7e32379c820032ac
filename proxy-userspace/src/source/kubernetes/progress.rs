//! The progress of the first listing of all kinds, and the objects that it could not read.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::source::{Listing, ObjectKey, Unread};

/// The progress, shared by the followers of all kinds.
#[derive(Debug)]
pub(super) struct Progress(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Number of kinds that were not listed yet.
    unlisted: usize,
    /// Objects that were unreadable since the start.
    unread: BTreeSet<Unread>,
}

impl Progress {
    /// Returns the progress of a listing of this many kinds.
    pub fn of(kinds: usize) -> Self {
        Self(Mutex::new(State { unlisted: kinds, unread: BTreeSet::new() }))
    }

    /// Records that a kind was listed, except for `unread`. Returns the whole listing once all
    /// kinds were.
    pub fn listed(&self, unread: impl Iterator<Item = ObjectKey>) -> Option<Listing> {
        let mut state = self.lock();
        state.unread.extend(unread.map(Unread::Object));
        state.unlisted = state.unlisted.saturating_sub(1);
        (state.unlisted == 0).then(|| state.listing())
    }

    /// Records that an unreadable object was read after all, or is gone. Returns the listing if it
    /// changed after its end.
    pub fn resolve(&self, key: &ObjectKey) -> Option<Listing> {
        let mut state = self.lock();
        let changed = state.unread.remove(&Unread::Object(key.clone()));
        (changed && state.unlisted == 0).then(|| state.listing())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn listing(&self) -> Listing {
        if self.unread.is_empty() { Listing::Complete } else { Listing::Without(self.unread.clone()) }
    }
}
