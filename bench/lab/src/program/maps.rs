//! Typed access to the loaded object's maps, by name.

use std::borrow::Borrow;

use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, MapData, PerCpuArray, PerCpuValues};
use proxy_common::verdict::Counter;
use proxy_common::{Addr4, Addr6, Address};

use super::Bed;
use super::counters::sum;

/// The map of a pair that belongs to an address family.
pub trait FamilyMaps: Address {
    /// "4" or "6".
    const SUFFIX: &'static str;

    /// Returns the name of this family's map of a pair.
    #[must_use]
    fn map(name: &str) -> String {
        format!("{name}{}", Self::SUFFIX)
    }
}

impl FamilyMaps for Addr4 {
    const SUFFIX: &'static str = "4";
}

impl FamilyMaps for Addr6 {
    const SUFFIX: &'static str = "6";
}

impl Bed {
    /// Reads the counter of a Service, summed over the CPUs.
    #[must_use]
    pub fn service_counter(&self, service: u32) -> Counter {
        let ebpf = self.ebpf();
        let map: PerCpuArray<&MapData, Counter> =
            ebpf.map("SERVICE_STATS").expect("SERVICE_STATS").try_into().expect("SERVICE_STATS");
        sum(map.get(&service, 0).expect("a service of this bed").iter())
    }

    /// Writes an entry of an array.
    pub fn set<V: Pod>(&self, map: &str, index: u32, value: impl Borrow<V>) {
        let mut ebpf = self.ebpf();
        let mut array: Array<&mut MapData, V> = ebpf.map_mut(map).expect(map).try_into().expect(map);
        array.set(index, value, 0).unwrap_or_else(|error| panic!("{map}[{index}]: {error:?}"));
    }

    /// Writes an entry of a per-CPU array, the same value on each.
    pub fn set_per_cpu<V: Pod>(&self, map: &str, index: u32, value: V) {
        let mut ebpf = self.ebpf();
        let mut array: PerCpuArray<&mut MapData, V> = ebpf.map_mut(map).expect(map).try_into().expect(map);
        let cpus = aya::util::nr_cpus().expect("the number of CPUs");
        let values = PerCpuValues::try_from(vec![value; cpus]).expect("a value for each CPU");
        array.set(index, values, 0).unwrap_or_else(|error| panic!("{map}[{index}]: {error:?}"));
    }

    /// Reads an entry of an array.
    #[must_use]
    pub fn get<V: Pod>(&self, map: &str, index: u32) -> V {
        let ebpf = self.ebpf();
        let array: Array<&MapData, V> = ebpf.map(map).expect(map).try_into().expect(map);
        array.get(&index, 0).unwrap_or_else(|error| panic!("{map}[{index}]: {error:?}"))
    }

    /// Writes an entry of a hash map.
    pub fn insert<K: Pod, V: Pod>(&self, map: &str, key: impl Borrow<K>, value: impl Borrow<V>) {
        let mut ebpf = self.ebpf();
        let mut hash: HashMap<&mut MapData, K, V> = ebpf.map_mut(map).expect(map).try_into().expect(map);
        hash.insert(key, value, 0).unwrap_or_else(|error| panic!("{map}: {error:?}"));
    }

    /// Removes an entry of a hash map if it is there.
    pub fn remove<K: Pod, V: Pod>(&self, map: &str, key: &K) {
        let mut ebpf = self.ebpf();
        let mut hash: HashMap<&mut MapData, K, V> = ebpf.map_mut(map).expect(map).try_into().expect(map);
        match hash.remove(key) {
            Ok(()) | Err(aya::maps::MapError::KeyNotFound) => {}
            Err(error) => panic!("{map}: {error:?}"),
        }
    }

    /// Writes a prefix of a longest-prefix-match trie.
    pub fn insert_prefix<K: Pod, V: Pod>(&self, map: &str, length: u32, key: K, value: impl Borrow<V>) {
        let mut ebpf = self.ebpf();
        let mut trie: LpmTrie<&mut MapData, K, V> = ebpf.map_mut(map).expect(map).try_into().expect(map);
        trie.insert(&Key::new(length, key), value, 0).unwrap_or_else(|error| panic!("{map}: {error:?}"));
    }

    /// Removes all prefixes of a longest-prefix-match trie.
    pub fn clear_prefixes<K: Pod, V: Pod>(&self, map: &str) {
        let mut ebpf = self.ebpf();
        let mut trie: LpmTrie<&mut MapData, K, V> = ebpf.map_mut(map).expect(map).try_into().expect(map);
        let keys: Vec<Key<K>> =
            trie.keys().collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{map}: {error:?}"));
        for key in &keys {
            trie.remove(key).unwrap_or_else(|error| panic!("{map}: {error:?}"));
        }
    }

    /// Reads all entries of a hash map.
    #[must_use]
    pub fn entries<K: Pod, V: Pod>(&self, map: &str) -> Vec<(K, V)> {
        let ebpf = self.ebpf();
        let hash: HashMap<&MapData, K, V> = ebpf.map(map).expect(map).try_into().expect(map);
        hash.iter().collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{map}: {error:?}"))
    }
}
