//! A fake kernel that checks the programs' assumptions at every single operation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proxy_common::backend::BACKEND_EXISTS;
use proxy_common::frontend::{FRONTEND_SOURCE_RANGES, Frontend};
use proxy_common::hop::Device;
use proxy_common::name::ServiceName;
use proxy_common::selection::{BackendRef, HintKey, SERVICE_VACANT, ServiceEntry, Slot};
use proxy_common::way::Way;

use super::access::Guard;
use crate::dataplane::ebpf::plan::{
    BackendEntry, BackendId, Capacities, Change, Extent, Found, FrontendAt, Kernel, Plan, REST, RangeAt,
};
use crate::model::{Desired, Family};

/// Small enough that ids and slots are reused and sometimes run out.
pub const CAPACITIES: Capacities =
    Capacities { services: 24, slots: 200, backends_v4: 16, backends_v6: 16, ways: 6 };

#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    pub names: BTreeMap<u32, ServiceName>,
    pub services: BTreeMap<u32, ServiceEntry>,
    pub slots: BTreeMap<u32, Slot>,
    pub backends: BTreeMap<BackendId, BackendEntry>,
    pub ways: BTreeMap<u32, Way>,
    pub hints: BTreeMap<HintKey2, BackendRef>,
    pub peers: BTreeMap<IpAddr, u32>,
    pub devices: BTreeMap<u32, Device>,
    pub frontends: BTreeMap<FrontendAt, Frontend>,
    pub vips: BTreeMap<IpAddr, u32>,
    pub ranges: BTreeSet<RangeAt>,
    /// The number of ranges with room.
    pub range_room: Option<usize>,
    /// Service ids with flow or affinity entries.
    pub traces: BTreeSet<u32>,
    /// Watches the running sync.
    pub guard: Guard,
    /// The time of the running sync.
    pub now: Duration,
    /// Every requested operation, done or refused.
    pub log: Vec<Change>,
    /// Numbers of the operations to refuse.
    pub refuse: Vec<usize>,
    released_backends: BTreeMap<BackendId, Duration>,
    released_services: BTreeMap<u32, Duration>,
    /// The last service id of a slot and the end of its rest, by slot.
    released_slots: BTreeMap<u32, (u32, Duration)>,
}

/// [`HintKey`] with an order.
pub type HintKey2 = (u32, u32);

impl Kernel for FakeKernel {
    fn apply(&mut self, change: &Change) -> Result<(), String> {
        let number = self.log.len();
        self.log.push(change.clone());
        if self.refuse.contains(&number) {
            return Err(format!("refused number {number}"));
        }
        self.check(change);
        if matches!(change, Change::SourceRange(_)) && self.range_room == Some(self.ranges.len()) {
            return Err("SOURCE_RANGES is full".to_owned());
        }
        self.store(change.clone());
        self.guard.check(self);
        Ok(())
    }
}

impl FakeKernel {
    /// Returns the numbers of existing backends, in IPv4 and IPv6.
    pub fn living_backends(&self) -> [u32; 2] {
        [Family::V4, Family::V6].map(|family| {
            let all = self.backends.iter().filter(|(id, _)| id.family == family);
            let living = all.filter(|(_, entry)| entry.flags & BACKEND_EXISTS != 0);
            u32::try_from(living.count()).unwrap()
        })
    }

    /// Begins a sync: operation numbers count from zero again.
    pub fn begin(&mut self, now: Duration, refuse: Vec<usize>) {
        self.guard = Guard::default();
        (self.now, self.refuse) = (now, refuse);
        self.log.clear();
    }

    /// Begins a sync like [`begin`](Self::begin) and watches the access to the frontends of
    /// `desired`.
    pub fn begin_guarded(&mut self, now: Duration, refuse: Vec<usize>, desired: &Desired) {
        self.begin(now, refuse);
        self.guard = Guard::new(self, desired);
    }

    /// Clients use all that is served.
    pub fn use_all(&mut self) {
        let ids = self.frontends.values().flat_map(|value| [value.service, value.cluster_service]);
        self.traces.extend(ids.filter(|id| *id != 0));
    }

    /// Does the work of a full round of the collector.
    pub fn reclaim_ids(&mut self, plan: &mut Plan) {
        let ids_to_reclaim = plan.ids_to_reclaim(self.now);
        self.traces.retain(|id| !plan.is_unassigned(*id, self.now));
        plan.entries_removed(ids_to_reclaim);
    }

