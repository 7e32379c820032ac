//! What the walks of the [collector](super::collect) delete from one batch of entries.

use std::time::Duration;

use aya::Pod;
use proxy_common::Address;
use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::flow::{FLOW_ESTABLISHED, Flow, FlowKey};
use proxy_common::timeouts::{self, Timeouts};

use super::error::OpenError;
use super::flow_count::States;
use super::flow_pressure::Pressure;
use super::maps::{Batch, Table};
use super::plan::{Plan, SettlingRound};
use super::snat_usage::Usage;
use super::sys::Cursor;

/// The monotonic clock of the programs and of the plan.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The low 32 bits of its seconds.
    pub seconds: u32,
    /// All of it.
    pub time: Duration,
}

/// The rules of deletion.
pub(super) struct Rules<'a> {
    pub plan: &'a Plan,
    pub timeouts: &'a Timeouts,
    pub now: Clock,
}

/// The observers of entries that stay, and what makes other entries go.
pub(super) struct Observers<'a> {
    pub round: &'a mut Option<SettlingRound>,
    pub states: &'a mut States,
    pub usage: &'a mut Usage,
    /// None for embryos, which the kernel evicts.
    pub pressure: Option<&'a mut Pressure>,
}

impl Rules<'_> {
    fn is_expired<A: Address>(&self, flow: &Flow<A>, pressure: Option<&Pressure>) -> bool {
        let silent = timeouts::silence(flow.last_seen, self.now.seconds);
        flow.has_expired(self.timeouts, self.now.seconds)
            || pressure.is_some_and(|pressure| pressure.wants(flow, silent))
    }

    fn visit<A: Address>(&self, observers: &mut Observers<'_>, key: &FlowKey<A>, flow: &Flow<A>) {
        observers.states.count(flow.state);
        if let Some(round) = observers.round {
            self.plan.check_flow(round, key, flow, self.now.time);
        }
        // The entries of a confirmed connection stay with the embryos if FLOWS has no room. Those of one whose first
        // packet here was no SYN have the same state.
        if observers.pressure.is_some() || flow.state == FLOW_ESTABLISHED {
            observers.usage.count(key, flow);
        }
    }

    fn is_unassigned(&self, service: u32) -> bool {
        self.plan.is_unassigned(service, self.now.time)
    }
}

/// Deletes the expired entries of one batch and those of unassigned service ids. An agent without a
/// reclaim walk may have left the latter.
///
/// The two entries of a connection expire together. Each has its own `last seen`, and a one-way
/// stream must not lose the entry of its quiet direction.
pub(super) fn expire<A: Address>(
    table: &mut Table<FlowKey<A>, Flow<A>>,
    cursor: Option<Cursor>,
    batch: &mut Batch<FlowKey<A>, Flow<A>>,
    rules: &Rules<'_>,
    mut observers: Observers<'_>,
) -> Result<(usize, Option<Cursor>), OpenError> {
    let (entries, next) = table.batch(cursor, batch)?;
    let mut candidates = Vec::new();
    for (key, flow) in entries {
        let pressure = observers.pressure.as_deref();
        if rules.is_expired(&flow, pressure) || rules.is_unassigned(flow.service) {
            candidates.push(key);
        } else {
            rules.visit(&mut observers, &key, &flow);
        }
    }
    let mut removed = 0;
    for key in candidates {
        let pressure = observers.pressure.as_deref();
        // Read again: a packet may have renewed it since.
        let Some(flow) = table.get(&key).ok().flatten() else { continue };
        // After it, because a packet renews both.
        let twin = table.get(&flow.twin(&key)).ok().flatten();
        let may_expire = twin.is_none_or(|twin| rules.is_expired(&twin, pressure));
        let may_go = rules.is_unassigned(flow.service) || may_expire && rules.is_expired(&flow, pressure);
        if !may_go {
            rules.visit(&mut observers, &key, &flow);
            continue;
        }
        // The other half is of no use alone, and in a full table the programs could not make this one again. But if a
        // packet has renewed it, its next one will.
        let twin = twin.filter(|twin| twin.is_twin_of(&key) && rules.is_expired(twin, pressure));
        for key in [Some(key), twin.map(|_| flow.twin(&key))].into_iter().flatten() {
            if table.remove(&key).is_ok() {
                removed += 1;
                if let Some(pressure) = &mut observers.pressure {
                    pressure.gone();
                }
            }
        }
    }
    Ok((removed, next))
}

/// Deletes the entries of unassigned service ids in one batch; `service` returns the id of an
/// entry.
///
/// The age does not matter here. The programs ignore an old affinity entry, and the kernel evicts
/// the least recently used ones.
pub(super) fn remove_unassigned<K: Pod, V: Pod>(
    table: &mut Table<K, V>,
    cursor: Option<Cursor>,
    batch: &mut Batch<K, V>,
    service: fn(&K, &V) -> u32,
    rules: &Rules<'_>,
) -> Result<(usize, Option<Cursor>), OpenError> {
    let is_unassigned = |key: &K, entry: &V| rules.is_unassigned(service(key, entry));
    let (entries, next) = table.batch(cursor, batch)?;
    let candidates: Vec<K> =
        entries.filter(|(key, entry)| is_unassigned(key, entry)).map(|(key, _)| key).collect();
    let mut removed = 0;
    for key in candidates {
        // Read again: the connection may belong to another service since.
        let entry = table.get(&key).ok().flatten();
        if entry.is_some_and(|entry| is_unassigned(&key, &entry)) && table.remove(&key).is_ok() {
            removed += 1;
        }
    }
    Ok((removed, next))
}

pub(super) const fn of_flow<A>(_: &FlowKey<A>, flow: &Flow<A>) -> u32 {
    flow.service
}

pub(super) const fn of_affinity<A>(key: &AffinityKey<A>, _: &Affinity) -> u32 {
    key.service
}
