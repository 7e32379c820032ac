//! Service ids, their names and slices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proxy_common::selection::{BackendRef, HINT_MEMBER, SERVICE_MAGLEV, ServiceEntry, Slot};

use super::backends::GRACE;
use super::change::Extent;
use super::former_table::FormerTable;
use super::id_reclaim::RestedId;
use super::ids::IdPool;
use crate::model::{Family, List, PortKey};

/// All service ids in use or at rest.
#[derive(Clone, Debug)]
pub struct Services {
    pool: IdPool,
    ids: BTreeMap<String, u32>,
    states: BTreeMap<u32, ServiceState>,
    /// Ids without a port that do not rest yet.
    idle: BTreeSet<u32>,
    /// Ids at rest whose name is still in NAMES.
    names_at_rest: BTreeSet<u32>,
    /// Ids at rest without a flow or affinity entry.
    reclaimable: BTreeSet<u32>,
    /// Ids found in the maps and not claimed by a port yet.
    unclaimed: BTreeSet<u32>,
    /// Ids with an unsettled slot.
    unsettled: BTreeSet<u32>,
    /// Ids with a former table.
    with_former: BTreeSet<u32>,
    /// Ids with unwanted hints, and the first end of a grace period.
    hint_ends: BTreeMap<u32, Duration>,
}

/// The state of one service id in the kernel.
#[derive(Clone, Debug)]
pub struct ServiceState {
    /// The text in NAMES.
    pub name: String,
    /// The family of its backends.
    pub family: Family,
    /// Whether NAMES has the name.
    pub name_written: bool,
    /// The service port of the id; none once no port wants it.
    pub owner: Option<Arc<PortKey>>,
    /// The word in SERVICES.
    pub entry: ServiceEntry,
    /// The slice's words in SELECTION.
    pub slots: Vec<Slot>,
    /// The slots of the service: the slice, and room for growth behind it.
    pub room: Extent,
    /// Ids of the backends its slots name.
    pub named: BTreeSet<u32>,
    /// The entries in HINTS, by hint.
    pub hints: BTreeMap<u32, BackendRef>,
    /// Unwanted hints, and the ends of their grace periods.
    leaving_hints: BTreeMap<u32, Duration>,
    /// The number of entries in FRONTENDS that lead to the id.
    pub frontends: usize,
    /// The number of these frontends with session affinity.
    pub affinities: usize,
    /// The number of frontends whose new connections go by the list's slots alone.
    pub by_slot: usize,
    /// The number of frontends with older connections that may go by the list's slots alone, too.
    pub dsr_frontends: usize,
    /// The table that the list had before.
    pub former: Option<FormerTable>,
    /// The time of the last change of each slot, in seconds; empty if all slots are settled.
    pub(super) changed: Vec<u32>,
}

impl Services {
    /// Returns an empty set for maps with `capacity` entries.
    #[must_use]
    pub const fn new(capacity: u32) -> Self {
        Self {
            pool: IdPool::new(capacity),
            ids: BTreeMap::new(),
            states: BTreeMap::new(),
            idle: BTreeSet::new(),
            names_at_rest: BTreeSet::new(),
            reclaimable: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            with_former: BTreeSet::new(),
            hint_ends: BTreeMap::new(),
        }
    }

