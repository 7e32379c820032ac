//! The plan carries operations out and keeps its mirror up to date.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proxy_common::frontend::{FRONTEND_AFFINITY, FRONTEND_WAS_CLUSTER, Frontend};
use proxy_common::selection::{ServiceEntry, Slot};

use super::backends::Named;
use super::change::{Change, Extent, FrontendAt, Op};
use super::former_table::FormerTable;
use super::ranges::is_of_cluster;
use super::{Fresh, Kernel, Outcome, Plan};
use crate::dataplane::SyncFailure;
use crate::model::PortKey;

impl Plan {
    /// Carries operations out in order.
    ///
    /// After a failure the other operations of the same port wait for the next sync. Other ports
    /// are not affected.
    pub(super) fn carry_out(
        &mut self,
        ops: Vec<Op>,
        now: Duration,
        kernel: &mut impl Kernel,
        outcome: &mut Outcome,
    ) {
        for Op { change, owner } in ops {
            if owner.as_ref().is_some_and(|owner| outcome.defers(&change, owner)) {
                self.abandon(&change, now);
                continue;
            }
            match kernel.apply(&change) {
                Ok(()) => {
                    outcome.writes += 1;
                    self.record(change, now);
                }
                Err(why) => {
                    self.abandon(&change, now);
                    self.fail(&change, owner.as_ref(), &why, outcome);
                }
            }
        }
    }

    fn fail(&self, change: &Change, owner: Option<&Arc<PortKey>>, why: &str, outcome: &mut Outcome) {
        let mut ports: BTreeSet<Arc<PortKey>> = owner.into_iter().cloned().collect();
        if let Change::Backend(id, _) = change {
            ports.extend(self.backends(id.family).users(id.id).cloned());
        }
        outcome.nodes_failed |= match change {
            Change::Way(..)
            | Change::Peer(..)
            | Change::RemovePeer(_)
            | Change::Device(..)
            | Change::RemoveDevice(_) => true,
            Change::SourceRange(range) | Change::RemoveSourceRange(range) => is_of_cluster(range.service),
            _ => false,
        };
        if ports.is_empty() {
            outcome.failures.push(SyncFailure::Map(why.to_owned()));
        }
        for port in ports {
            outcome.degraded(&port, why.to_owned());
            if matches!(change, Change::SourceRange(_) | Change::RemoveSourceRange(_)) {
                outcome.unguarded.insert(port);
            } else {
                outcome.blocked.insert(port);
            }
        }
    }

    /// Undoes the preparation of an operation that did not happen: the room of a fresh slice rests.
    fn abandon(&mut self, change: &Change, now: Duration) {
        let Change::Service(id, _) = change else { return };
        let Some(fresh) = self.fresh.remove(id) else { return };
        let Some(state) = self.services.get(*id) else { return };
        let is_used = |former: FormerTable| state.former.is_some_and(|used| used.word == former.word);
        let word = fresh.former.filter(|former| !is_used(*former));
        let word = word.map(|former| Extent { offset: former.word, length: 1 });
        let room = (state.room != fresh.room).then_some(fresh.room);
        for extent in word.into_iter().chain(room) {
            self.slot_allocator.rest(extent, now);
        }
    }

