//! The plan turns a list of endpoints into a slice of SELECTION.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proxy_common::name::ServiceName;
use proxy_common::selection::{
    BackendRef, MAX_SLICE_LENGTH, SERVICE_ELSEWHERE, SERVICE_MAGLEV, SERVICE_VACANT, Slot,
};

use super::change::{Change, Extent, Op};
use super::former_table::{FormerTable, Turn, Wanted, word_of};
use super::services::{ServiceState, name_of};
use super::{Fresh, Plan, frontends, maglev};
use crate::dataplane::ebpf::room::with_spare_room;
use crate::model::{Algorithm, Family, Frontend, List, PortKey, ServicePort};

/// A service id and the members for its slots.
struct Choice {
    service: u32,
    family: Family,
    /// Sorted by address and port.
    members: Vec<(SocketAddr, BackendRef)>,
    length: u32,
    flags: u8,
    turn: Turn,
}

impl Plan {
    /// Plans one list of a port (slots, service word, name) and returns its service id.
    pub(super) fn plan_list(
        &mut self,
        key: &Arc<PortKey>,
        port: &ServicePort,
        list: List,
        now: Duration,
        ops: &mut Vec<Op>,
    ) -> Result<u32, String> {
        let name = name_of(key, list);
        let encoded = ServiceName::new(&name).ok_or_else(|| format!("the name {name:?} is too long"))?;
        let room = self.services.capacity().saturating_sub(1);
        let service = self
            .services
            .claim(&name, key, now)
            .ok_or_else(|| format!("no room for another service: SERVICES holds {room}"))?;
        self.ports.entry(Arc::clone(key)).or_default().services.insert(service);
        let choice = self.choice(key, port, list, service);
        if choice.turn.goes_by_slot
            && let Some(state) = self.services.get_mut(service)
        {
            state.restart_clock(now);
        }
        let (changes, missing) = self.plan_slice(choice, now);
        let named = self.services.get(service).is_some_and(|state| state.name_written);
        let name = (!named).then_some(Change::Name(service, Box::new(encoded)));
        let changes = changes.into_iter().chain(name);
        ops.extend(changes.map(|change| Op { change, owner: Some(Arc::clone(key)) }));
        missing.map_or(Ok(service), Err)
    }

    fn choice(&self, key: &PortKey, port: &ServicePort, list: List, service: u32) -> Choice {
        let backends = self.backends(key.family);
        let members: Vec<_> = port
            .members(list)
            .filter_map(|address| Some((*address, backends.reference(self.target(port, *address))?)))
            .collect();
        let (length, maglev) = match (members.len(), port.algorithm) {
            (0, Algorithm::Random) => (0, 0),
            (0, Algorithm::Maglev(_)) => self.vacated_table(service),
            (_, Algorithm::Maglev(length)) => (length, SERVICE_MAGLEV),
            (count, Algorithm::Random) => (u32::try_from(count).unwrap_or(u32::MAX), 0),
        };
        let elsewhere = if members.is_empty() && port.has_any { SERVICE_ELSEWHERE } else { 0 };
        let turn = self.services.get(service).map(|state| state.turn(wanted(port, list))).unwrap_or_default();
        Choice { service, family: key.family, members, length, flags: maglev | elsewhere, turn }
    }

    /// Returns the length and flags of a Maglev table without members. The table stays while
    /// connections of former owners may live.
    fn vacated_table(&self, service: u32) -> (u32, u8) {
        let kept = self.services.get(service).filter(|state| state.is_maglev()).filter(|state| {
            let exists = |slot: &Slot| self.backends(state.family).exists(slot.current());
            state.slots.iter().any(|slot| slot.is_unsettled() || exists(slot))
        });
        kept.map_or((0, SERVICE_MAGLEV), |state| (state.entry.length(), SERVICE_MAGLEV | SERVICE_VACANT))
    }

    /// Plans the slice of a service: in place if there is room, so that settled owners stay,
    /// otherwise a fresh slice.
    ///
    /// The service's word names a fresh slice once it is written. Without free slots, the old slice
    /// gets as many members as fit, so that no slot names a removed endpoint. The second value then
    /// gives the reason.
    fn plan_slice(&mut self, choice: Choice, now: Duration) -> (Vec<Change>, Option<String>) {
        let Some(state) = self.services.get(choice.service) else { return Default::default() };
        let (room, former) = (state.room, state.former);
        let ends_table = choice.flags & SERVICE_MAGLEV == 0 && state.leaves_table();
        let leaves = choice.turn.leaves && !choice.members.is_empty() || ends_table;
        if state.fits(choice.length, choice.flags) && !leaves {
            return (self.fill(&choice, room, former), None);
        }
        match self.fresh_room(&choice, now) {
            Ok((room, former)) => (self.fill(&choice, room, former), None),
            Err(why) => {
                let changes = self.fit_to_room(choice).map(|(choice, room)| self.fill(&choice, room, former));
                (changes.unwrap_or_default(), Some(why))
            }
        }
    }

