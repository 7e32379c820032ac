//! Settles slots (rule 5 of the slot). A slot is settled once no flow entry disagrees with its
//! current owner. Its director then needs no flow entries.
//!
//! A round is one walk through all flow entries, embryos first. Entries move only from FLOWS_NEW to
//! FLOWS, so the walk misses no entry that is present all the time. Entries added behind the walk
//! come from the slot itself and name its current or its settled owner. So a slot counts only if it
//! did not change since the round began. The agent clears its bit only if both owners are the same.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use proxy_common::Address;
use proxy_common::flow::{FLOW_DECAPSULATED, FLOW_REPLY, Flow, FlowKey};
use proxy_common::hash::{client_hash, flow_hash};
use proxy_common::rules::LastChange;
use proxy_common::selection::{BackendRef, Slot};

use super::services::ServiceState;
use super::{Change, Kernel, Plan};

/// The time a program needs at most between reading a slot and adding the flow entry.
const MARGIN: Duration = Duration::from_secs(1);

/// A walk through all flow entries.
#[derive(Debug, Default)]
pub struct SettlingRound {
    started: Duration,
    /// The lists to look at for an entry with this service id. The entries of a port have one id,
    /// whichever of its lists chose the backend.
    lists: HashMap<u32, Vec<u32>>,
    /// Slots with a flow entry for a living backend other than the current owner.
    disputed: HashSet<u32>,
    /// Services with an entry of a connection that a director encapsulates.
    returning: BTreeSet<u32>,
    /// Services not yet settled.
    left: BTreeSet<u32>,
}

impl Plan {
    /// Begins a round; `None` if all slots are settled. A list that no port has claimed yet waits: its
    /// connections may be those of the port's other list.
    #[must_use]
    pub fn begin_round(&self, now: Duration) -> Option<SettlingRound> {
        let left = self.services.unsettled().chain(self.services.with_former());
        let left = left.chain(self.services_with_dsr_ending());
        let is_claimed = |id: &u32| self.services.get(*id).is_some_and(|state| state.owner.is_some());
        let left: BTreeSet<u32> = left.filter(is_claimed).collect();
        if left.is_empty() {
            return None;
        }
        let mut lists: HashMap<u32, Vec<u32>> = HashMap::new();
        for list in &left {
            let owner = self.services.get(*list).and_then(|state| state.owner.as_ref());
            let ids =
                owner.and_then(|owner| self.ports.get(owner)).into_iter().flat_map(|port| &port.services);
            ids.for_each(|id| lists.entry(*id).or_default().push(*list));
        }
        Some(SettlingRound { started: now, lists, left, ..SettlingRound::default() })
    }

    /// Compares a flow entry that has not expired with its slot.
    pub fn check_flow<A: Address>(
        &self,
        round: &mut SettlingRound,
        key: &FlowKey<A>,
        flow: &Flow<A>,
        now: Duration,
    ) {
        let Some(lists) = round.lists.remove(&flow.service) else { return };
        for service in &lists {
            self.check_list(round, *service, key, flow, now);
        }
        round.lists.insert(flow.service, lists);
    }

    fn check_list<A: Address>(
        &self,
        round: &mut SettlingRound,
        service: u32,
        key: &FlowKey<A>,
        flow: &Flow<A>,
        now: Duration,
    ) {
        // A translated entry has this bit for something else.
        if flow.flags & FLOW_DECAPSULATED != 0 && !flow.is_translated() {
            round.returning.insert(service);
        }
        let Some(state) = self.services.get(service) else { return };
        let Some((index, slot)) = slot_of(state, key, flow) else { return };
        let backend = BackendRef(flow.backend);
        // A settled slot leads by Direct Server Return, so an entry by SNAT disagrees with any owner.
        let disagrees = slot.is_unsettled() && (slot.current() != backend || flow.is_translated());
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
        let silence = established.saturating_add(MARGIN);
        self.end_dsr(service, round.started, silence, &round.returning);
        let former = self.services.get(service).and_then(|state| state.former);
        if former
            .is_some_and(|former| round.started.checked_sub(former.since).is_some_and(|age| age > silence))
        {
            self.end_former_table(service);
        }
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
    // A former table may lead to connections without an entry.
    if state.former.is_some() {
        return Vec::new();
    }
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
