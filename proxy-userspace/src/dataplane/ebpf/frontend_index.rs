//! FRONTEND_INDEX4/6: the copies of frontends that the programs search first.
//!
//! The index follows FRONTENDS. Before a frontend changes there, its copy is closed, and the programs find
//! it in FRONTENDS. New copies come with the next housekeeping. No program may read half of an old copy and
//! half of a new one. So nothing is written to an entry before the programs that saw it open have ended, and
//! an entry opens after the programs that may see half of it have ended.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use aya::Pod;
use proxy_common::Address;
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::frontend_index::{
    FRONTEND_INDEX_CHOICES, FRONTEND_INDEX_ENTRIES, IndexedFrontend, Words, choices, first_choice,
};

use super::error::OpenError;
use super::map::mapped;
use super::mapped::{Access, MappedArray};

/// The index of one family.
pub struct FrontendIndex<A> {
    words: MappedArray,
    family: PhantomData<A>,
}

/// Entries to be written, by index.
pub type Missing = Vec<(u32, Words)>;

impl<A: Address> FrontendIndex<A>
where
    FrontendKey<A>: Pod,
{
    /// Maps the pinned index into memory.
    pub fn open(directory: &Path, name: &'static str, access: Access) -> Result<Self, OpenError> {
        Ok(Self { words: mapped(directory, name, access)?, family: PhantomData })
    }

    /// Closes the copy of a frontend, if there is one: from now on the programs ask FRONTENDS.
    pub fn close(&self, key: &FrontendKey<A>) {
        for index in choices(key) {
            if IndexedFrontend::has_key(&self.entry(index), key) {
                self.store(index, Self::GATE, 0);
            }
        }
    }

    /// Closes entries that differ from all of FRONTENDS, and returns the frontends that lack a copy and could
    /// have one.
    pub fn compare(&self, frontends: &[(FrontendKey<A>, Frontend)]) -> Missing {
        let mut wanted = BTreeMap::<u32, Vec<Words>>::new();
        for (key, value) in frontends {
            wanted.entry(first_choice(key)).or_default().push(IndexedFrontend::words(key, value));
        }
        let mut missing = Missing::new();
        for first in (0..FRONTEND_INDEX_ENTRIES).step_by(FRONTEND_INDEX_CHOICES as usize) {
            let mut lacking = wanted.remove(&first).unwrap_or_default();
            let mut free = Vec::new();
            for index in first..first + FRONTEND_INDEX_CHOICES {
                let entry = self.entry(index);
                if let Some(known) = lacking.iter().position(|words| *words == entry) {
                    lacking.swap_remove(known);
                    continue;
                }
                // Only if it is open: a store takes the line from the CPUs that read it.
                if self.words.load(index * Self::WORDS + Self::GATE) != 0 {
                    self.store(index, Self::GATE, 0);
                }
                free.push(index);
            }
            missing.extend(free.into_iter().zip(lacking));
        }
        missing
    }

    /// Writes entries, which stay closed.
    pub fn write(&self, missing: &Missing) {
        self.store_words(missing, |word| word != Self::GATE);
    }

    /// Opens written entries.
    pub fn open_entries(&self, missing: &Missing) {
        self.store_words(missing, |word| word == Self::GATE);
    }

    fn store_words(&self, missing: &Missing, is_wanted: impl Fn(u32) -> bool) {
        for (index, words) in missing {
            let wanted = (0..Self::WORDS).zip(words).filter(|(word, _)| is_wanted(*word));
            wanted.for_each(|(word, value)| self.store(*index, word, *value));
        }
    }

    fn entry(&self, index: u32) -> Words {
        let mut words = Words::default();
        let places = index * Self::WORDS..(index + 1) * Self::WORDS;
        words.iter_mut().zip(places).for_each(|(word, place)| *word = self.words.load(place));
        words
    }

    fn store(&self, index: u32, word: u32, value: u64) {
        let is_stored = self.words.store(index * Self::WORDS + word, value);
        debug_assert!(is_stored, "the index ends before {index}");
    }

    const WORDS: u32 = IndexedFrontend::<A>::WORDS;
    const GATE: u32 = IndexedFrontend::<A>::GATE;
}