    fn check(&self, change: &Change) {
        match change {
            Change::Backend(id, entry) => self.check_backend(*id, *entry),
            Change::Slots { service, words } => self.check_slots(*service, words),
            Change::Service(id, entry) => self.check_service(*id, *entry),
            Change::Frontend(_, value) => {
                for id in [value.service, value.cluster_service].into_iter().filter(|id| *id != 0) {
                    assert!(
                        self.names.contains_key(&id),
                        "a frontend leads to service {id}, which has no name"
                    );
                    self.check_slice(id);
                }
            }
            Change::ClearSlots(extent) => {
                for slot in extent.offset..extent.offset + extent.length {
                    assert!(self.service_of(slot).is_none(), "slot {slot} is cleared but in use");
                    assert!(self.rested(self.released_slots.get(&slot).map(|(_, until)| until)));
                }
            }
            Change::RemoveName(id) => {
                assert!(self.rested(self.released_services.get(id)), "service {id} is forgotten too early");
                assert!(
                    self.ranges_of(*id).is_empty() && !self.traces.contains(id),
                    "service {id} leaves something behind"
                );
                assert!(
                    !self
                        .frontends
                        .values()
                        .any(|value| value.service == *id || value.cluster_service == *id)
                );
            }
            Change::Hint(_, backend) => assert!(self.lives(*backend)),
            Change::Restrict(at, value) => {
                let flags = self.frontends[at].flags | FRONTEND_SOURCE_RANGES;
                assert_eq!(
                    Frontend { flags, ..self.frontends[at] },
                    *value,
                    "{at:?} is changed beside being closed"
                );
            }
            Change::SourceRange(range) => assert_eq!(range.net, range.net.trunc()),
            Change::Name(id, name) => {
                let is_known = self.names.get(id) == Some(&**name);
                assert!(is_known || !self.traces.contains(id), "service {id} has entries of another one");
            }
            Change::Way(..)
            | Change::RemoveHint(_)
            | Change::RemoveSourceRange(_)
            | Change::Peer(..)
            | Change::RemovePeer(_)
            | Change::Device(..)
            | Change::RemoveDevice(_)
            | Change::RemoveFrontend(_)
            | Change::Vip(..)
            | Change::RemoveVip(_) => {}
        }
    }

    fn check_backend(&self, id: BackendId, entry: BackendEntry) {
        assert!(id.id != 0 && id.id < 16);
        let Some(before) = self.backends.get(&id) else { return };
        if before.address == entry.address && before.generation == entry.generation {
            let is_gone = entry.flags & BACKEND_EXISTS == 0;
            assert!(!is_gone || !self.refuse.is_empty() || !self.is_named(id, entry), "slots name {id:?}");
            return;
        }
        assert_eq!(before.flags & BACKEND_EXISTS, 0, "{id:?} is taken from a living backend");
        assert_ne!(before.generation, entry.generation, "{id:?} is reused under the same generation");
        assert!(self.rested(self.released_backends.get(&id)), "{id:?} has not rested");
    }

    fn check_slots(&self, service: u32, words: &[(u32, Slot)]) {
        for (slot, word) in words {
            assert!(*slot < CAPACITIES.slots);
            let owner = self.service_of(*slot);
            assert!(owner.is_none_or(|owner| owner == service), "slot {slot} has two owners");
            if owner.is_none() {
                let released = self.released_slots.get(slot).filter(|(former, _)| *former != service);
                assert!(self.rested(released.map(|(_, until)| until)), "slot {slot} has not rested");
            }
            assert!(
                word.current().is_none() || self.lives(word.current()) || self.is_table(service, *word),
                "slot {slot} of service {service}, {:?}, names a backend that is not there: {word:?}",
                self.services.get(&service)
            );
        }
    }

    fn check_service(&self, id: u32, entry: ServiceEntry) {
        assert!(id != 0 && id < CAPACITIES.services);
        for slot in self.slots_of(entry) {
            assert!(self.service_of(slot).is_none_or(|owner| owner == id), "slices overlap");
            assert!(self.slots.contains_key(&slot), "the slice of service {id} is not written");
        }
        if entry.0 == 0 {
            let leads = |value: &Frontend| value.service == id || value.cluster_service == id;
            assert!(
                !self.frontends.values().any(leads) || !self.services.contains_key(&id) || entry.flags() == 0
            );
        }
    }

    fn check_slice(&self, id: u32) {
        let entry = self.services.get(&id).copied().unwrap_or_default();
        for slot in entry.offset()..entry.offset() + entry.length() {
            assert!(entry.flags() & SERVICE_VACANT != 0 || !self.slots[&slot].current().is_none());
        }
    }

