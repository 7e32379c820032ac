//! FRONTEND_INDEX4/6: copies of frontends, in arrays that the programs search without a call.
//!
//! A look-up in a hash map is a call of the kernel with three more calls below it: a quarter of a packet's
//! time. Here it is a multiplication, a load and a comparison. The index may lack any frontend: then the
//! programs ask FRONTENDS4/6, which has them all. It never differs from FRONTENDS in one that it has
//! (decision 145).

use core::mem::offset_of;
use core::ops::Range;

use crate::addr::Address;
use crate::frontend::{Frontend, FrontendKey};

/// The number of entries in FRONTEND_INDEX4/6: 2 MiB and 4 MiB.
pub const FRONTEND_INDEX_ENTRIES: u32 = 1 << PLACE_BITS;
/// The number of entries, side by side, that a frontend can have. If both are taken, it has none.
pub const FRONTEND_INDEX_CHOICES: u32 = 2;
const PLACE_BITS: u32 = 16;

/// Value of FRONTEND_INDEX4/6: a frontend with its key.
///
/// 32 bytes for IPv4 and 64 for IPv6, so that an entry lies in one cache line. The programs only read it;
/// the agent stores [`words`](Self::words).
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub struct IndexedFrontend<A> {
    /// The address in the key.
    pub address: A,
    /// The rest of the key: [`ports`]. Zero = the entry is empty, whatever the other fields are.
    pub ports: u32,
    /// The value.
    pub frontend: Frontend,
}

const _: () = assert!(size_of::<IndexedFrontend<crate::Addr4>>() == 32);
const _: () = assert!(size_of::<IndexedFrontend<crate::Addr6>>() == 64);

/// An entry as 64-bit words; those behind [`IndexedFrontend::WORDS`] are zero.
pub type Words = [u64; 8];

/// Returns port, protocol and scope of a key in one word, as they lie in memory. Never zero.
#[inline(always)]
#[must_use]
pub const fn ports<A>(key: &FrontendKey<A>) -> u32 {
    key.port as u32 | (key.protocol as u32) << 16 | (key.scope as u32) << 24
}

/// Returns the first of the [`FRONTEND_INDEX_CHOICES`] entries that a key can have.
#[inline(always)]
#[must_use]
pub fn first_choice<A: Address>(key: &FrontendKey<A>) -> u32 {
    // Odd factors, one a word: the products do not wait for each other. The upper bits of the sum depend on
    // every bit of the key. Addresses differ in their last word most, as numbers one after the other, which
    // the golden ratio spreads evenly.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    const FACTORS: [u64; 4] = [GOLDEN, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];
    const OF_PORTS: u64 = 0xc2b2_ae3d_27d4_eb4f;
    let words = key.address.words().iter().rev().map(|word| u32::from_be(*word));
    let products = words.zip(FACTORS).map(|(word, factor)| product(word, factor));
    let sum = products.fold(product(ports(key), OF_PORTS), u64::wrapping_add);
    (sum >> (u64::BITS - PLACE_BITS)) as u32 & !(FRONTEND_INDEX_CHOICES - 1)
}

/// Returns the entries that a key can have.
#[inline(always)]
#[must_use]
pub fn choices<A: Address>(key: &FrontendKey<A>) -> Range<u32> {
    let first = first_choice(key);
    first..first + FRONTEND_INDEX_CHOICES
}

#[inline(always)]
const fn product(word: u32, factor: u64) -> u64 {
    (word as u64).wrapping_mul(factor)
}

impl<A: Address> IndexedFrontend<A> {
    /// The number of 64-bit words in an entry: 4 or 8.
    pub const WORDS: u32 = (size_of::<Self>() / size_of::<u64>()) as u32;
    /// The index of the word with [`ports`](Self::ports). It is stored last, and cleared first.
    pub const GATE: u32 = (offset_of!(Self, ports) / size_of::<u64>()) as u32;

    /// Returns whether this is the entry of a key.
    #[inline(always)]
    pub fn is(&self, key: &FrontendKey<A>) -> bool {
        self.ports == ports(key) && self.address == key.address
    }

    /// Returns whether the words of an entry are those of a key.
    #[must_use]
    pub fn has_key(words: &Words, key: &FrontendKey<A>) -> bool {
        let halves = words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
        let fields = key.address.words().iter().copied().chain([ports(key)]);
        fields.zip(halves).all(|(field, half)| field == half)
    }