    /// Returns the number of entries in the maps.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.pool.capacity()
    }

    /// Returns the number of ids in use.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.pool.used()
    }

    /// Takes over an id found in NAMES.
    pub fn adopt(&mut self, id: u32, name: &str, entry: ServiceEntry, slots: Vec<Slot>) {
        self.pool.adopt(id);
        self.ids.insert(name.to_owned(), id);
        let room = Extent { offset: entry.offset(), length: u32::try_from(slots.len()).unwrap_or(0) };
        let state = ServiceState { name_written: true, entry, slots, room, ..ServiceState::new(name) };
        self.states.insert(id, state);
        self.unclaimed.insert(id);
    }

    /// Returns the ids with an unsettled slot.
    pub fn unsettled(&self) -> impl Iterator<Item = u32> {
        self.unsettled.iter().copied()
    }

    /// Updates the records of the unsettled slots of an id. A slot without a recorded change counts
    /// as changed `now`.
    pub fn review_slots(&mut self, id: u32, now: Duration) {
        let Some(state) = self.states.get_mut(&id) else { return };
        if !state.slots.iter().any(|slot| slot.is_unsettled()) {
            state.changed = Vec::new();
            self.unsettled.remove(&id);
            return;
        }
        self.unsettled.insert(id);
        if state.changed.len() != state.slots.len() {
            state.changed = vec![seconds(now); state.slots.len()];
        }
    }

    /// Treats ids found in the maps and not claimed by a port as unwanted.
    pub fn release_unclaimed(&mut self) {
        self.idle.append(&mut self.unclaimed);
    }

    /// Returns whether a list has an id.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.ids.contains_key(name)
    }

    /// Returns the id of a list if it was found in the maps and is not claimed yet.
    #[must_use]
    pub fn unclaimed(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied().filter(|id| self.unclaimed.contains(id))
    }

    /// Returns the id of a list, or a new id; `None` if all ids are in use or rest.
    pub fn claim(&mut self, name: &str, owner: &Arc<PortKey>, now: Duration) -> Option<u32> {
        let id = if let Some(id) = self.ids.get(name).copied() {
            id
        } else {
            // The next agent could not tell two ids with one name apart, so the old name goes
            // first.
            let id = self.pool.allocate(now, |id| !self.states.contains_key(&id))?;
            self.ids.insert(name.to_owned(), id);
            self.states.insert(id, ServiceState::new(name));
            id
        };
        self.pool.resume(id);
        self.idle.remove(&id);
        self.names_at_rest.remove(&id);
        self.reclaimable.remove(&id);
        self.unclaimed.remove(&id);
        if let Some(state) = self.states.get_mut(&id) {
            state.owner = Some(Arc::clone(owner));
        }
        Some(id)
    }

    /// Returns the ids with a former table.
    pub fn with_former(&self) -> impl Iterator<Item = u32> {
        self.with_former.iter().copied()
    }

    /// Sets or removes the former table of an id, and returns the one before.
    pub fn set_former(&mut self, id: u32, former: Option<FormerTable>) -> Option<FormerTable> {
        let state = self.states.get_mut(&id)?;
        if former.is_some() {
            self.with_former.insert(id);
        } else {
            self.with_former.remove(&id);
        }
        std::mem::replace(&mut state.former, former)
    }

    /// Returns the state of an id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&ServiceState> {
        self.states.get(&id)
    }

    /// Removes and returns the room behind the slices of all services but those of `keep`.
    pub fn release_spare_room(&mut self, keep: impl Fn(u32) -> bool) -> Vec<Extent> {
        let others = self.states.iter_mut().filter(|(id, _)| !keep(**id));
        others.map(|(_, state)| state.release_spare_room()).collect()
    }

    /// Returns the state of an id, mutable.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut ServiceState> {
        self.states.get_mut(&id)
    }

    /// Returns all known ids.
    pub fn all(&self) -> impl Iterator<Item = (u32, &ServiceState)> {
        self.states.iter().map(|(id, state)| (*id, state))
    }

    /// Records that no port wants this id any more.
    pub fn disown(&mut self, id: u32) {
        if let Some(state) = self.states.get_mut(&id) {
            state.owner = None;
            self.idle.insert(id);
        }
    }

    /// Returns the hints of an id to remove now.
    ///
    /// A hint that is no longer `wanted` stays for [`GRACE`]. Directors that have not yet seen the
    /// endpoint's removal still send it connections, and the endpoint may return at once. A list
    /// membership ends without delay.
    pub fn end_hints(&mut self, id: u32, wanted: &BTreeMap<u32, BackendRef>, now: Duration) -> Vec<u32> {
        let Some(state) = self.states.get_mut(&id) else { return Vec::new() };
        let leaving = &mut state.leaving_hints;
        leaving.retain(|hint, _| state.hints.contains_key(hint) && !wanted.contains_key(hint));
        let unwanted = state.hints.keys().filter(|hint| !wanted.contains_key(hint));
        let ended = unwanted
            .filter(|hint| **hint & HINT_MEMBER != 0 || *leaving.entry(**hint).or_insert(now + GRACE) <= now);
        let ended = ended.copied().collect();
        match leaving.values().filter(|end| **end > now).min() {
            Some(end) => drop(self.hint_ends.insert(id, *end)),
            None => drop(self.hint_ends.remove(&id)),
        }
        ended
    }

    /// Returns the ids with an ended grace period of a hint, each once.
    pub fn ended_hints(&mut self, now: Duration) -> Vec<u32> {
        self.hint_ends.extract_if(.., |_, end| *end <= now).map(|(id, _)| id).collect()
    }

    /// Returns the end of the next grace period of a hint.
    #[must_use]
    pub fn next_hint_end(&self) -> Option<Duration> {
        self.hint_ends.values().min().copied()
    }

    /// Returns the ids without a port and without a frontend: they are emptied, then rest.
    pub fn idle(&self) -> impl Iterator<Item = (u32, &ServiceState)> {
        let state = |id: &u32| self.states.get(id).map(|state| (*id, state));
        self.idle.iter().filter_map(state).filter(|(_, state)| state.frontends == 0)
    }

    /// Starts the rest of the empty idle ids. `is_clear` tells whether an id is empty elsewhere,
    /// too. Returns their slots, which must rest, too.
    pub fn rest_empty(&mut self, now: Duration, is_clear: impl Fn(u32) -> bool) -> Vec<Extent> {
        let empty = |(id, state): (u32, &ServiceState)| {
            (state.entry.0 == 0 && state.hints.is_empty() && is_clear(id)).then_some(id)
        };
        let mut rooms = Vec::new();
        for id in self.idle().filter_map(empty).collect::<Vec<_>>() {
            self.idle.remove(&id);
            self.pool.rest(id, now);
            let Some(state) = self.states.get_mut(&id) else { continue };
            rooms.push(std::mem::take(&mut state.room));
            if state.name_written {
                self.names_at_rest.insert(id);
            } else {
                self.forget(id);
            }
        }
        rooms
    }

    /// Returns the ids after their rest without a flow or affinity entry. Their names are still in
    /// NAMES.
    pub fn reclaimable(&self) -> impl Iterator<Item = u32> {
        self.reclaimable.iter().copied()
    }

    /// Returns the ids after their rest that flow or affinity entries may still have.
    pub fn ids_to_reclaim(&self, now: Duration) -> impl Iterator<Item = RestedId> {
        let resting = move |id: &u32| Some(RestedId { id: *id, until: self.pool.rested(*id, now)? });
        self.names_at_rest.difference(&self.reclaimable).filter_map(resting)
    }

    /// Records that no flow or affinity entry has an id, unless the id was claimed since.
    pub fn entries_removed(&mut self, resting: RestedId) {
        let RestedId { id, until } = resting;
        if self.names_at_rest.contains(&id) && self.pool.rested(id, until) == Some(until) {
            self.reclaimable.insert(id);
        }
    }

    /// Returns whether an id stands for no service, so that its flow and affinity entries are void.
    #[must_use]
    pub fn is_unassigned(&self, id: u32, now: Duration) -> bool {
        let has_rested = self.names_at_rest.contains(&id) && self.pool.rested(id, now).is_some();
        id != 0 && (has_rested || !self.states.contains_key(&id))
    }

    /// Records a removed name: the id is free.
    pub fn forget(&mut self, id: u32) {
        self.names_at_rest.remove(&id);
        self.reclaimable.remove(&id);
        self.unsettled.remove(&id);
        self.with_former.remove(&id);
        if let Some(state) = self.states.remove(&id) {
            self.ids.remove(&state.name);
        }
    }
}

