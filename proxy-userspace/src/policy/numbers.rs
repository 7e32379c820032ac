//! Numbers that stay the same from one result to the next, so that only entries that changed are written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use super::rule_set::RuleSet;
use super::sets::{PeerSet, SetNumbers};
use crate::model::fnv1a;

/// The numbers of one result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    pub sets: BTreeMap<Arc<PeerSet>, u32>,
    /// The classes, by the sets that their addresses are in. That of no set is 0.
    pub classes: BTreeMap<SetNumbers, u32>,
    pub profiles: BTreeMap<RuleSet, u32>,
}

/// Numbers keys. A key that the former result has keeps its number. The number of another key is a hash of it, or the
/// next one that is neither taken nor one of the former result.
///
/// An agent that starts so gives the same numbers to the same rules as the one before it, and finds its tables as they
/// should be.
pub(super) fn keep<K: Ord + Debug>(
    keys: BTreeSet<K>,
    former: &BTreeMap<K, u32>,
    range: Range<u32>,
) -> BTreeMap<K, u32> {
    let mut used: BTreeSet<u32> = former.values().copied().collect();
    let mut number = |key: &K| {
        if let Some(number) = former.get(key) {
            return Some(*number);
        }
        let number = number(key, &used, range.clone())?;
        used.insert(number);
        Some(number)
    };
    keys.into_iter().filter_map(|key| Some((number(&key)?, key))).map(|(number, key)| (key, number)).collect()
}

/// Returns the number of a new key; `None` if all are taken.
pub(super) fn number(key: &impl Debug, used: &BTreeSet<u32>, range: Range<u32>) -> Option<u32> {
    let first = range.start + hash(key) % (range.end - range.start).max(1);
    (first..range.end).chain(range.start..first).find(|number| !used.contains(number))
}

/// FNV-1a over the key's text, folded to half its width.
fn hash(key: &impl Debug) -> u32 {
    let hash = fnv1a(format!("{key:?}").bytes());
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
    half(hash) ^ half(hash >> u32::BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_same_number_wherever_it_is_asked_for_and_no_two_share_one() {
        let numbers =
            |keys: &[&'static str], range| keep(keys.iter().copied().collect(), &BTreeMap::new(), range);
        let (alone, both) = (numbers(&["b"], 1..u32::MAX), numbers(&["a", "b"], 1..u32::MAX));
        assert_eq!(alone["b"], both["b"]);
        // With three numbers for three keys, each number is taken once.
        let few: BTreeSet<u32> = numbers(&["a", "b", "c"], 1..4).into_values().collect();
        assert_eq!(few, [1, 2, 3].into());
        assert!(numbers(&["a", "b"], 1..2).len() == 1, "without a number, a key is left out");
    }

    #[test]
    fn a_number_of_the_former_result_is_given_to_no_other_key() {
        let former = keep(["a", "b"].into(), &BTreeMap::new(), 1..4);
        let next = keep(["b", "c"].into(), &former, 1..4);
        assert_eq!(next["b"], former["b"]);
        assert!(!former.values().any(|number| *number == next["c"]));
    }
}