    /// Returns an entry as the words of the map.
    #[must_use]
    pub fn words(key: &FrontendKey<A>, frontend: &Frontend) -> Words {
        let Frontend { service, cluster_service, flags, affinity_seconds } = *frontend;
        let rest = [ports(key), service, cluster_service, flags, affinity_seconds];
        let mut halves = key.address.words().iter().copied().chain(rest).map(u64::from);
        // The programs are for little-endian machines.
        [(); 8].map(|()| halves.next().unwrap_or(0) | halves.next().unwrap_or(0) << 32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::frontend::{SCOPE_EXTERNAL, SCOPE_INTERNAL};
    use crate::{Addr4, Addr6};

    const FRONTEND: Frontend =
        Frontend { service: 7, cluster_service: 8, flags: 0x3000_0001, affinity_seconds: 10800 };

    fn key<A>(address: A, port: u16, scope: u8) -> FrontendKey<A> {
        FrontendKey { address, port: port.to_be(), protocol: 6, scope }
    }

    /// What a program reads in the words that the agent stores.
    fn read<A: Address>(words: [u64; 8]) -> IndexedFrontend<A> {
        #[repr(C, align(64))]
        struct Place([u64; 8]);
        let place = Place(words);
        // SAFETY: integers, as large and as aligned as the entry.
        unsafe { (&raw const place.0).cast::<IndexedFrontend<A>>().read() }
    }

    fn assert_round_trip<A: Address + std::fmt::Debug>(address: A, gate: u32) {
        let key = key(address, 443, SCOPE_EXTERNAL);
        let words = IndexedFrontend::words(&key, &FRONTEND);
        let entry = read::<A>(words);
        assert_eq!((entry.is(&key), entry.frontend), (true, FRONTEND));
        let other = self::key(address, 443, SCOPE_INTERNAL);
        assert!(!entry.is(&other));
        let has_key = |key| IndexedFrontend::has_key(&words, key);
        assert!(has_key(&key) && !has_key(&other));
        assert!(words.iter().skip(IndexedFrontend::<A>::WORDS as usize).all(|word| *word == 0));
        assert_eq!(IndexedFrontend::<A>::GATE, gate);
        let mut closed = words;
        closed[gate as usize] = 0;
        assert_eq!(read::<A>(closed).ports, 0);
    }

    #[test]
    fn programs_read_what_the_agent_stores() {
        assert_round_trip(Addr4::from(Ipv4Addr::new(192, 0, 2, 10)), 0);
        assert_round_trip(Addr6::from(Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6)), 2);
    }

    /// Returns how many of the keys have an entry.
    fn placed<A: Address>(keys: impl Iterator<Item = FrontendKey<A>>) -> u32 {
        let mut taken = BTreeMap::<u32, u32>::new();
        keys.for_each(|key| *taken.entry(first_choice(&key)).or_default() += 1);
        assert!(taken.keys().all(|first| first + FRONTEND_INDEX_CHOICES <= FRONTEND_INDEX_ENTRIES));
        taken.values().map(|count| *count.min(&FRONTEND_INDEX_CHOICES)).sum()
    }

    #[test]
    fn nearly_all_of_twenty_thousand_frontends_have_an_entry() {
        let cluster_ips = |n: u32| Addr4::from(Ipv4Addr::from(0x0a60_0000 + n));
        let v6 = |n: u32| Addr6::from(Ipv6Addr::from((0xfd00_0096_u128 << 96) + u128::from(n)));
        let scopes = [SCOPE_INTERNAL, SCOPE_EXTERNAL];
        let of = |n: u32, ports: fn(u32) -> u16| scopes.map(|scope| (n, ports(n), scope));
        let services = || (0..10_000).flat_map(|n| of(n, |_| 80));
        let ports = || (0..10_000).flat_map(|n| of(n, |n| 30_000 + (n % 2_768) as u16));
        let all = [
            placed(services().map(|(n, port, scope)| key(cluster_ips(n), port, scope))),
            placed(services().map(|(n, port, scope)| key(v6(n), port, scope))),
            placed(ports().map(|(n, port, scope)| key(cluster_ips(n / 2_768), port, scope))),
            placed(ports().map(|(n, port, scope)| key(v6(n / 2_768), port, scope))),
        ];
        assert!(all.iter().all(|placed| *placed > 19_000), "{all:?}");
    }
}
