//! The plan takes over the maps of an earlier agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proxy_common::frontend::Frontend;
use proxy_common::hop::Device;
use proxy_common::selection::{BackendRef, HintKey, ServiceEntry, Slot};
use proxy_common::way::Way;

use super::change::{BackendEntry, BackendId, Extent, FrontendAt, RangeAt};
use super::former_table::FormerTable;
use super::slot_allocator::slot_at;
use super::vips::Vips;
use super::{Backends, Capacities, Frontends, Nodes, Plan, Ranges, Services, SlotAllocator};
use crate::dataplane::ebpf::settings::Dispatch;

/// The content of the maps. All fields are empty for fresh maps.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// NAMES, and each id's word in SERVICES.
    pub services: Vec<(u32, String, ServiceEntry)>,
    /// SELECTION, up to its last word that is not zero.
    pub slots: Vec<Slot>,
    /// BACKENDS4/6: entries with an address.
    pub backends: Vec<(BackendId, BackendEntry)>,
    /// WAYS: entries with a target.
    pub ways: Vec<(u32, IpAddr, Way)>,
    /// NARROWED: ways whose MTU the programs may have lowered.
    pub narrowed: BTreeSet<u32>,
    /// HINTS.
    pub hints: Vec<(HintKey, BackendRef)>,
    /// PEERS.
    pub peers: Vec<(IpAddr, u32)>,
    /// DEVICES.
    pub devices: Vec<(u32, Device)>,
    /// FRONTENDS4/6.
    pub frontends: Vec<(FrontendAt, Frontend)>,
    /// VIPS.
    pub vips: Vec<(IpAddr, u32)>,
    /// SOURCE_RANGES4/6.
    pub ranges: Vec<RangeAt>,
}

impl Plan {
    /// Returns a plan whose mirror is the content of the maps.
    #[must_use]
    pub fn adopt(capacities: Capacities, found: Found, now: Duration) -> Self {
        let mut plan = Self::empty(capacities);
        for (id, entry) in found.backends {
            plan.backends_mut(id.family).adopt(id.id, entry, now);
        }
        let slices = plan.adopt_services(found.services, &found.slots, now);
        plan.slot_allocator = SlotAllocator::adopt(capacities.slots, &slices, &found.slots, now);
        for (key, backend) in found.hints {
            if let Some(state) = plan.services.get_mut(key.service) {
                state.hints.insert(key.hint, backend);
            }
        }
        for range in found.ranges {
            plan.ranges.written(range);
        }
        for (at, value) in found.frontends {
            plan.frontends.adopt(at, value);
            plan.count_frontend(&at, value, 1);
        }
        for (address, bits) in found.vips {
            plan.vips.adopt(address, bits);
        }
        for (id, target, way) in found.ways {
            plan.nodes.adopt_way(id, target, way, now);
        }
        for (address, bits) in found.peers {
            plan.nodes.adopt_peer(address, bits);
        }
        for (index, device) in found.devices {
            plan.nodes.adopt_device(index, device);
        }
        plan
    }

    fn empty(capacities: Capacities) -> Self {
        Self {
            capacities,
            dispatch: Dispatch::default(),
            ports: BTreeMap::new(),
            services: Services::new(capacities.services),
            backends_v4: Backends::new(capacities.backends_v4),
            backends_v6: Backends::new(capacities.backends_v6),
            slot_allocator: SlotAllocator::new(capacities.slots),
            frontends: Frontends::default(),
            ranges: Ranges::default(),
            vips: Vips::default(),
            nodes: Nodes::new(capacities.ways),
            dsr_endings: BTreeMap::new(),
            fresh: BTreeMap::new(),
            gone: BTreeSet::new(),
            pending: BTreeSet::new(),
            nodes_pending: false,
            started: false,
        }
    }

    /// Returns the slices in use.
    ///
    /// The plan rejects a word that names slots outside the map or slots of another service. Its
    /// service gets a fresh slice.
    fn adopt_services(
        &mut self,
        services: Vec<(u32, String, ServiceEntry)>,
        slots: &[Slot],
        now: Duration,
    ) -> BTreeSet<Extent> {
        let (mut slices, mut formers): (BTreeSet<Extent>, Vec<_>) = Default::default();
        for (id, name, entry) in services {
            let slice = Extent { offset: entry.offset(), length: entry.length() };
            if slice.length > 0 && !self.is_apart(&slices, slice) {
                self.services.adopt(id, &name, REJECTED_WORD, Vec::new());
                continue;
            }
            let words = slots_of(slots, slice);
            self.services.adopt(id, &name, entry, words);
            self.slots_changed(id, now);
            if slice.length > 0 {
                slices.insert(slice);
            }
            formers.push((id, entry));
        }
        // After all slices: a wrong word costs its own list the former table, and no other list its slots.
        for (id, entry) in formers {
            self.adopt_former(id, entry, slots, &mut slices, now);
        }
        slices
    }

    /// Takes over the former table of a list, unless its word or its slots are another's. The next
    /// sync then writes the list's word without it.
    fn adopt_former(
        &mut self,
        id: u32,
        entry: ServiceEntry,
        slots: &[Slot],
        slices: &mut BTreeSet<Extent>,
        now: Duration,
    ) {
        let Some(word) = entry.former() else { return };
        let named = ServiceEntry(slot_at(slots, word).0);
        let slice = Extent { offset: named.offset(), length: named.length() };
        let former = FormerTable { word, slice, since: now, is_over: false };
        let mut with = slices.clone();
        for extent in former.extents() {
            if extent.length == 0 || !self.is_apart(&with, extent) {
                return;
            }
            with.insert(extent);
        }
        *slices = with;
        self.services.set_former(id, Some(former));
    }

    /// Returns whether a run of slots is inside the map and meets none of these.
    fn is_apart(&self, slices: &BTreeSet<Extent>, slice: Extent) -> bool {
        let end = slice.offset.checked_add(slice.length).filter(|end| *end <= self.capacities.slots);
        let Some(end) = end else { return false };
        let before = slices.range(..Extent { offset: end, length: 0 }).next_back();
        before.is_none_or(|before| before.offset + before.length <= slice.offset)
    }
}

/// A word that the next sync must overwrite: it differs from every word of a plan.
const REJECTED_WORD: ServiceEntry = ServiceEntry(1 << 63);

/// Returns the words of a slice.
pub(super) fn slots_of(slots: &[Slot], slice: Extent) -> Vec<Slot> {
    (slice.offset..slice.offset + slice.length).map(|slot| slot_at(slots, slot)).collect()
}
