//! A list becomes a slice of SELECTION.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proxy_common::name::ServiceName;
use proxy_common::selection::{
    BackendRef, MAX_SLICE_LENGTH, SERVICE_ELSEWHERE, SERVICE_MAGLEV, ServiceEntry, Slot,
};

use super::change::{Change, Op};
use super::services::name_of;
use super::{Plan, maglev};
use crate::model::{Algorithm, Family, List, PortKey, ServicePort};

/// A service id with its members, on the way to its slots.
struct Choice {
    service: u32,
    family: Family,
    /// Sorted by address and port.
    members: Vec<(SocketAddr, BackendRef)>,
    length: u32,
    flags: u8,
}

impl Plan {
    /// Plans one list of a port: slots, service word, name. Returns its service id.
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
        let changes = self.plan_slice(&choice)?;
        let named = self.services.get(service).is_some_and(|state| state.name_written);
        let name = (!named).then_some(Change::Name(service, encoded));
        let changes = changes.into_iter().chain(name);
        ops.extend(changes.map(|change| Op { change, owner: Some(Arc::clone(key)) }));
        Ok(service)
    }

    fn choice(&self, key: &PortKey, port: &ServicePort, list: List, service: u32) -> Choice {
        let backends = self.backends(key.family);
        let members: Vec<_> = port
            .members(list)
            .filter_map(|address| backends.reference(*address).map(|reference| (*address, reference)))
            .collect();
        let (length, maglev) = match (members.len(), port.algorithm) {
            (0, Algorithm::Random) => (0, 0),
            (0, Algorithm::Maglev(_)) => (0, SERVICE_MAGLEV),
            (_, Algorithm::Maglev(length)) => (length, SERVICE_MAGLEV),
            (count, Algorithm::Random) => (u32::try_from(count).unwrap_or(u32::MAX), 0),
        };
        let elsewhere = if members.is_empty() && port.has_any { SERVICE_ELSEWHERE } else { 0 };
        Choice { service, family: key.family, members, length, flags: maglev | elsewhere }
    }

    /// In place where kind and length stay, so that settled owners are kept; else a fresh slice, which the
    /// service's word names once it is written.
    fn plan_slice(&mut self, choice: &Choice) -> Result<Vec<Change>, String> {
        let Choice { service, length, flags, .. } = *choice;
        let Some(state) = self.services.get(service) else { return Ok(Vec::new()) };
        let before = state.entry;
        let in_place = length > 0 && state.fits(length, flags);
        let former = if in_place { state.slots.clone() } else { Vec::new() };
        let offset = match (length, in_place) {
            (0, _) => 0,
            (_, true) => before.offset(),
            (_, false) => self.fresh_slice(length)?,
        };
        let slots = self.slots(choice, &former);
        let before_each = former.into_iter().map(Some).chain(std::iter::repeat(None));
        let words: Vec<(u32, Slot)> = (offset..)
            .zip(slots.iter().copied())
            .zip(before_each)
            .filter(|((_, slot), before)| Some(*slot) != *before)
            .map(|(word, _)| word)
            .collect();
        let entry = ServiceEntry::new(offset, length, flags);
        let mut changes = Vec::new();
        if !words.is_empty() {
            changes.push(Change::Slots { service, words });
        }
        if entry != before {
            self.fresh.insert(service, slots);
            changes.push(Change::Service(service, entry));
        }
        Ok(changes)
    }

    fn fresh_slice(&mut self, length: u32) -> Result<u32, String> {
        let room = self.capacities.slots;
        let offset = (length <= MAX_SLICE_LENGTH).then(|| self.space.allocate(length)).flatten();
        offset.ok_or_else(|| format!("no room for {length} slots: SELECTION has {room}, or they still rest"))
    }

    /// The slots of a slice; `before` holds those that are there, or nothing for a fresh slice.
    fn slots(&self, choice: &Choice, before: &[Slot]) -> Vec<Slot> {
        if choice.flags & SERVICE_MAGLEV == 0 {
            return choice.members.iter().map(|(_, reference)| Slot::settled_on(*reference)).collect();
        }
        let exists = |owner: BackendRef| self.backends(choice.family).exists(owner);
        let addresses: Vec<SocketAddr> = choice.members.iter().map(|(address, _)| *address).collect();
        let owners = maglev::table(&addresses, choice.length);
        let former = before.iter().copied().chain(std::iter::repeat(Slot::default()));
        owners
            .into_iter()
            .filter_map(|owner| choice.members.get(owner).map(|(_, reference)| *reference))
            .zip(former)
            .map(|(next, slot)| slot.change_owner(next, exists))
            .collect()
    }
}
