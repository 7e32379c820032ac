//! Compact collections for objects that exist a hundred thousand times. A leaf of a tree has room
//! for eleven entries and mostly holds one.

/// A sorted map with one entry in place, or more without spare room.
#[derive(Clone, Debug, Default)]
pub enum SmallMap<K, V> {
    /// No entry.
    #[default]
    None,
    /// One entry.
    One((K, V)),
    /// Several entries, sorted. Removals may leave fewer.
    More(Vec<(K, V)>),
}

impl<K: Ord, V> SmallMap<K, V> {
    /// Returns whether the map is empty.
    pub const fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Inserts or replaces a value.
    pub fn insert(&mut self, key: K, value: V) {
        match self.position(&key) {
            Ok(at) => {
                if let Some(entry) = self.entries_mut().get_mut(at) {
                    entry.1 = value;
                }
            }
            Err(at) => {
                let mut entries = match std::mem::take(self) {
                    Self::None => {
                        *self = Self::One((key, value));
                        return;
                    }
                    Self::One(entry) => vec![entry],
                    Self::More(entries) => entries,
                };
                entries.reserve_exact(1);
                entries.insert(at, (key, value));
                *self = Self::More(entries);
            }
        }
    }

    /// Removes a value and returns whether there was one.
    pub fn remove(&mut self, key: &K) -> bool {
        let Ok(at) = self.position(key) else { return false };
        *self = match std::mem::take(self) {
            Self::None | Self::One(_) => Self::None,
            Self::More(mut entries) => {
                entries.remove(at);
                Self::More(entries)
            }
        };
        true
    }

    /// Returns the keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries().iter().map(|(key, _)| key)
    }

    /// Returns the values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries().iter().map(|(_, value)| value)
    }

    const fn entries(&self) -> &[(K, V)] {
        match self {
            Self::None => &[],
            Self::One(entry) => std::slice::from_ref(entry),
            Self::More(entries) => entries.as_slice(),
        }
    }

    const fn entries_mut(&mut self) -> &mut [(K, V)] {
        match self {
            Self::None => &mut [],
            Self::One(entry) => std::slice::from_mut(entry),
            Self::More(entries) => entries.as_mut_slice(),
        }
    }

    fn position(&self, key: &K) -> Result<usize, usize> {
        self.entries().binary_search_by(|(other, _)| other.cmp(key))
    }
}

/// A map by ids that are allocated in order.
#[derive(Clone, Debug)]
pub struct ById<T> {
    entries: Vec<Option<T>>,
}

impl<T> ById<T> {
    /// Returns an empty map.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Returns the entry of an id.
    pub fn get(&self, id: u32) -> Option<&T> {
        self.entries.get(index(id))?.as_ref()
    }

    /// Returns the entry of an id, mutable.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.entries.get_mut(index(id))?.as_mut()
    }

    /// Inserts the entry of an id and returns the previous one.
    pub fn insert(&mut self, id: u32, entry: T) -> Option<T> {
        let at = index(id);
        if at >= self.entries.len() {
            self.entries.resize_with(at + 1, || None);
        }
        self.entries.get_mut(at)?.replace(entry)
    }

    /// Removes the entry of an id.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        self.entries.get_mut(index(id))?.take()
    }

    /// Returns all entries, by id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(id, entry)| Some((id, entry.as_ref()?)))
    }
}

fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Both behave like a tree.
        #[test]
        fn small_map_and_by_id_do_what_a_tree_does(
            steps in proptest::collection::vec((0_u32..9, any::<bool>(), any::<u8>()), 0..60),
        ) {
            let (mut tree, mut small, mut by_id) = (BTreeMap::new(), SmallMap::<u32, u8>::None, ById::new());
            for (key, insert, value) in steps {
                if insert {
                    small.insert(key, value);
                    prop_assert_eq!(by_id.insert(key, value), tree.insert(key, value));
                } else {
                    let removed = tree.remove(&key);
                    prop_assert_eq!(small.remove(&key), removed.is_some());
                    prop_assert_eq!(by_id.remove(key), removed);
                }
                prop_assert_eq!(small.is_empty(), tree.is_empty());
                prop_assert!(small.keys().eq(tree.keys()) && small.values().eq(tree.values()));
                prop_assert!(by_id.iter().eq(tree.iter().map(|(key, value)| (*key, value))));
                prop_assert_eq!(by_id.get(key), tree.get(&key));
                prop_assert_eq!(by_id.get_mut(key), tree.get_mut(&key));
            }
        }
    }
}
