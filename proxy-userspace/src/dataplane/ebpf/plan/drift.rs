//! The comparison of the maps with the plan (drift).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proxy_common::frontend::Frontend;
use proxy_common::hop::Device;
use proxy_common::selection::BackendRef;
use proxy_common::way::Way;

use super::adopt::slots_of;
use super::change::{BackendEntry, BackendId, FrontendAt, RangeAt};
use super::former_table::FormerTable;
use super::slot_allocator::slot_at;
use super::{Found, Plan};
use crate::model::Family;

impl Plan {
    /// Returns the maps whose content differs from the plan: another process changed them. Slots
    /// outside all slices do not count.
    #[must_use]
    pub fn drift(&self, found: &Found) -> Vec<&'static str> {
        [
            ("SERVICES", self.services_match(found)),
            ("SELECTION", self.slots_match(found)),
            ("BACKENDS", self.backends_match(found)),
            ("WAYS", self.ways_match(found)),
            ("HINTS", self.hints_match(found)),
            ("PEERS", self.peers_match(found)),
            ("DEVICES", self.devices_match(found)),
            ("FRONTENDS", self.frontends_match(found)),
            ("SOURCE_RANGES", self.ranges_match(found)),
            ("VIPS", self.vips_match(found)),
        ]
        .into_iter()
        .filter(|(_, matches)| !matches)
        .map(|(name, _)| name)
        .collect()
    }

    /// Restarts the plan from the content of the maps. The next sync restores what is wrong.
    pub fn readopt(&mut self, found: Found, now: Duration) {
        let anew = Self::adopt(self.capacities, found, now);
        let former = std::mem::replace(self, anew);
        self.dispatch = former.dispatch;
        self.nodes.keep_topology(former.nodes);
    }

    fn services_match(&self, found: &Found) -> bool {
        let written = self.services.all().filter(|(_, state)| state.name_written);
        let written: BTreeMap<u32, (&str, u64)> =
            written.map(|(id, state)| (id, (state.name.as_str(), state.entry.0))).collect();
        written == found.services.iter().map(|(id, name, entry)| (*id, (name.as_str(), entry.0))).collect()
    }

    fn slots_match(&self, found: &Found) -> bool {
        self.services.all().all(|(_, state)| {
            let names = |former: FormerTable| slot_at(&found.slots, former.word).0 == former.entry().0;
            state.slots == slots_of(&found.slots, state.slice()) && state.former.is_none_or(names)
        })
    }

    fn backends_match(&self, found: &Found) -> bool {
        let of = |family| {
            let written = self.backends(family).written_entries();
            written.map(move |(id, entry)| (BackendId { family, id }, entry))
        };
        let written: BTreeMap<BackendId, BackendEntry> = of(Family::V4).chain(of(Family::V6)).collect();
        written == found.backends.iter().copied().collect()
    }

    fn ways_match(&self, found: &Found) -> bool {
        let written: BTreeMap<u32, Way> = self.nodes.written_ways().collect();
        let as_written = |(id, _, way): &(u32, IpAddr, Way)| {
            let mtu = written.get(id).map_or(way.mtu, |written| written.mtu);
            let is_narrowed = found.narrowed.contains(id) && (1..mtu).contains(&way.mtu);
            (*id, if is_narrowed { Way { mtu, ..*way } } else { *way })
        };
        same(&written, found.ways.iter().map(as_written))
    }

    fn hints_match(&self, found: &Found) -> bool {
        let written: BTreeSet<(u32, u32, BackendRef)> = self
            .services
            .all()
            .flat_map(|(id, state)| state.hints.iter().map(move |(hint, backend)| (id, *hint, *backend)))
            .collect();
        written == found.hints.iter().map(|(key, backend)| (key.service, key.hint, *backend)).collect()
    }

    fn peers_match(&self, found: &Found) -> bool {
        let written: BTreeMap<IpAddr, u32> = self.nodes.written_peers().collect();
        same(&written, found.peers.iter().copied())
    }

    fn devices_match(&self, found: &Found) -> bool {
        let written: BTreeMap<u32, Device> = self.nodes.written_devices().collect();
        same(&written, found.devices.iter().copied())
    }

    fn frontends_match(&self, found: &Found) -> bool {
        let written: BTreeMap<FrontendAt, Frontend> = self.frontends.written().collect();
        same(&written, found.frontends.iter().copied())
    }

    fn vips_match(&self, found: &Found) -> bool {
        same(&self.vips.written().collect(), found.vips.iter().copied())
    }

    fn ranges_match(&self, found: &Found) -> bool {
        let written: BTreeSet<RangeAt> = self.ranges.all().collect();
        written == found.ranges.iter().copied().collect()
    }
}

fn same<K: Ord, V: PartialEq>(written: &BTreeMap<K, V>, found: impl Iterator<Item = (K, V)>) -> bool {
    *written == found.collect()
}
