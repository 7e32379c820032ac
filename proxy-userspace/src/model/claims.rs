//! Who gets what several ask for and only one can have: the oldest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use k8s_openapi::jiff::Timestamp;

use super::Protocol;

/// An address and port that can be had by one service port only.
pub(super) type Target = (SocketAddr, Protocol);

/// The smaller rank wins: the older Service; one that doesn't say when it was created is younger than any
/// that does. Namespace and name decide between equals, being the start of [`PortKey`]'s order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(bool, Option<Timestamp>);

impl Rank {
    pub fn new(created: Option<Timestamp>) -> Self {
        Self(created.is_none(), created)
    }
}

/// Who (`K`) asks for what (`T`).
#[derive(Debug)]
pub(super) struct Claims<T, K> {
    claimants: BTreeMap<T, BTreeSet<(Rank, K)>>,
    held: BTreeMap<K, (Rank, BTreeSet<T>)>,
}

impl<T: Ord + Copy, K: Ord + Clone> Claims<T, K> {
    /// Replaces what `key` asks for; returns everybody who wins, loses or has lost to somebody else by that.
    pub fn replace(&mut self, key: &K, rank: Rank, targets: BTreeSet<T>) -> BTreeSet<K> {
        let mut affected = BTreeSet::new();
        let old = self.held.get(key);
        if old.is_some_and(|(old_rank, old_targets)| *old_rank == rank && *old_targets == targets) {
            return affected;
        }
        let (old_rank, old_targets) = self.held.remove(key).unwrap_or((rank, BTreeSet::new()));
        for target in &old_targets | &targets {
            let claimants = self.claimants.entry(target).or_default();
            let before = claimants.first().cloned();
            claimants.remove(&(old_rank, key.clone()));
            if targets.contains(&target) {
                claimants.insert((rank, key.clone()));
            }
            if claimants.first() != before.as_ref() {
                affected.extend(claimants.iter().map(|(_, other)| other.clone()));
            }
            if claimants.is_empty() {
                self.claimants.remove(&target);
            }
        }
        if !targets.is_empty() {
            self.held.insert(key.clone(), (rank, targets));
        }
        affected
    }
    /// Who gets it.
    pub fn winner(&self, target: &T) -> Option<&K> {
        self.claimants.get(target).and_then(BTreeSet::first).map(|(_, key)| key)
    }
}

impl<T, K> Default for Claims<T, K> {
    fn default() -> Self {
        Self { claimants: BTreeMap::new(), held: BTreeMap::new() }
    }
}
