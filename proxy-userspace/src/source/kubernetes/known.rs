//! What was told of one kind of objects, so that a new listing ends in what has changed since.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::decode::Identity;
use crate::source::{Kind, ObjectKey};

/// The objects that were told of. Uids are kept as hashes: of 100,000 objects every byte is there 100,000 times.
#[derive(Debug)]
pub(super) struct Known {
    kind: Kind,
    objects: HashMap<Box<str>, Entry>,
    /// Number of the listing that is under way or was the last.
    listing: u32,
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
        Self { kind, objects: HashMap::new(), listing: 0, hasher: RandomState::new() }
    }

    /// A listing begins: what is not met until it ends is gone.
    pub fn begin(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// An object was met; whether it is new or has changed.
    pub fn meet(&mut self, identity: &Identity) -> bool {
        let uid = self.hasher.hash_one(&identity.uid);
        let entry = Entry { uid, version: identity.version, listing: self.listing };
        let old = self.objects.insert(name(&identity.key), entry);
        old.is_none_or(|old| (old.uid, old.version) != (uid, identity.version))
    }

    /// An object was met that can't be read: it stays as it was told. Whether it has to go, because the one that was
    /// told of is another one that only had its name.
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

    /// An object is gone; whether it was known.
    pub fn forget(&mut self, key: &ObjectKey) -> bool {
        self.objects.remove(&name(key)).is_some()
    }

    /// The listing has ended; forgets what was not met in it, and says what that was, sorted.
    pub fn end(&mut self) -> Vec<ObjectKey> {
        let gone = self.objects.extract_if(|_, entry| entry.listing != self.listing);
        let mut gone: Vec<ObjectKey> = gone.map(|(name, _)| key(self.kind, &name)).collect();
        gone.sort_unstable();
        gone
    }
}

/// `namespace/name`, in one allocation; neither may have a slash.
fn name(key: &ObjectKey) -> Box<str> {
    format!("{}/{}", key.namespace, key.name).into()
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}