    fn store(&mut self, change: Change) {
        let until = self.now + REST;
        match change {
            Change::ClearSlots(extent) => {
                (extent.offset..extent.offset + extent.length).for_each(|slot| _ = self.slots.remove(&slot));
            }
            Change::RemoveName(id) => drop(self.names.remove(&id)),
            Change::Way(id, way) => drop(self.ways.insert(id, way)),
            Change::Backend(id, entry) => {
                self.backends.insert(id, entry);
                if entry.flags & BACKEND_EXISTS == 0 {
                    self.released_backends.insert(id, until);
                }
            }
            Change::Slots { words, .. } => self.slots.extend(words),
            Change::Service(id, entry) => {
                let before = self.services.insert(id, entry).unwrap_or_default();
                let kept = self.slots_of(entry);
                let released = self.slots_of(before).into_iter().filter(|slot| !kept.contains(slot));
                self.released_slots.extend(released.map(|slot| (slot, (id, until))));
                if entry.0 == 0 {
                    self.released_services.insert(id, until);
                }
            }
            Change::Name(id, name) => {
                let before = self.names.insert(id, *name);
                let is_new = before.is_none_or(|before| before == *name);
                assert!(
                    is_new || self.rested(self.released_services.get(&id)),
                    "service {id} has not rested"
                );
            }
            Change::Hint(key, backend) => drop(self.hints.insert((key.service, key.hint), backend)),
            Change::RemoveHint(key) => drop(self.hints.remove(&(key.service, key.hint))),
            Change::Peer(address, bits) => drop(self.peers.insert(address, bits)),
            Change::RemovePeer(address) => drop(self.peers.remove(&address)),
            Change::Vip(address, bits) => drop(self.vips.insert(address, bits)),
            Change::RemoveVip(address) => assert!(self.vips.remove(&address).is_some(), "{address}"),
            Change::Device(index, device) => drop(self.devices.insert(index, device)),
            Change::RemoveDevice(index) => drop(self.devices.remove(&index)),
            Change::SourceRange(range) => assert!(self.ranges.insert(range), "{range:?} is there"),
            Change::RemoveSourceRange(range) => assert!(self.ranges.remove(&range), "{range:?} is not there"),
            Change::Frontend(at, value) | Change::Restrict(at, value) => {
                self.frontends.insert(at, value);
            }
            Change::RemoveFrontend(at) => drop(self.frontends.remove(&at)),
        }
    }

    fn rested(&self, until: Option<&Duration>) -> bool {
        until.is_none_or(|until| *until <= self.now)
    }

    fn service_of(&self, slot: u32) -> Option<u32> {
        self.services.iter().find(|(_, entry)| self.slots_of(**entry).contains(&slot)).map(|(id, _)| *id)
    }

    /// Returns the slots that a word leads to: the slice, and the former table with the word before it.
    fn slots_of(&self, entry: ServiceEntry) -> BTreeSet<u32> {
        let of = |entry: ServiceEntry| entry.offset()..entry.offset() + entry.length();
        let former = entry.former().map(|word| (word, ServiceEntry(self.slots[&word].0)));
        of(entry).chain(former.into_iter().flat_map(|(word, former)| of(former).chain([word]))).collect()
    }

    /// Returns whether a slot is the word of a table that a service has, or had before.
    fn is_table(&self, service: u32, word: Slot) -> bool {
        let entry = self.services.get(&service).copied().unwrap_or_default();
        let former = entry.former().map(|word| self.slots[&word].0);
        former == Some(word.0) || ServiceEntry::new(entry.offset(), entry.length(), 0).0 == word.0
    }

    /// Returns whether a service of the family chooses a backend for new connections.
    fn is_named(&self, id: BackendId, entry: BackendEntry) -> bool {
        let family = if id.family == Family::V4 { "IPv4" } else { "IPv6" };
        let of_family =
            self.names.iter().filter(|(_, name)| name.text().is_some_and(|text| text.contains(family)));
        let reference = BackendRef::new(id.id, entry.generation);
        of_family.flat_map(|(id, _)| self.slice(*id)).any(|slot| slot.current() == reference)
    }

    fn lives(&self, reference: BackendRef) -> bool {
        [Family::V4, Family::V6].into_iter().any(|family| {
            let entry = self.backends.get(&BackendId { family, id: reference.id() });
            entry.is_some_and(|entry| {
                entry.generation == reference.generation() && entry.flags & BACKEND_EXISTS != 0
            })
        })
    }

    /// Returns the content of the maps for a restarted agent.
    pub fn found(&self) -> Found {
        let mut slots = vec![Slot::default(); CAPACITIES.slots as usize];
        self.slots.iter().for_each(|(index, word)| slots[*index as usize] = *word);
        let service = |(id, name): (&u32, &ServiceName)| {
            (*id, name.text().unwrap().to_owned(), self.services.get(id).copied().unwrap_or_default())
        };
        let hint = |((service, hint), backend): (&HintKey2, &BackendRef)| {
            (HintKey { service: *service, hint: *hint }, *backend)
        };
        let way = |(id, way): (&u32, &Way)| (*id, proxy_common::addr::unmapped(way.target), *way);
        Found {
            services: self.names.iter().map(service).collect(),
            slots,
            backends: self.backends.iter().map(|(id, entry)| (*id, *entry)).collect(),
            ways: self.ways.iter().map(way).collect(),
            hints: self.hints.iter().map(hint).collect(),
            devices: self.devices.iter().map(|(index, device)| (*index, *device)).collect(),
            narrowed: BTreeSet::new(),
            peers: self.peers.iter().map(|(address, bits)| (*address, *bits)).collect(),
            frontends: self.frontends.iter().map(|(at, value)| (*at, *value)).collect(),
            vips: self.vips.iter().map(|(address, bits)| (*address, *bits)).collect(),
            ranges: self.ranges.iter().copied().collect(),
        }
    }

    /// Returns the slots of a service id.
    pub fn slice(&self, id: u32) -> Vec<Slot> {
        let entry = self.services.get(&id).copied().unwrap_or_default();
        let extent = Extent { offset: entry.offset(), length: entry.length() };
        (extent.offset..extent.offset + extent.length).map(|slot| self.slots[&slot]).collect()
    }
}
