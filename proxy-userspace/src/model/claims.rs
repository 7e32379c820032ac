//! Gives each address and port, or health check port, to one of the Services that request it: the
//! oldest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::Protocol;

/// An address and port that only one service port can have.
pub(super) type Target = (SocketAddr, Protocol);

/// The smaller rank wins: the older Service.
///
/// A Service without creation time counts as younger than all others. Between equals the start of
/// [`PortKey`](super::PortKey)'s order decides: namespace and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(bool, Option<Timestamp>);

impl Rank {
    /// Returns the rank of a Service that was created then.
    #[must_use]
    pub fn new(created: Option<Timestamp>) -> Self {
        Self(created.is_none(), created)
    }
}

/// The keys (`K`) that request each target (`T`).
#[derive(Debug)]
pub(super) struct Claims<T, K> {
    /// The keys that request a target, the winner first.
    claimants: BTreeMap<T, Vec<(Rank, Arc<K>)>>,
    held: BTreeMap<Arc<K>, (Rank, Box<[T]>)>,
}

impl<T: Ord + Copy, K: Ord + Clone> Claims<T, K> {
    /// Replaces the requests of `key`. Returns all keys that win, lose or have lost to another one
    /// by this.
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
                // Two Services almost never request the same target.
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
    /// Returns the key that gets the target.
    pub fn winner(&self, target: &T) -> Option<&K> {
        self.claimants.get(target).and_then(|claimants| claimants.first()).map(|(_, key)| &**key)
    }
}

impl<T, K> Default for Claims<T, K> {
    fn default() -> Self {
        Self { claimants: BTreeMap::new(), held: BTreeMap::new() }
    }
}
