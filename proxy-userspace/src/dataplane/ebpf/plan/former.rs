//! Tables that lists had before: the way to connections by Direct Server Return that have no flow entry.
//!
//! A director needs no entries while its slots are settled. In another table such a connection has another
//! slot. So the former table stays, and the word before the new slice names it. All slots of the new slice are
//! unsettled meanwhile: the programs ask for entries first, and enter what they find by the former table.
//! After the established time-out each connection has an entry, or has ended.

use std::time::Duration;

use super::change::{Change, Extent, Op};
use super::former_table::{FormerTable, Turn, Wanted, word_of};
use super::services::{ServiceState, seconds};
use super::{Fresh, Plan};

impl ServiceState {
    /// Returns the former table of a fresh slice behind the slot `word`, if the list needs one.
    ///
    /// The oldest one stays: its connections may be without an entry. Those of a table between have one,
    /// because its slots were unsettled.
    #[must_use]
    pub fn former_table(&self, word: u32, now: Duration) -> Option<FormerTable> {
        if let Some(former) = self.former.filter(|former| !former.is_over) {
            return Some(FormerTable { word, ..former });
        }
        self.leaves_table().then_some(FormerTable { word, slice: self.slice(), since: now, is_over: false })
    }

    /// Returns what a change of the frontends does to the list's connections.
    #[must_use]
    pub const fn turn(&self, wanted: Wanted) -> Turn {
        Turn {
            goes_by_slot: wanted.dsr && !wanted.affinity && self.by_slot == 0,
            leaves: wanted.affinity && self.leaves_table(),
        }
    }

    /// Returns whether connections of before may live: of the slice, of a list that is empty now, or of
    /// a former table.
    #[must_use]
    pub const fn has_older(&self) -> bool {
        self.room.length > 0 || self.former.is_some()
    }

    /// Makes all slots count as changed now: what was found about them may be outdated.
    pub fn restart_clock(&mut self, now: Duration) {
        self.changed = vec![seconds(now); self.slots.len()];
    }

    /// Returns whether the slice may be all that leads to some connections.
    ///
    /// With session affinity every connection has an entry.
    #[must_use]
    pub const fn leaves_table(&self) -> bool {
        self.is_maglev() && self.entry.length() > 0 && self.dsr_frontends > 0 && self.affinities == 0
    }
}

impl Plan {
    /// Marks the former tables of all lists if these slots are needed and would then be there.
    pub(super) fn end_former_tables(&mut self, needed: u32) {
        let ids: Vec<u32> = self.services.with_former().collect();
        let tables = ids.iter().filter_map(|id| self.services.get(*id)?.former);
        let room = tables.flat_map(|former| former.extents()).map(|extent| extent.length);
        if room.fold(self.slot_allocator.spare(), u32::saturating_add) >= needed {
            for id in ids {
                self.end_former_table(id);
            }
        }
    }

    /// Marks the former table of a list. The next sync removes it.
    pub(super) fn end_former_table(&mut self, id: u32) {
        if let Some(former) = self.services.get_mut(id).and_then(|state| state.former.as_mut()) {
            former.is_over = true;
        }
    }

    /// Plans the removal of the marked former tables.
    pub(super) fn plan_former_ends(&mut self) -> Vec<Op> {
        let mut ops = Vec::new();
        for id in self.services.with_former().collect::<Vec<_>>() {
            let Some(state) = self.services.get(id) else { continue };
            if state.former.is_none_or(|former| !former.is_over) {
                continue;
            }
            let word = word_of(state.slice(), state.entry.flags(), None);
            self.fresh.insert(id, Fresh { slots: state.slots.clone(), room: state.room, former: None });
            ops.push(Op { change: Change::Service(id, word), owner: state.owner.clone() });
        }
        ops
    }

    /// Replaces the former table of a list, and rests the slots of the one before.
    pub(super) fn record_former(&mut self, id: u32, former: Option<FormerTable>, now: Duration) {
        let kept = former.map_or([Extent::default(); 2], |former| former.extents());
        let before = self.services.set_former(id, former);
        let before = before.iter().flat_map(FormerTable::extents);
        for extent in before.filter(|extent| !kept.contains(extent)) {
            self.slot_allocator.rest(extent, now);
        }
    }
}
