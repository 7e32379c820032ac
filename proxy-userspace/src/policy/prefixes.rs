//! A table of prefixes with longest-prefix look-up, as the kernel's LPM trie has it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::Family;

/// A value for each of some prefixes of both families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes<T> {
    entries: BTreeMap<IpNet, T>,
    /// The lengths that occur. A look-up tries each of them.
    lengths: BTreeMap<Family, BTreeSet<u8>>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), lengths: BTreeMap::new() }
    }
}

impl<T> Prefixes<T> {
    /// Sets the value of a prefix, whose host bits do not count.
    pub fn insert(&mut self, prefix: IpNet, value: T) {
        let prefix = prefix.trunc();
        self.lengths.entry(Family::of(prefix.addr())).or_default().insert(prefix.prefix_len());
        self.entries.insert(prefix, value);
    }

    /// Removes a prefix.
    pub fn remove(&mut self, prefix: IpNet) {
        // A length that occurs no more costs a look-up, and nothing else.
        self.entries.remove(&prefix.trunc());
    }

    /// Returns the value of exactly this prefix.
    #[must_use]
    pub fn get(&self, prefix: IpNet) -> Option<&T> {
        self.entries.get(&prefix.trunc())
    }

    /// Returns all prefixes with their values; a prefix comes before those inside it.
    pub fn iter(&self) -> impl Iterator<Item = (&IpNet, &T)> {
        self.entries.iter()
    }

    /// Returns the number of prefixes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no prefix.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the value of the longest prefix with this address.
    #[must_use]
    pub fn longest(&self, address: IpAddr) -> Option<&T> {
        self.containing(address.into()).map(|(_, value)| value).next()
    }

    /// Returns the entries that contain a prefix, itself included, the longest one first.
    pub fn containing(&self, prefix: IpNet) -> impl Iterator<Item = (&IpNet, &T)> {
        let lengths = self.lengths.get(&Family::of(prefix.addr())).into_iter().flatten().rev();
        lengths.filter(move |length| **length <= prefix.prefix_len()).filter_map(move |length| {
            let cut = IpNet::new(prefix.addr(), *length).ok()?.trunc();
            self.entries.get_key_value(&cut)
        })
    }
}
