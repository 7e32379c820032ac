//! Longest-prefix-match maps of source ranges.

use std::fmt;
use std::path::Path;

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData, MapError};
use ipnet::IpNet;
use proxy_common::Address;
use proxy_common::source_range::{SERVICE_BITS, SourceRange};

use super::error::OpenError;
use super::map::{errno, explain, open};
use super::plan::RangeAt;

/// SOURCE_RANGES4 or SOURCE_RANGES6.
pub struct Trie<A: Address> {
    name: &'static str,
    entries: u32,
    map: LpmTrie<MapData, SourceRange<A>, u32>,
}

impl<A: Address> Trie<A> {
    /// Opens a pinned map.
    pub fn open(directory: &Path, name: &'static str) -> Result<Self, OpenError> {
        let (map, info) = open(directory, name)?;
        let map = Map::from_map_data(map).and_then(LpmTrie::try_from);
        let map = map.map_err(|error| OpenError::Map { map: name.to_owned(), error })?;
        Ok(Self { name, entries: info.max_entries(), map })
    }

    /// Returns the name of the map.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the most ranges that it can have.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Adds a range; returns false if it is of the other family.
    pub fn insert(&mut self, range: RangeAt) -> Result<bool, String> {
        let Some(key) = key::<A>(range) else { return Ok(false) };
        let inserted = self.map.insert(&key, 1, 0);
        inserted.map(|()| true).map_err(|error| explain(self.name, self.entries, &error))
    }

    /// Removes a range if it is there; returns false if it is of the other family.
    pub fn remove(&mut self, range: RangeAt) -> Result<bool, String> {
        let Some(key) = key::<A>(range) else { return Ok(false) };
        match self.map.remove(&key) {
            Err(error) if errno(&error) != Some(libc::ENOENT) => {
                Err(explain(self.name, self.entries, &error))
            }
            _ => Ok(true),
        }
    }

    /// Returns whether a range of a Service has an address, as the programs look it up.
    pub fn has(&self, service: u32, address: A) -> Result<bool, OpenError> {
        let length = SERVICE_BITS + A::WORDS as u32 * u32::BITS;
        match self.map.get(&Key::new(length, SourceRange { service, address }), 0) {
            Ok(_) => Ok(true),
            Err(MapError::KeyNotFound) => Ok(false),
            Err(error) => Err(OpenError::Map { map: self.name.to_owned(), error }),
        }
    }

    /// Returns all ranges except those with an impossible prefix length, which no look-up finds.
    pub fn all(&self) -> Result<Vec<RangeAt>, OpenError> {
        let ranges = self.map.keys().filter_map(|key| key.map(range).transpose());
        ranges
            .collect::<Result<_, MapError>>()
            .map_err(|error| OpenError::Map { map: self.name.to_owned(), error })
    }
}

impl<A: Address> fmt::Debug for Trie<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trie").field("name", &self.name).finish_non_exhaustive()
    }
}

fn key<A: Address>(range: RangeAt) -> Option<Key<SourceRange<A>>> {
    let RangeAt { service, net } = range;
    let address = A::from_ip(net.addr())?;
    Some(Key::new(SERVICE_BITS + u32::from(net.prefix_len()), SourceRange { service, address }))
}

/// Returns the range of a key: the inverse of [`key`].
fn range<A: Address>(key: Key<SourceRange<A>>) -> Option<RangeAt> {
    let SourceRange { service, address } = key.data();
    let length = u8::try_from(key.prefix_len().checked_sub(SERVICE_BITS)?).ok()?;
    let net = IpNet::new(address.to_ip(), length).ok()?;
    Some(RangeAt { service, net })
}

#[cfg(test)]
mod tests {
    use proxy_common::{Addr4, Addr6};

    use super::*;

    #[test]
    fn ranges_survive_the_round_trip_and_the_other_family_is_refused() {
        for net in ["0.0.0.0/0", "10.1.2.0/23", "192.0.2.1/32"] {
            let at = RangeAt { service: 7, net: net.parse().unwrap() };
            assert_eq!(range::<Addr4>(key(at).unwrap()), Some(at));
            assert!(key::<Addr6>(at).is_none());
        }
        for net in ["::/0", "2001:db8::/61", "2001:db8::1/128"] {
            let at = RangeAt { service: 7, net: net.parse().unwrap() };
            assert_eq!(range::<Addr6>(key(at).unwrap()), Some(at));
            assert!(key::<Addr4>(at).is_none());
        }
    }
}