    /// Returns the changes that fill the slice of a service, and name its former table.
    fn fill(&mut self, choice: &Choice, room: Extent, former_table: Option<FormerTable>) -> Vec<Change> {
        let Choice { service, length, flags, .. } = *choice;
        let Some(state) = self.services.get(service) else { return Vec::new() };
        let before = state.entry;
        let former = if room == state.room { state.slots.as_slice() } else { &[] };
        let slots = self.slots(choice, former);
        let before_each = former.iter().copied().map(Some).chain(std::iter::repeat(None));
        let words = (room.offset..)
            .zip(slots.iter().copied())
            .zip(before_each)
            .filter(|((_, slot), before)| Some(*slot) != *before)
            .map(|(word, _)| word);
        let named = former_table.filter(|named| state.former != Some(*named));
        let named = named.map(|named| (named.word, Slot(named.entry().0)));
        let words: Vec<(u32, Slot)> = named.into_iter().chain(words).collect();
        let entry = word_of(Extent { offset: room.offset, length }, flags, former_table);
        let mut changes = Vec::new();
        if !words.is_empty() {
            changes.push(Change::Slots { service, words });
        }
        if entry != before {
            self.fresh.insert(service, Fresh { slots, room, former: former_table });
            changes.push(Change::Service(service, entry));
        }
        changes
    }

    /// Allocates the slots of a slice, and one before it if the list needs its former table. On
    /// failure, the other services release their spare room and all former tables, for a later attempt.
    fn fresh_room(
        &mut self,
        choice: &Choice,
        now: Duration,
    ) -> Result<(Extent, Option<FormerTable>), String> {
        let length = choice.length;
        let spare = if choice.flags & SERVICE_MAGLEV == 0 { with_spare_room(length) } else { length };
        let has_former = |state: &ServiceState| state.former_table(0, now).is_some();
        let ahead = u32::from(self.services.get(choice.service).is_some_and(has_former));
        for length in [spare, length].into_iter().filter(|_| length <= MAX_SLICE_LENGTH) {
            if let Some(offset) = self.slot_allocator.allocate(ahead + length) {
                let state = self.services.get(choice.service).filter(|_| ahead > 0);
                let former = state.and_then(|state| state.former_table(offset, now));
                return Ok((Extent { offset: offset + ahead, length }, former));
            }
        }
        self.end_former_tables(ahead + length);
        for extent in
            self.services.release_spare_room(|id| id == choice.service || self.fresh.contains_key(&id))
        {
            self.slot_allocator.rest(extent, now);
        }
        let room = self.capacities.slots;
        Err(format!("no room for {length} slots: SELECTION has {room}, or they still rest"))
    }

    /// Reduces a choice to the present room of the service; `None` if the service has no room.
    fn fit_to_room(&self, mut choice: Choice) -> Option<(Choice, Extent)> {
        let state = self.services.get(choice.service).filter(|state| state.room.length > 0)?;
        if state.is_maglev() && state.entry.length() > 0 {
            choice.length = state.entry.length();
            choice.flags = SERVICE_MAGLEV;
        } else {
            choice.members.truncate(usize::try_from(state.room.length).unwrap_or(usize::MAX));
            choice.length = u32::try_from(choice.members.len()).unwrap_or(u32::MAX);
            choice.flags = 0;
        }
        Some((choice, state.room))
    }

    /// Returns the slots of a slice; `before` holds the present slots, or nothing for a fresh
    /// slice.
    ///
    /// The slots of a slice that replaces another one are unsettled, for connections of the other one.
    fn slots(&self, choice: &Choice, before: &[Slot]) -> Vec<Slot> {
        let is_maglev = choice.flags & SERVICE_MAGLEV != 0;
        let Some(state) = self.services.get(choice.service) else { return Vec::new() };
        let has_older = state.has_older() && (choice.turn.goes_by_slot || state.dsr_frontends > 0);
        let replaces = has_older && before.is_empty();
        let fresh = |owner| if replaces { Slot::unsettled(owner, owner) } else { Slot::settled_on(owner) };
        let turns = choice.turn.goes_by_slot && has_older;
        let turned = |slot: Slot| {
            if turns && !slot.is_unsettled() { Slot::unsettled(slot.current(), slot.settled()) } else { slot }
        };
        if !is_maglev {
            return choice.members.iter().map(|(_, reference)| fresh(*reference)).collect();
        }
        let exists = |owner: BackendRef| self.backends(choice.family).exists(owner);
        if choice.length == 0 {
            return Vec::new();
        }
        if choice.members.is_empty() {
            return before.iter().map(|slot| slot.change_owner(BackendRef::NONE, exists)).collect();
        }
        let addresses: Vec<SocketAddr> = choice.members.iter().map(|(address, _)| *address).collect();
        let owners = maglev::table(&addresses, choice.length);
        let former = before.iter().copied().chain(std::iter::repeat(Slot::default()));
        owners
            .into_iter()
            .filter_map(|owner| choice.members.get(owner).map(|(_, reference)| *reference))
            .zip(former)
            .map(|(next, slot)| if replaces { fresh(next) } else { turned(slot.change_owner(next, exists)) })
            .collect()
    }
}

/// Returns what the frontends of a list are to have.
pub(super) fn wanted(port: &ServicePort, list: List) -> Wanted {
    let goes_there = |frontend: &Frontend| frontend.list == list && frontends::has_dsr(port, frontend);
    Wanted { dsr: port.frontends.iter().any(goes_there), affinity: port.affinity_seconds > 0 }
}
