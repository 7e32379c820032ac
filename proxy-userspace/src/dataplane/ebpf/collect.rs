//! Flow entries go when they have expired, and flow and affinity entries when their service id is nobody's any more.
//!
//! The programs take an expired entry for none, and the least recently used ones are evicted when room is
//! needed: collecting only keeps the tables, and what is shown of them, small. So it need not hurry.

use std::time::{Duration, Instant};

use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::flow::{Flow, FlowKey, Timeouts};
use proxy_common::{Addr4, Addr6, Address};

use super::error::OpenError;
use super::maps::{Batch, Maps, Table};
use super::plan::{Plan, Resting};
use super::sys::Cursor;

/// How long a call may go on: changes wait that long, however large the tables are.
const BUDGET: Duration = Duration::from_millis(5);

/// Goes round the tables, and remembers where it was.
#[derive(Debug)]
pub struct Collector {
    table: usize,
    cursor: Option<Cursor>,
    budget: Duration,
    /// Service ids that had rested when this round began.
    sweeping: Vec<Resting>,
    flows4: Batch<FlowKey<Addr4>, Flow<Addr4>>,
    flows6: Batch<FlowKey<Addr6>, Flow<Addr6>>,
    affinity4: Batch<AffinityKey<Addr4>, Affinity>,
    affinity6: Batch<AffinityKey<Addr6>, Affinity>,
}

/// The monotonic clock, as the programs and as the plan have it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The low 32 bits of its seconds.
    pub seconds: u32,
    /// All of it.
    pub time: Duration,
}

/// How many entries were deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Flow entries.
    pub flows: usize,
    /// Affinity entries.
    pub affinities: usize,
}

const TABLES: usize = 6;
/// The first table that is not of flows.
const AFFINITY: usize = 4;

impl Collector {
    /// One that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self {
            table: 0,
            cursor: None,
            budget: BUDGET,
            sweeping: Vec::new(),
            flows4: Batch::new(),
            flows6: Batch::new(),
            affinity4: Batch::new(),
            affinity6: Batch::new(),
        }
    }

    /// Deletes expired entries, and entries of nobody's service, where it is; returns how many, and tells `plan` which
    /// services have none after a full round. A call ends after a full round at the latest, and with the batch in
    /// which its time is up.
    pub fn collect(
        &mut self,
        maps: &mut Maps,
        plan: &mut Plan,
        timeouts: &Timeouts,
        now: Clock,
    ) -> Result<Collected, OpenError> {
        let mut removed = Collected::default();
        let mut tables = 0;
        let started = Instant::now();
        loop {
            if self.table == 0 && self.cursor.is_none() {
                self.sweeping = plan.unswept(now.time);
            }
            let (count, next) = self.collect_batch(maps, &Rules { plan, timeouts, now })?;
            let counted = if self.table < AFFINITY { &mut removed.flows } else { &mut removed.affinities };
            *counted += count;
            self.cursor = next;
            if next.is_none() {
                self.table = (self.table + 1) % TABLES;
                tables += 1;
                if self.table == 0 {
                    plan.swept(std::mem::take(&mut self.sweeping));
                }
            }
            if tables == TABLES || started.elapsed() >= self.budget {
                return Ok(removed);
            }
        }
    }

    fn collect_batch(
        &mut self,
        maps: &mut Maps,
        rules: &Rules<'_>,
    ) -> Result<(usize, Option<Cursor>), OpenError> {
        match self.table {
            0 => flows(&mut maps.of4.flows, self.cursor, &mut self.flows4, rules),
            1 => flows(&mut maps.of6.flows, self.cursor, &mut self.flows6, rules),
            2 => flows(&mut maps.of4.flows_new, self.cursor, &mut self.flows4, rules),
            3 => flows(&mut maps.of6.flows_new, self.cursor, &mut self.flows6, rules),
            4 => affinity(&mut maps.of4.affinity, self.cursor, &mut self.affinity4, rules),
            _ => affinity(&mut maps.of6.affinity, self.cursor, &mut self.affinity6, rules),
        }
    }
}

/// What may be deleted.
struct Rules<'a> {
    plan: &'a Plan,
    timeouts: &'a Timeouts,
    now: Clock,
}

impl Rules<'_> {
    fn is_expired<A: Address>(&self, flow: &Flow<A>) -> bool {
        self.timeouts.expired(flow.state, flow.last_seen, self.now.seconds)
    }

    fn is_nobodys(&self, service: u32) -> bool {
        self.plan.is_nobodys(service, self.now.time)
    }
}

/// One batch. The two entries of a connection expire together: `last seen` is kept in each, and a stream that has
/// been one-way for long must not lose the entry of its quiet direction.
fn flows<A: Address>(
    table: &mut Table<FlowKey<A>, Flow<A>>,
    cursor: Option<Cursor>,
    batch: &mut Batch<FlowKey<A>, Flow<A>>,
    rules: &Rules<'_>,
) -> Result<(usize, Option<Cursor>), OpenError> {
    let is_candidate = |flow: &Flow<A>| rules.is_expired(flow) || rules.is_nobodys(flow.service);
    let (entries, next) = table.batch(cursor, batch)?;
    let candidates: Vec<_> = entries.filter(|(_, flow)| is_candidate(flow)).collect();
    let mut removed = 0;
    for (key, flow) in candidates {
        let twin = table.get(&flow.twin(&key)).ok().flatten();
        let may_expire = twin.is_none_or(|twin| rules.is_expired(&twin));
        // Asked again: it may have been renewed since.
        let may_go = table
            .get(&key)
            .ok()
            .flatten()
            .is_some_and(|flow| rules.is_nobodys(flow.service) || may_expire && rules.is_expired(&flow));
        if may_go && table.remove(&key).is_ok() {
            removed += 1;
        }
    }
    Ok((removed, next))
}

/// One batch. Time does not matter here: an entry that is too old is not believed, and the least recently used ones
/// are evicted.
fn affinity<A: Address>(
    table: &mut Table<AffinityKey<A>, Affinity>,
    cursor: Option<Cursor>,
    batch: &mut Batch<AffinityKey<A>, Affinity>,
    rules: &Rules<'_>,
) -> Result<(usize, Option<Cursor>), OpenError> {
    let (entries, next) = table.batch(cursor, batch)?;
    let candidates: Vec<_> = entries.filter(|(key, _)| rules.is_nobodys(key.service)).collect();
    let removed = candidates.into_iter().filter(|(key, _)| table.remove(key).is_ok()).count();
    Ok((removed, next))
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
