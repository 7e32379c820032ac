//! FRONTEND_INDEX4/6, filled as the agent does.

use aya::Pod;
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::frontend_index::{IndexedFrontend, Words, choices};
use proxy_common::{Addr4, Addr6};

use super::Bed;
use super::maps::FamilyMaps;

const MAP: &str = "FRONTEND_INDEX";

impl Bed {
    /// Copies a frontend into the index, unless the entries that it can have are taken.
    pub(super) fn index_frontend<A: FamilyMaps>(&self, key: &FrontendKey<A>, frontend: &Frontend) {
        let words = IndexedFrontend::words(key, frontend);
        let gate = IndexedFrontend::<A>::GATE as usize;
        let known = choices(key).find(|index| IndexedFrontend::has_key(&self.indexed::<A>(*index), key));
        let free = || choices(key).find(|index| self.indexed::<A>(*index)[gate] == 0);
        if let Some(index) = known.or_else(free) {
            self.set_indexed::<A>(index, words);
        }
    }

    /// Empties the index: the programs find the same frontends in FRONTENDS.
    pub fn clear_frontend_index(&self) {
        self.clear_index_of::<Addr4>();
        self.clear_index_of::<Addr6>();
    }

    /// Runs something while FRONTENDS is empty and the index is not.
    pub fn without_frontends(&self, run: impl FnOnce()) {
        let (of4, of6) = (self.take_frontends::<Addr4>(), self.take_frontends::<Addr6>());
        run();
        self.put_frontends(of4);
        self.put_frontends(of6);
    }

    fn take_frontends<A: FamilyMaps>(&self) -> Vec<(FrontendKey<A>, Frontend)>
    where
        FrontendKey<A>: Pod,
    {
        let map = A::map("FRONTENDS");
        let taken = self.entries::<FrontendKey<A>, Frontend>(&map);
        for (key, _) in &taken {
            self.remove::<FrontendKey<A>, Frontend>(&map, key);
        }
        taken
    }

    fn put_frontends<A: FamilyMaps>(&self, frontends: Vec<(FrontendKey<A>, Frontend)>)
    where
        FrontendKey<A>: Pod,
    {
        let map = A::map("FRONTENDS");
        for (key, frontend) in frontends {
            self.insert::<FrontendKey<A>, Frontend>(&map, key, frontend);
        }
    }

    fn clear_index_of<A: FamilyMaps>(&self)
    where
        FrontendKey<A>: Pod,
    {
        for (key, _) in self.entries::<FrontendKey<A>, Frontend>(&A::map("FRONTENDS")) {
            choices(&key).for_each(|index| self.set_indexed::<A>(index, [0; 8]));
        }
    }

    fn indexed<A: FamilyMaps>(&self, index: u32) -> Words {
        let map = A::map(MAP);
        if IndexedFrontend::<A>::WORDS == 8 {
            return self.get::<[u64; 8]>(&map, index);
        }
        let [a, b, c, d] = self.get::<[u64; 4]>(&map, index);
        [a, b, c, d, 0, 0, 0, 0]
    }

    fn set_indexed<A: FamilyMaps>(&self, index: u32, words: Words) {
        let map = A::map(MAP);
        if IndexedFrontend::<A>::WORDS == 8 {
            return self.set::<[u64; 8]>(&map, index, words);
        }
        let [a, b, c, d, ..] = words;
        self.set::<[u64; 4]>(&map, index, [a, b, c, d]);
    }
}
