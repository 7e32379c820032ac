//! Flow entries go when they have expired.
//!
//! The programs take an expired entry for none, and the least recently used ones are evicted when room is
//! needed: collecting only keeps the tables, and what is shown of them, small.

use proxy_common::Address;
use proxy_common::flow::{Flow, FlowKey, Timeouts};

use super::error::OpenError;
use super::maps::{FamilyMaps, Maps, Table};

impl Maps {
    /// Deletes the expired entries of all four tables; returns how many.
    pub fn collect_flows(&mut self, timeouts: &Timeouts, now: u32) -> Result<usize, OpenError> {
        Ok(collect_family(&mut self.of4, timeouts, now)? + collect_family(&mut self.of6, timeouts, now)?)
    }
}

fn collect_family<A: Address>(
    maps: &mut FamilyMaps<A>,
    timeouts: &Timeouts,
    now: u32,
) -> Result<usize, OpenError> {
    Ok(collect(&mut maps.flows, timeouts, now)? + collect(&mut maps.flows_new, timeouts, now)?)
}

/// The two entries of a connection go together: `last seen` is kept in each, and a one-way stream (a download
/// whose acknowledgements are all the client sends) must not lose the entry of its quiet direction.
fn collect<A: Address>(
    table: &mut Table<FlowKey<A>, Flow<A>>,
    timeouts: &Timeouts,
    now: u32,
) -> Result<usize, OpenError> {
    let is_expired = |flow: &Flow<A>| timeouts.expired(flow.state, flow.last_seen, now);
    let mut expired = Vec::new();
    table.for_each(|key, flow| {
        if is_expired(&flow) {
            expired.push((key, flow));
        }
        true
    })?;
    let mut removed = 0;
    for (key, flow) in expired {
        let twin = table.get(&flow.twin(&key)).ok().flatten();
        // Asked again: it may have been renewed since.
        let still = table.get(&key).ok().flatten().is_some_and(|flow| is_expired(&flow));
        if still && twin.is_none_or(|twin| is_expired(&twin)) && table.remove(&key).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
