//! The objects of one kind that were sent, so that a new listing is reduced to its changes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::decode::Identity;
use crate::source::{Kind, ObjectKey};

/// The objects that were sent. Uids are kept as hashes: with 100,000 objects each byte counts
/// 100,000 times.
#[derive(Debug)]
pub(super) struct Known {
    kind: Kind,
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
}

impl Known {
    pub fn of(kind: Kind) -> Self {
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
    pub fn meet(&mut self, identity: &Identity) -> bool {
        let uid = self.hasher.hash_one(&identity.uid);
        let entry = Entry { uid, version: identity.version, listing: self.listing };
        let old = self.objects.insert(name(&identity.key), entry);
        self.doubted || old.is_none_or(|old| (old.uid, old.version) != (uid, identity.version))
    }

    /// Records an unreadable object. Its last readable version stays.
    ///
    /// Returns whether that version has to be deleted, since it belongs to a former object of the
    /// same name.
    pub fn meet_unread(&mut self, identity: &Identity) -> bool {
        let uid = self.hasher.hash_one(&identity.uid);
        let name = name(&identity.key);
        let Some(entry) = self.objects.get_mut(&name) else { return false };
        entry.listing = self.listing;
        let is_another = entry.uid != uid;
        if is_another {
            self.objects.remove(&name);
        }
        is_another
    }

    /// Removes a deleted object. Returns whether it was known.
    pub fn forget(&mut self, key: &ObjectKey) -> bool {
        self.objects.remove(&name(key)).is_some()
    }

    /// Ends a listing. Removes the objects that were not in it, and returns them, sorted.
    pub fn end(&mut self) -> Vec<ObjectKey> {
        self.doubted = false;
        let gone = self.objects.extract_if(|_, entry| entry.listing != self.listing);
        let mut gone: Vec<ObjectKey> = gone.map(|(name, _)| key(self.kind, &name)).collect();
        gone.sort_unstable();
        gone
    }
}

/// Returns `namespace/name`, in one allocation. Neither part can have a slash.
fn name(key: &ObjectKey) -> Box<str> {
    format!("{}/{}", key.namespace, key.name).into()
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}
