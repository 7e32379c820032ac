//! Who gets what several ask for and only one can have: the oldest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

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
    /// Whoever asks for it, the winner first.
    claimants: BTreeMap<T, Vec<(Rank, Arc<K>)>>,
    held: BTreeMap<Arc<K>, (Rank, Box<[T]>)>,
}

impl<T: Ord + Copy, K: Ord + Clone> Claims<T, K> {
    /// Replaces what `key` asks for; returns everybody who wins, loses or has lost to somebody else by that.
    pub fn replace(&mut self, key: &K, rank: Rank, targets: &BTreeSet<T>) -> BTreeSet<K> {
        let mut affected = BTreeSet::new();
        let is_same = |(old_rank, old): &(Rank, Box<[T]>)| *old_rank == rank && old.iter().eq(targets);
        if self.held.get(key).map_or(targets.is_empty(), is_same) {
            return affected;
        }
        let (key, (_, old)) =
            self.held.remove_entry(key).unwrap_or_else(|| (Arc::new(key.clone()), (rank, Box::default())));
        for target in old.iter().chain(targets).copied().collect::<BTreeSet<T>>() {
            let claimants = self.claimants.entry(target).or_default();
            let before = claimants.first().cloned();
            claimants.retain(|(_, other)| *other != key);
            if targets.contains(&target) {
                let claim = (rank, Arc::clone(&key));
                let place = claimants.partition_point(|other| *other < claim);
                // Hardly ever is there another one.
                claimants.reserve_exact(1);
                claimants.insert(place, claim);
            }
            if claimants.first() != before.as_ref() {
                affected.extend(claimants.iter().map(|(_, other)| K::clone(other)));
            }
            if claimants.is_empty() {
                self.claimants.remove(&target);
            }
        }
        if !targets.is_empty() {
            self.held.insert(key, (rank, targets.iter().copied().collect()));
        }
        affected
    }
    /// Who gets it.
    pub fn winner(&self, target: &T) -> Option<&K> {
        self.claimants.get(target).and_then(|claimants| claimants.first()).map(|(_, key)| &**key)
    }
}

impl<T, K> Default for Claims<T, K> {
    fn default() -> Self {
        Self { claimants: BTreeMap::new(), held: BTreeMap::new() }
    }
}
