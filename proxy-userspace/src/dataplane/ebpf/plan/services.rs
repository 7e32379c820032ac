//! Service ids: what each names, and its slice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proxy_common::selection::{BackendRef, HINT_MEMBER, SERVICE_MAGLEV, ServiceEntry, Slot};

use super::backends::GRACE;
use super::change::Extent;
use super::id_reclaim::RestedId;
use super::ids::IdPool;
use crate::model::{Family, List, PortKey};

/// All service ids in use or at rest.
#[derive(Clone, Debug)]
pub struct Services {
    pool: IdPool,
    ids: BTreeMap<String, u32>,
    states: BTreeMap<u32, ServiceState>,
    /// Ids that no port wants and that do not rest yet.
    idle: BTreeSet<u32>,
    /// Ids at rest whose name is still in NAMES.
    names_at_rest: BTreeSet<u32>,
    /// Those of them that no flow and no affinity entry has.
    reclaimable: BTreeSet<u32>,
    /// Ids that were found and that no port has claimed so far.
    unclaimed: BTreeSet<u32>,
    /// Ids with a slot that is unsettled.
    unsettled: BTreeSet<u32>,
    /// Ids with hints that nobody wants, by the first end of their grace.
    hint_ends: BTreeMap<u32, Duration>,
}

/// What is in the kernel for one service id.
#[derive(Clone, Debug)]
pub struct ServiceState {
    /// The text in NAMES.
    pub name: String,
    /// The family of its backends.
    pub family: Family,
    /// Whether NAMES has it.
    pub name_written: bool,
    /// The service port it is for; none once no port wants it.
    pub owner: Option<Arc<PortKey>>,
    /// The word in SERVICES.
    pub entry: ServiceEntry,
    /// The slice's words in SELECTION.
    pub slots: Vec<Slot>,
    /// The slots that are its own: the slice, and behind it room to grow into.
    pub room: Extent,
    /// Ids of the backends its slots name.
    pub named: BTreeSet<u32>,
    /// By hint: its entries in HINTS.
    pub hints: BTreeMap<u32, BackendRef>,
    /// Those of its hints that nobody wants, and when their grace ends.
    leaving_hints: BTreeMap<u32, Duration>,
    /// Number of entries in FRONTENDS that lead to it.
    pub frontends: usize,
    /// How many of them have session affinity.
    pub affinities: usize,
    /// When each slot changed last, in seconds; empty where none is unsettled.
    changed: Vec<u32>,
}

