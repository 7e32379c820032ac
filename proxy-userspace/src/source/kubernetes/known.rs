//! The objects of one kind that were sent, so that a new listing is reduced to its changes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::resource::Identity;
use crate::source::feed::Feed;

/// The objects that were sent. Uids are kept as hashes: with 100,000 objects each byte counts
/// 100,000 times.
#[derive(Debug)]
pub(super) struct Known<F: Feed> {
    kind: F::Kind,
    objects: HashMap<Box<str>, Entry>,
    /// The number of the present or last listing.
    listing: u32,
    /// Whether equal versions may be of different contents, until a listing has ended.
    doubted: bool,
    hasher: RandomState,
}

#[derive(Debug)]
struct Entry {
    uid: u64,
    version: u64,
    listing: u32,
    /// Whether it is in the place of an object that was never readable.
    stands_in: bool,
}

/// What was sent of an object that is unreadable now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Nothing,
    /// Its last readable version, which stays.
    Readable,
    /// A former object of the same name.
    Former,
}

impl<F: Feed> Known<F> {
    pub fn of(kind: F::Kind) -> Self {
        Self { kind, objects: HashMap::new(), listing: 0, doubted: false, hasher: RandomState::new() }
    }

    /// Doubts all versions: the server may have given them out twice. The next listing counts each
    /// of its objects as changed.
    pub fn doubt(&mut self) {
        self.doubted = true;
    }

    /// Returns whether the present or next listing counts each object as changed.
    pub const fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// Begins a listing. Objects that are not in it are gone at its end.
    pub fn begin(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// Records an object. Returns whether it is new or has changed.
    pub fn meet(&mut self, identity: &Identity<F::Key>) -> bool {
        self.record(identity, false)
    }

    /// Records an object in the place of an unreadable one. Returns whether it is new or has changed.
    pub fn meet_stand_in(&mut self, identity: &Identity<F::Key>) -> bool {
        self.record(identity, true)
    }

    fn record(&mut self, identity: &Identity<F::Key>, stands_in: bool) -> bool {
        let uid = self.hasher.hash_one(&identity.uid);
        let entry = Entry { uid, version: identity.version, listing: self.listing, stands_in };
        let old = self.objects.insert(name::<F>(&identity.key), entry);
        let is_same =
            |old: Entry| (old.uid, old.version, old.stands_in) == (uid, identity.version, stands_in);
        self.doubted || !old.is_some_and(is_same)
    }

    /// Records an unreadable object. Its last readable version stays. A former object of the same name is
    /// forgotten, and has to be deleted or replaced.
    pub fn meet_unread(&mut self, identity: &Identity<F::Key>) -> Sent {
        let uid = self.hasher.hash_one(&identity.uid);
        let name = name::<F>(&identity.key);
        match self.objects.get_mut(&name) {
            None => Sent::Nothing,
            Some(entry) if entry.uid == uid => {
                entry.listing = self.listing;
                if entry.stands_in { Sent::Nothing } else { Sent::Readable }
            }
            Some(_) => {
                self.objects.remove(&name);
                Sent::Former
            }
        }
    }

    /// Removes a deleted object. Returns whether it was known.
    pub fn forget(&mut self, key: &F::Key) -> bool {
        self.objects.remove(&name::<F>(key)).is_some()
    }

    /// Ends a listing. Removes the objects that were not in it, and returns them, sorted.
    pub fn end(&mut self) -> Vec<F::Key> {
        self.doubted = false;
        let gone = self.objects.extract_if(|_, entry| entry.listing != self.listing);
        let mut gone: Vec<F::Key> = gone.map(|(name, _)| key::<F>(self.kind, &name)).collect();
        gone.sort_unstable();
        gone
    }
}

/// Returns `namespace/name`, in one allocation. Neither part can have a slash.
fn name<F: Feed>(key: &F::Key) -> Box<str> {
    let (namespace, name) = F::names(key);
    format!("{namespace}/{name}").into()
}

fn key<F: Feed>(kind: F::Kind, name: &str) -> F::Key {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    F::named(kind, namespace, name)
}