impl ServiceState {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            family: family_of(name),
            name_written: false,
            owner: None,
            entry: ServiceEntry::default(),
            slots: Vec::new(),
            room: Extent::default(),
            named: BTreeSet::new(),
            hints: BTreeMap::new(),
            leaving_hints: BTreeMap::new(),
            frontends: 0,
            affinities: 0,
            by_slot: 0,
            dsr_frontends: 0,
            former: None,
            changed: Vec::new(),
        }
    }

    /// Returns the time of the last change of an unsettled slot; `at` counts from the first slot of
    /// the slice.
    #[must_use]
    pub fn changed(&self, at: usize) -> Option<Duration> {
        self.changed.get(at).map(|seconds| Duration::from_secs(u64::from(*seconds)))
    }

    /// Records a changed slot.
    pub fn change_slot(&mut self, at: usize, word: Slot, now: Duration) {
        if self.changed.len() != self.slots.len() {
            self.changed = vec![seconds(now); self.slots.len()];
        }
        if let (Some(slot), Some(changed)) = (self.slots.get_mut(at), self.changed.get_mut(at)) {
            (*slot, *changed) = (word, seconds(now));
        }
    }

    /// Returns the slice that the word names.
    #[must_use]
    pub const fn slice(&self) -> Extent {
        Extent { offset: self.entry.offset(), length: self.entry.length() }
    }

    /// Returns whether a slice of this kind and length fits in place.
    ///
    /// A Maglev table replaces only a table of the same length. Any other slice can use all the
    /// room.
    #[must_use]
    pub const fn fits(&self, length: u32, flags: u8) -> bool {
        if length == 0 || self.entry.length() == 0 {
            return length <= self.room.length;
        }
        let is_maglev = flags & SERVICE_MAGLEV != 0;
        match (is_maglev, self.is_maglev()) {
            (true, true) => length == self.entry.length(),
            (false, false) => length <= self.room.length,
            _ => false,
        }
    }

    /// Returns whether the slice is a Maglev table.
    #[must_use]
    pub const fn is_maglev(&self) -> bool {
        self.entry.flags() & SERVICE_MAGLEV != 0
    }

    /// Removes and returns the room behind the slice.
    const fn release_spare_room(&mut self) -> Extent {
        let kept = self.entry.length();
        let beyond =
            Extent { offset: self.room.offset + kept, length: self.room.length.saturating_sub(kept) };
        self.room.length -= beyond.length;
        beyond
    }

    /// Returns the ids of all backends that the slots name.
    #[must_use]
    pub fn owners(&self) -> BTreeSet<u32> {
        self.slots
            .iter()
            .flat_map(|slot| [slot.current(), slot.settled()])
            .map(BackendRef::id)
            .filter(|id| *id != 0)
            .collect()
    }
}

/// Rounds up: a recorded time is never before the change.
pub(super) fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs() + 1).unwrap_or(u32::MAX)
}

/// Returns the text in NAMES for a list: `namespace/name port family list`.
#[must_use]
pub fn name_of(port: &PortKey, list: List) -> String {
    let family = match port.family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let list = match list {
        List::Cluster => "Cluster",
        List::Local => "Local",
    };
    let name = if port.port.is_empty() { "-" } else { &port.port };
    format!("{} {name} {family} {list}", port.service)
}

/// Returns the family in a text of [`name_of`].
fn family_of(name: &str) -> Family {
    match name.split(' ').nth(2) {
        Some("IPv6") => Family::V6,
        _ => Family::V4,
    }
}
