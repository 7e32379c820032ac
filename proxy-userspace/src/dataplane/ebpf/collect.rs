//! Flow entries go when they have expired.
//!
//! The programs take an expired entry for none, and the least recently used ones are evicted when room is
//! needed: collecting only keeps the tables, and what is shown of them, small. So it need not hurry.

use std::time::{Duration, Instant};

use proxy_common::flow::{Flow, FlowKey, Timeouts};
use proxy_common::{Addr4, Addr6, Address};

use super::error::OpenError;
use super::maps::{Batch, Maps, Table};
use super::sys::Cursor;

/// How long a call may go on: changes wait that long, however large the tables are.
const BUDGET: Duration = Duration::from_millis(5);

/// Goes round the four tables, and remembers where it was.
#[derive(Debug)]
pub struct Collector {
    table: usize,
    cursor: Option<Cursor>,
    budget: Duration,
    batch4: Batch<FlowKey<Addr4>, Flow<Addr4>>,
    batch6: Batch<FlowKey<Addr6>, Flow<Addr6>>,
}

impl Collector {
    /// One that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self { table: 0, cursor: None, budget: BUDGET, batch4: Batch::new(), batch6: Batch::new() }
    }

    /// Deletes expired entries where it is; returns how many. A call ends after a full round at the latest, and
    /// with the batch in which its time is up.
    pub fn collect(&mut self, maps: &mut Maps, timeouts: &Timeouts, now: u32) -> Result<usize, OpenError> {
        let mut removed = 0;
        let mut tables = 0;
        let started = Instant::now();
        loop {
            let (count, next) = match self.table {
                0 => collect(&mut maps.of4.flows, self.cursor, &mut self.batch4, timeouts, now)?,
                1 => collect(&mut maps.of6.flows, self.cursor, &mut self.batch6, timeouts, now)?,
                2 => collect(&mut maps.of4.flows_new, self.cursor, &mut self.batch4, timeouts, now)?,
                _ => collect(&mut maps.of6.flows_new, self.cursor, &mut self.batch6, timeouts, now)?,
            };
            removed += count;
            self.cursor = next;
            if next.is_none() {
                self.table = (self.table + 1) % 4;
                tables += 1;
            }
            if tables == 4 || started.elapsed() >= self.budget {
                return Ok(removed);
            }
        }
    }
}

/// One batch. The two entries of a connection go together: `last seen` is kept in each, and a stream that has
/// been one-way for long must not lose the entry of its quiet direction.
fn collect<A: Address>(
    table: &mut Table<FlowKey<A>, Flow<A>>,
    cursor: Option<Cursor>,
    batch: &mut Batch<FlowKey<A>, Flow<A>>,
    timeouts: &Timeouts,
    now: u32,
) -> Result<(usize, Option<Cursor>), OpenError> {
    let is_expired = |flow: &Flow<A>| timeouts.expired(flow.state, flow.last_seen, now);
    let (entries, next) = table.batch(cursor, batch)?;
    let expired: Vec<_> = entries.filter(|(_, flow)| is_expired(flow)).collect();
    let mut removed = 0;
    for (key, flow) in expired {
        let twin = table.get(&flow.twin(&key)).ok().flatten();
        // Asked again: it may have been renewed since.
        let still = table.get(&key).ok().flatten().is_some_and(|flow| is_expired(&flow));
        if still && twin.is_none_or(|twin| is_expired(&twin)) && table.remove(&key).is_ok() {
            removed += 1;
        }
    }
    Ok((removed, next))
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
