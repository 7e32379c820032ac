//! Settles slots (rule 5 of the slot). A slot is settled once no flow entry disagrees with its
//! current owner. Its director then needs no flow entries.
//!
//! A round is one walk through all flow entries, embryos first. Entries move only from FLOWS_NEW to
//! FLOWS, so the walk misses no entry that is present all the time. Entries added behind the walk
//! come from the slot itself and name its current or its settled owner. So a slot counts only if it
//! did not change since the round began. The agent clears its bit only if both owners are the same.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use proxy_common::Address;
use proxy_common::flow::{FLOW_REPLY, Flow, FlowKey};
use proxy_common::hash::{client_hash, flow_hash};
use proxy_common::rules::LastChange;
use proxy_common::selection::{BackendRef, Slot};

use super::services::ServiceState;
use super::{Change, Kernel, Plan};

/// The time a program needs at most between reading a slot and adding the flow entry.
const MARGIN: Duration = Duration::from_secs(1);

/// A walk through all flow entries.
#[derive(Debug)]
pub struct SettlingRound {
    started: Duration,
    /// Slots with a flow entry for a living backend other than the current owner.
    disputed: HashSet<u32>,
    /// Services not yet settled.
    left: BTreeSet<u32>,
}

impl Plan {
    /// Begins a round; `None` if all slots are settled.
    #[must_use]
    pub fn begin_round(&self, now: Duration) -> Option<SettlingRound> {
        let left: BTreeSet<u32> = self.services.unsettled().collect();
        (!left.is_empty()).then(|| SettlingRound { started: now, disputed: HashSet::new(), left })
    }

    /// Compares a flow entry that has not expired with its slot.
    pub fn check_flow<A: Address>(
        &self,
        round: &mut SettlingRound,
        key: &FlowKey<A>,
        flow: &Flow<A>,
        now: Duration,
    ) {
        if !round.left.contains(&flow.service) {
            return;
        }
        let Some(state) = self.services.get(flow.service) else { return };
        let Some((index, slot)) = slot_of(state, key, flow) else { return };
        let backend = BackendRef(flow.backend);
        let disagrees = slot.is_unsettled() && slot.current() != backend;
        if disagrees && self.backends(state.family).may_live(backend, now) {
            round.disputed.insert(index);
        }
    }

    /// Settles the slots of one more service after the walk.
    ///
    /// Returns the number of changed words; `None` if no service is left. A failed write waits for
    /// a later round.
    pub fn settle_next(
        &mut self,
        round: &mut SettlingRound,
        established: Duration,
        now: Duration,
        kernel: &mut impl Kernel,
    ) -> Option<usize> {
        let service = round.left.pop_first()?;
        let words = self.services.get(service).map(|state| settled_words(state, round, established));
        let words = words.filter(|words| !words.is_empty()).unwrap_or_default();
        let count = words.len();
        let change = Change::Slots { service, words };
        if count == 0 || kernel.apply(&change).is_err() {
            return Some(0);
        }
        self.record(change, now);
        Some(count)
    }
}

/// Returns the slots of a service that a round settles, and their words.
fn settled_words(state: &ServiceState, round: &SettlingRound, established: Duration) -> Vec<(u32, Slot)> {
    let slots = (state.entry.offset()..).zip(&state.slots).zip(0..);
    slots
        .filter(|((index, slot), _)| slot.is_unsettled() && !round.disputed.contains(index))
        .filter_map(|((index, slot), at)| {
            let silent = round.started.checked_sub(state.changed(at)?.saturating_add(MARGIN))?;
            let last_change = if silent > established { LastChange::Old } else { LastChange::Recent };
            Some((index, slot.settle(last_change))).filter(|(_, word)| word != slot)
        })
        .collect()
}

/// Returns the slot of a connection and its index in SELECTION.
///
/// If the client's entry was evicted, the reply's entry stands for it: it brings the client's entry
/// back.
fn slot_of<A: Address>(state: &ServiceState, key: &FlowKey<A>, flow: &Flow<A>) -> Option<(u32, Slot)> {
    let client = if flow.flags & FLOW_REPLY == 0 { *key } else { flow.twin(key) };
    let hash = if state.affinities > 0 { client_hash(&client.source) } else { flow_hash(&client) };
    let index = state.entry.slot(hash);
    let at = usize::try_from(index.checked_sub(state.entry.offset())?).ok()?;
    Some((index, *state.slots.get(at)?))
}