impl Services {
    /// No services, and maps of this many entries.
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
            hint_ends: BTreeMap::new(),
        }
    }

    /// Number of entries the maps have.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.pool.capacity()
    }

    /// Number of ids in use.
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

    /// Ids with a slot that is unsettled.
    pub fn unsettled(&self) -> impl Iterator<Item = u32> {
        self.unsettled.iter().copied()
    }

    /// Looks again which slots of an id are unsettled. Of what is found to be so and was not noted when it changed, `now` is
    /// taken for that time.
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

    /// What was found and no port has claimed is wanted by none.
    pub fn release_unclaimed(&mut self) {
        self.idle.append(&mut self.unclaimed);
    }

    /// Whether a list has an id.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.ids.contains_key(name)
    }

    /// A list's id, if it was found and is not claimed so far.
    #[must_use]
    pub fn unclaimed(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied().filter(|id| self.unclaimed.contains(id))
    }

    /// The id for a list, a new one if it has none; `None` if all are in use or rest.
    pub fn claim(&mut self, name: &str, owner: &Arc<PortKey>, now: Duration) -> Option<u32> {
        let id = if let Some(id) = self.ids.get(name).copied() {
            id
        } else {
            // Two ids with one name could not be told apart after a restart: the old name goes first.
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

    /// What is in the kernel for an id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&ServiceState> {
        self.states.get(&id)
    }

    /// Cuts off and returns the room behind the slices of all services but those that `keep` theirs.
    pub fn release_spare_room(&mut self, keep: impl Fn(u32) -> bool) -> Vec<Extent> {
        let others = self.states.iter_mut().filter(|(id, _)| !keep(**id));
        others.map(|(_, state)| state.release_spare_room()).collect()
    }

    /// What is in the kernel for an id, to be changed.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut ServiceState> {
        self.states.get_mut(&id)
    }

    /// All ids that are known.
    pub fn all(&self) -> impl Iterator<Item = (u32, &ServiceState)> {
        self.states.iter().map(|(id, state)| (*id, state))
    }

    /// No port wants this id any more.
    pub fn disown(&mut self, id: u32) {
        if let Some(state) = self.states.get_mut(&id) {
            state.owner = None;
            self.idle.insert(id);
        }
    }

    /// The hints of an id that are to go now. One that is not `wanted` any more stays for [`GRACE`]: directors that have not heard yet that the endpoint
    /// left go on sending it connections, and it may be back at once. Who is in a list is told without delay.
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

    /// The ids whose hints' grace has ended, each once.
    pub fn ended_hints(&mut self, now: Duration) -> Vec<u32> {
        self.hint_ends.extract_if(.., |_, end| *end <= now).map(|(id, _)| id).collect()
    }

    /// When the next grace of a hint ends.
    #[must_use]
    pub fn next_hint_end(&self) -> Option<Duration> {
        self.hint_ends.values().min().copied()
    }

    /// Ids that no port wants and no frontend leads to, to be emptied and then to rest.
    pub fn idle(&self) -> impl Iterator<Item = (u32, &ServiceState)> {
        let state = |id: &u32| self.states.get(id).map(|state| (*id, state));
        self.idle.iter().filter_map(state).filter(|(_, state)| state.frontends == 0)
    }

    /// Lets the idle ids that are empty, as far as is known here and to `is_clear`, rest; returns their slots, which
    /// must rest too.
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

    /// Ids whose rest is over, and that no flow and no affinity entry has, but whose name is still in NAMES.
    pub fn reclaimable(&self) -> impl Iterator<Item = u32> {
        self.reclaimable.iter().copied()
    }

    /// Ids whose rest is over, but which flows and affinity entries may still have.
    pub fn ids_to_reclaim(&self, now: Duration) -> impl Iterator<Item = RestedId> {
        let resting = move |id: &u32| Some(RestedId { id: *id, until: self.pool.rested(*id, now)? });
        self.names_at_rest.difference(&self.reclaimable).filter_map(resting)
    }

    /// Records that no flow and no affinity entry has an id any more, if it has rested ever since.
    pub fn entries_removed(&mut self, resting: RestedId) {
        let RestedId { id, until } = resting;
        if self.names_at_rest.contains(&id) && self.pool.rested(id, until) == Some(until) {
            self.reclaimable.insert(id);
        }
    }

    /// Whether an id that can be given out stands for nothing, so that what was noted for it means nothing either.
    #[must_use]
    pub fn is_unassigned(&self, id: u32, now: Duration) -> bool {
        let has_rested = self.names_at_rest.contains(&id) && self.pool.rested(id, now).is_some();
        id != 0 && (has_rested || !self.states.contains_key(&id))
    }

    /// Records that a name was removed: the id stands for nothing any more.
    pub fn forget(&mut self, id: u32) {
        self.names_at_rest.remove(&id);
        self.reclaimable.remove(&id);
        self.unsettled.remove(&id);
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
            changed: Vec::new(),
        }
    }

    /// When a slot that is unsettled changed last; `at` counts from the slice's first.
    #[must_use]
    pub fn changed(&self, at: usize) -> Option<Duration> {
        self.changed.get(at).map(|seconds| Duration::from_secs(u64::from(*seconds)))
    }

    /// Takes note that a slot changes.
    pub fn change_slot(&mut self, at: usize, word: Slot, now: Duration) {
        if self.changed.len() != self.slots.len() {
            self.changed = vec![seconds(now); self.slots.len()];
        }
        if let (Some(slot), Some(changed)) = (self.slots.get_mut(at), self.changed.get_mut(at)) {
            (*slot, *changed) = (word, seconds(now));
        }
    }

    /// The slice the word names.
    #[must_use]
    pub const fn slice(&self) -> Extent {
        Extent { offset: self.entry.offset(), length: self.entry.length() }
    }

    /// Whether a slice of this kind and length can take the place of the one that is there. A Maglev table can
    /// take only that of another of its length; any other slice can have as many slots as there is room.
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

    /// Whether the slice is a Maglev table.
    #[must_use]
    pub const fn is_maglev(&self) -> bool {
        self.entry.flags() & SERVICE_MAGLEV != 0
    }

    /// Cuts off and returns the room behind the slice.
    const fn release_spare_room(&mut self) -> Extent {
        let kept = self.entry.length();
        let beyond =
            Extent { offset: self.room.offset + kept, length: self.room.length.saturating_sub(kept) };
        self.room.length -= beyond.length;
        beyond
    }

    /// Ids of all backends the slots name.
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

/// Rounded up: a time that was noted is never before the change.
fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs() + 1).unwrap_or(u32::MAX)
}

/// The text NAMES has for a list: `namespace/name port family list`.
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

/// The family in a text of [`name_of`].
fn family_of(name: &str) -> Family {
    match name.split(' ').nth(2) {
        Some("IPv6") => Family::V6,
        _ => Family::V4,
    }
}