impl<A> fmt::Debug for FrontendIndex<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontendIndex").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proxy_common::Addr4;
    use proxy_common::frontend::{SCOPE_EXTERNAL, SCOPE_INTERNAL};

    use super::*;
    use crate::dataplane::ebpf::convert::frontend_key;
    use crate::dataplane::ebpf::maps::Maps;
    use crate::dataplane::ebpf::plan::{Change, FrontendAt, Kernel};
    use crate::dataplane::ebpf::scratch::Scratch;

    const OLD: Frontend = Frontend { service: 7, cluster_service: 8, flags: 1, affinity_seconds: 9 };
    const NEW: Frontend = Frontend { flags: 2, ..OLD };

    fn at(address: &str, scope: u8) -> FrontendAt {
        let address: SocketAddr = address.parse().unwrap();
        FrontendAt { address, protocol: 6, scope }
    }

    fn copy_of<A: Address>(index: &FrontendIndex<A>, at: &FrontendAt) -> Option<Frontend>
    where
        FrontendKey<A>: Pod,
    {
        let key = frontend_key::<A>(at)?;
        let entries = choices(&key).map(|place| index.entry(place));
        let words = entries.into_iter().find(|words| IndexedFrontend::has_key(words, &key))?;
        let halves = words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        let value: Vec<u32> = halves.skip(A::WORDS + 1).take(4).collect();
        let [service, cluster_service, flags, affinity_seconds] = value.try_into().unwrap();
        Some(Frontend { service, cluster_service, flags, affinity_seconds })
    }

    fn copies(maps: &Maps, frontends: &[FrontendAt]) -> Vec<Option<Frontend>> {
        let copy =
            |at| copy_of(&maps.of4.frontend_index, at).or_else(|| copy_of(&maps.of6.frontend_index, at));
        frontends.iter().map(copy).collect()
    }

    #[test]
    fn a_copy_closes_before_its_frontend_changes_and_comes_back_when_the_index_is_filled() {
        let scratch = Scratch::new("index");
        let mut dataplane = scratch.open();
        let maps = &mut dataplane.maps;
        let all = [at("192.0.2.1:80", SCOPE_EXTERNAL), at("[2001:db8::1]:80", SCOPE_INTERNAL)];
        let write = |maps: &mut Maps, value| {
            for at in &all {
                maps.apply(&Change::Frontend(*at, value)).unwrap();
            }
        };
        write(maps, OLD);
        assert_eq!(copies(maps, &all), [None, None]);
        maps.fill_frontend_index().unwrap();
        assert_eq!(copies(maps, &all), [Some(OLD), Some(OLD)]);
        write(maps, NEW);
        assert_eq!(copies(maps, &all), [None, None], "an old copy would serve what FRONTENDS has no more");
        maps.fill_frontend_index().unwrap();
        assert_eq!(copies(maps, &all), [Some(NEW), Some(NEW)]);
        for at in &all {
            maps.apply(&Change::RemoveFrontend(*at)).unwrap();
        }
        assert_eq!(copies(maps, &all), [None, None]);
        maps.fill_frontend_index().unwrap();
        assert_eq!(copies(maps, &all), [None, None]);
    }

    #[test]
    fn more_frontends_than_a_place_has_room_for_stay_in_the_map() {
        let scratch = Scratch::new("crowded");
        let mut dataplane = scratch.open();
        let maps = &mut dataplane.maps;
        let ports = (1..=4).flat_map(|host| (1..=u16::MAX).map(move |port| format!("192.0.2.{host}:{port}")));
        let at_first_place = |at: &FrontendAt| first_choice(&frontend_key::<Addr4>(at).unwrap()) == 0;
        let crowd: Vec<_> = ports.map(|at| self::at(&at, SCOPE_EXTERNAL)).filter(at_first_place).collect();
        assert!(crowd.len() > FRONTEND_INDEX_CHOICES as usize, "too few keys share a place: {crowd:?}");
        for at in &crowd {
            maps.apply(&Change::Frontend(*at, OLD)).unwrap();
        }
        maps.fill_frontend_index().unwrap();
        let indexed = copies(maps, &crowd).into_iter().flatten().count();
        assert_eq!(indexed, FRONTEND_INDEX_CHOICES as usize);
        assert_eq!(maps.of4.frontends.count().unwrap(), crowd.len());
    }

    #[test]
    fn a_copy_of_nothing_is_closed() {
        let scratch = Scratch::new("stale");
        let mut dataplane = scratch.open();
        let maps = &mut dataplane.maps;
        let all = [at("192.0.2.1:80", SCOPE_EXTERNAL)];
        maps.apply(&Change::Frontend(all[0], OLD)).unwrap();
        maps.fill_frontend_index().unwrap();
        let key = frontend_key::<Addr4>(&all[0]).unwrap();
        maps.of4.frontends.remove(&key).unwrap();
        assert_eq!(copies(maps, &all), [Some(OLD)]);
        maps.fill_frontend_index().unwrap();
        assert_eq!(copies(maps, &all), [None]);
    }
}
