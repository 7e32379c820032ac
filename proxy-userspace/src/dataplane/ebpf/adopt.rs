//! The content of the maps, as an earlier agent left them.

use std::collections::BTreeSet;

use proxy_common::Address;
use proxy_common::addr::unmapped;
use proxy_common::selection::{BackendRef, ServiceEntry, Slot};
use proxy_common::vip::{FILTER_SERVED, FILTER_VIP};

use super::convert::{backend_entry, frontend_at};
use super::error::OpenError;
use super::maps::{FamilyMaps, Maps};
use super::plan::{BackendId, Capacities, Found};
use super::settings::Sizes;
use crate::model::Family;

impl Maps {
    /// Returns the actual sizes of the maps.
    #[must_use]
    pub fn capacities(&self) -> Capacities {
        Capacities {
            services: self.services.len(),
            slots: self.selection.len(),
            backends_v4: self.of4.backends.entries(),
            backends_v6: self.of6.backends.entries(),
            ways: self.ways.entries(),
        }
    }

    /// Returns the room for Services and nodes. An earlier agent may have made larger maps than this one's `sizes`.
    #[must_use]
    pub fn room(&self, sizes: Sizes) -> Sizes {
        Sizes {
            services: self.services.len(),
            hints: self.hints.entries(),
            frontends: self.of4.frontends.entries().min(self.of6.frontends.entries()),
            backends: self.of4.backends.entries().min(self.of6.backends.entries()),
            slots: self.selection.len(),
            nodes: self.ways.entries(),
            source_ranges: self.of4.source_ranges.entries().min(self.of6.source_ranges.entries()),
            ..sizes
        }
    }

    /// Returns the content of the maps.
    pub fn found(&self) -> Result<Found, OpenError> {
        let mut found =
            Found { services: self.found_services()?, slots: self.found_slots(), ..Found::default() };
        found_family(&self.of4, Family::V4, &mut found)?;
        found_family(&self.of6, Family::V6, &mut found)?;
        for (id, way) in self.ways.all()? {
            if way.target != [0; 4] {
                found.ways.push((id, unmapped(way.target), way));
            }
        }
        let narrowed = self.narrowed.all()?.into_iter().filter(|(_, narrowing)| *narrowing != 0);
        found.narrowed = narrowed.map(|(id, _)| id).collect();
        self.hints.for_each(|key, reference| {
            found.hints.push((key, BackendRef(reference)));
            true
        })?;
        self.peers.for_each(|key, bits| {
            found.peers.push((unmapped(key.address), bits));
            true
        })?;
        self.vips.for_each(|key, bits| {
            let address = unmapped(key.address);
            // An address without its bits counts as missing, because no program looks for it.
            if self.has_marked(address, FILTER_SERVED | FILTER_VIP) {
                found.vips.push((address, bits));
            }
            true
        })?;
        found.devices = self.devices.all()?;
        Ok(found)
    }

    /// Returns the ids with a name or a word. A word without a name belongs to no list and gets a
    /// name that no port claims.
    fn found_services(&self) -> Result<Vec<(u32, String, ServiceEntry)>, OpenError> {
        let mut services = Vec::new();
        let mut named = BTreeSet::new();
        self.names.for_each(|id, name| {
            let text = name.text().map_or_else(|| nameless(id), str::to_owned);
            services.push((id, text, ServiceEntry(self.services.load(id))));
            named.insert(id)
        })?;
        let unnamed = (1..self.services.len()).filter(|id| !named.contains(id));
        let words = unnamed.map(|id| (id, nameless(id), ServiceEntry(self.services.load(id))));
        services.extend(words.filter(|(_, _, entry)| entry.0 != 0));
        services.sort_by_key(|(id, _, _)| *id);
        Ok(services)
    }

    /// Returns the slots up to the last one in use. A copy of all would take 8 MB.
    fn found_slots(&self) -> Vec<Slot> {
        let used = self.selection.all().rposition(|word| word != 0).map_or(0, |last| last + 1);
        self.selection.all().take(used).map(Slot).collect()
    }
}

fn nameless(id: u32) -> String {
    format!("#{id}")
}

fn found_family<A: Address>(
    maps: &FamilyMaps<A>,
    family: Family,
    found: &mut Found,
) -> Result<(), OpenError> {
    for (id, backend) in maps.backends.all()? {
        if id != 0 && backend.address != A::default() {
            found.backends.push((BackendId { family, id }, backend_entry(&backend)));
        }
    }
    found.ranges.extend(maps.source_ranges.all()?);
    maps.frontends.for_each(|key, value| {
        found.frontends.push((frontend_at(&key), value));
        true
    })
}
