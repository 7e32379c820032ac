//! Numbers that stay the same from one result to the next, so that only entries that changed are written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::rule_set::RuleSet;
use super::sets::{PeerSet, SetNumbers};

/// The numbers of one result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    pub sets: BTreeMap<Arc<PeerSet>, u32>,
    /// The classes, by the sets that their addresses are in. That of no set is 0.
    pub classes: BTreeMap<SetNumbers, u32>,
    pub profiles: BTreeMap<RuleSet, u32>,
}

/// Numbers keys. A key that the former result has keeps its number. The others get the lowest numbers from `first`
/// on that the former result does not use.
pub(super) fn keep<K: Ord>(keys: BTreeSet<K>, former: &BTreeMap<K, u32>, first: u32) -> BTreeMap<K, u32> {
    let used: BTreeSet<u32> = former.values().copied().collect();
    let mut free = (first..).filter(|number| !used.contains(number));
    let numbered = keys.into_iter().filter_map(|key| {
        let number = former.get(&key).copied().or_else(|| free.next())?;
        Some((key, number))
    });
    numbered.collect()
}
