//! The difference between the wanted and the actual entries of one kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::PortKey;

/// The owner of a wanted entry: a Service port, or the node itself.
pub type Owner = Option<Arc<PortKey>>;

/// The wanted and the actual value of each key, and the keys that may differ.
#[derive(Clone, Debug)]
pub struct Delta<K, V> {
    wanted: BTreeMap<K, Wanted<V>>,
    actual: BTreeMap<K, V>,
    /// Keys with values that may differ.
    touched: BTreeSet<K>,
    /// Keys that the kernel already had and that no owner has wanted since.
    unclaimed: BTreeSet<K>,
}

#[derive(Clone, Debug)]
struct Wanted<V> {
    value: V,
    owners: BTreeSet<Owner>,
}

/// The difference between the wanted and the actual value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference<V> {
    /// The wanted value, which the kernel lacks.
    Missing(V),
    /// The wanted value, and the different value in the kernel.
    Other(V, V),
    /// The kernel's value, which no owner wants.
    Extra(V),
}

impl<K, V> Default for Delta<K, V> {
    fn default() -> Self {
        Self {
            wanted: BTreeMap::new(),
            actual: BTreeMap::new(),
            touched: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Clone, V: PartialEq + Clone> Delta<K, V> {
    /// Takes the state of the kernel as the actual values.
    pub fn adopt(&mut self, actual: BTreeMap<K, V>) {
        self.touched.extend(self.wanted.keys().cloned());
        self.touched.extend(actual.keys().cloned());
        self.unclaimed = actual.keys().filter(|key| !self.wanted.contains_key(key)).cloned().collect();
        self.actual = actual;
    }

    /// Records that `owner` wants `value` for `key`. The value of the last owner counts.
    pub fn want(&mut self, owner: &Owner, key: K, value: V) {
        self.touched.insert(key.clone());
        self.unclaimed.remove(&key);
        let wanted = self.wanted.entry(key);
        let wanted = wanted.or_insert_with(|| Wanted { value: value.clone(), owners: BTreeSet::new() });
        wanted.value = value;
        wanted.owners.insert(owner.clone());
    }

    /// Records that `owner` no longer wants `key`.
    pub fn release(&mut self, owner: &Owner, key: &K) {
        self.touched.insert(key.clone());
        let Some(wanted) = self.wanted.get_mut(key) else { return };
        wanted.owners.remove(owner);
        if wanted.owners.is_empty() {
            self.wanted.remove(key);
        }
    }

    pub fn is_wanted(&self, key: &K) -> bool {
        self.wanted.contains_key(key)
    }

    pub fn is_unclaimed(&self, key: &K) -> bool {
        self.unclaimed.contains(key)
    }

    /// Returns the first owner of `key`.
    pub fn owner(&self, key: &K) -> Owner {
        self.wanted.get(key).and_then(|wanted| wanted.owners.first().cloned().flatten())
    }

    pub fn actual(&self) -> &BTreeMap<K, V> {
        &self.actual
    }

    /// Returns the keys with different values, in order. Equal keys are not compared again.
    pub fn differences(&mut self) -> Vec<(K, Difference<V>)> {
        let mut differences = Vec::new();
        self.touched.retain(|key| {
            let wanted = self.wanted.get(key).map(|wanted| &wanted.value);
            let difference = match (wanted, self.actual.get(key)) {
                (Some(wanted), None) => Difference::Missing(wanted.clone()),
                (Some(wanted), Some(actual)) if wanted != actual => {
                    Difference::Other(wanted.clone(), actual.clone())
                }
                (None, Some(actual)) => Difference::Extra(actual.clone()),
                _ => return false,
            };
            differences.push((key.clone(), difference));
            true
        });
        differences
    }

    /// Has `key` compared again the next time.
    pub fn touch(&mut self, key: K) {
        self.touched.insert(key);
    }

    /// Records the kernel's value of `key`; `None` = the kernel lacks the key.
    pub fn set_actual(&mut self, key: &K, value: Option<V>) {
        if let Some(value) = value {
            self.actual.insert(key.clone(), value);
        } else {
            self.actual.remove(key);
            self.unclaimed.remove(key);
        }
    }
}