    /// Mirrors a successful operation.
    pub(super) fn record(&mut self, change: Change, now: Duration) {
        match change {
            Change::ClearSlots(extent) => self.slot_allocator.free(extent),
            Change::RemoveName(id) => self.services.forget(id),
            Change::Way(id, way) => self.nodes.written(id, way, now),
            Change::Backend(id, entry) => self.backends_mut(id.family).written(id.id, entry, now),
            Change::Slots { service, words } => self.record_slots(service, &words, now),
            Change::Service(id, entry) => self.record_service(id, entry, now),
            Change::Name(id, _) => {
                if let Some(state) = self.services.get_mut(id) {
                    state.name_written = true;
                }
            }
            Change::Hint(key, backend) => {
                if let Some(state) = self.services.get_mut(key.service) {
                    state.hints.insert(key.hint, backend);
                }
            }
            Change::RemoveHint(key) => {
                if let Some(state) = self.services.get_mut(key.service) {
                    state.hints.remove(&key.hint);
                }
            }
            Change::Peer(address, bits) => self.nodes.peer_written(address, Some(bits)),
            Change::RemovePeer(address) => self.nodes.peer_written(address, None),
            Change::Vip(address, bits) => self.vips.record(address, Some(bits)),
            Change::RemoveVip(address) => self.vips.record(address, None),
            Change::Device(index, device) => self.nodes.device_written(index, Some(device)),
            Change::RemoveDevice(index) => self.nodes.device_written(index, None),
            Change::SourceRange(range) => self.ranges.written(range),
            Change::RemoveSourceRange(range) => self.ranges.removed(range),
            Change::Frontend(at, value) | Change::Restrict(at, value) => {
                self.count_frontend(&at, value, 1);
                if let Some(before) = self.frontends.record(at, Some(value)) {
                    self.count_frontend(&at, before, -1);
                }
            }
            Change::RemoveFrontend(at) => {
                if let Some(before) = self.frontends.record(at, None) {
                    self.count_frontend(&at, before, -1);
                }
            }
        }
    }

    /// Records slots of the slice in use. Slots of a fresh slice count once the word names the
    /// slice.
    fn record_slots(&mut self, service: u32, words: &[(u32, Slot)], now: Duration) {
        let Some(state) = self.services.get_mut(service) else { return };
        let slice = state.slice();
        for (index, word) in words {
            let at = index.checked_sub(slice.offset).filter(|at| *at < slice.length);
            if let Some(at) = at.and_then(|at| usize::try_from(at).ok()) {
                state.change_slot(at, *word, now);
            }
        }
        self.slots_changed(service, now);
    }

    fn record_service(&mut self, id: u32, entry: ServiceEntry, now: Duration) {
        let Fresh { slots, room, former } = self.fresh.remove(&id).unwrap_or_default();
        let Some(state) = self.services.get_mut(id) else { return };
        state.entry = entry;
        state.slots = slots;
        let before = std::mem::replace(&mut state.room, room);
        if before != room {
            let kept = former.map_or(0, |former| former.within(before));
            let extent = Extent { offset: before.offset + kept, length: before.length - kept };
            self.slot_allocator.rest(extent, now);
        }
        self.record_former(id, former, now);
        self.slots_changed(id, now);
    }

    /// Updates the records that depend on the slots of a service.
    pub(super) fn slots_changed(&mut self, service: u32, now: Duration) {
        self.services.review_slots(service, now);
        self.rename_backends(service);
    }

    /// Updates the backends' records of the services that name them.
    fn rename_backends(&mut self, service: u32) {
        let Some(state) = self.services.get_mut(service) else { return };
        let named: BTreeSet<u32> = state.owners();
        let family = state.family;
        let before = std::mem::replace(&mut state.named, named.clone());
        let backends = self.backends_mut(family);
        for id in before.difference(&named) {
            backends.set_named(*id, service, Named::No);
        }
        for id in named.difference(&before) {
            backends.set_named(*id, service, Named::Yes);
        }
    }

    /// Counts the frontends of a service id. The plan releases an id only after its last frontend.
    pub(super) fn count_frontend(&mut self, at: &FrontendAt, value: Frontend, by: isize) {
        self.ranges.count_frontend(value, by);
        self.vips.count_frontend(at, value, by);
        let ids: BTreeSet<u32> = [value.service, value.cluster_service].into_iter().collect();
        for id in ids {
            if let Some(state) = self.services.get_mut(id) {
                state.frontends = state.frontends.saturating_add_signed(by);
                if value.flags & FRONTEND_AFFINITY != 0 {
                    state.affinities = state.affinities.saturating_add_signed(by);
                }
                if value.needs_no_flow_entry() && id == value.service {
                    state.by_slot = state.by_slot.saturating_add_signed(by);
                }
                let was_cluster = value.flags & FRONTEND_WAS_CLUSTER != 0;
                if value.may_have_dsr() && (id == value.service || was_cluster) {
                    state.dsr_frontends = state.dsr_frontends.saturating_add_signed(by);
                }
            }
        }
    }
}
