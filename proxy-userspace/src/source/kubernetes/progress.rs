//! How far the first listing of all kinds is, and what it could not tell of.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::source::{Listing, ObjectKey, Unread};

/// Shared by the followers of all kinds.
#[derive(Debug)]
pub(super) struct Progress(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Kinds that were not listed yet.
    unlisted: usize,
    /// What could not be read since the start.
    unread: BTreeSet<Unread>,
}

impl Progress {
    /// So many kinds are to be listed.
    pub fn of(kinds: usize) -> Self {
        Self(Mutex::new(State { unlisted: kinds, unread: BTreeSet::new() }))
    }

    /// One more kind was told of, all but these objects. Says what the whole listing is once all kinds were.
    pub fn listed(&self, unread: impl Iterator<Item = ObjectKey>) -> Option<Listing> {
        let mut state = self.lock();
        state.unread.extend(unread.map(Unread::Object));
        state.unlisted = state.unlisted.saturating_sub(1);
        (state.unlisted == 0).then(|| state.listing())
    }

    /// An object that could not be read was told of after all, or is gone. Says what the listing is by that, if it
    /// makes a difference to somebody who knows it.
    pub fn settled(&self, key: &ObjectKey) -> Option<Listing> {
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
