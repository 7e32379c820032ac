//! Counters, and the two words the programs and the agent leave for each other.

use proxy_common::config::{AGENT_HEARTBEAT, AGENT_SERVED, HEARTBEAT_SECONDS};
use proxy_common::verdict::{Counter, Program, Reason};

use crate::maps;

/// Counts a packet under its one reason.
#[inline(always)]
pub fn count(program: Program, reason: Reason, bytes: u32) {
    add(maps::COUNTERS.get_ptr_mut(program.counter(reason)), bytes);
}

/// Counts a client's packet for its service.
#[inline(always)]
pub fn count_service(service: u32, bytes: u32) {
    add(maps::SERVICE_STATS.get_ptr_mut(service), bytes);
}

#[inline(always)]
fn add(counter: Option<*mut Counter>, bytes: u32) {
    if let Some(counter) = counter {
        // SAFETY: the map look-up checked the index; the entry is this CPU's own.
        unsafe {
            (*counter).packets = (*counter).packets.wrapping_add(1);
            (*counter).bytes = (*counter).bytes.wrapping_add(u64::from(bytes));
        }
    }
}

/// Whether this node ever made an entry whose reply `tc_egress` must translate.
#[inline(always)]
pub fn has_served() -> bool {
    maps::AGENT.get(AGENT_SERVED).is_some_and(|word| *word != 0)
}

/// Remembers that this node serves.
#[inline(always)]
pub fn note_served() {
    if !has_served()
        && let Some(word) = maps::AGENT.get_ptr_mut(AGENT_SERVED)
    {
        // SAFETY: the map look-up checked the index; an aligned word, and every writer writes the same.
        unsafe { *word = 1 };
    }
}

/// Whether the agent follows routes and neighbours, so that resolved ways can be believed.
#[inline(always)]
pub fn agent_is_alive(now: u32) -> bool {
    maps::AGENT.get(AGENT_HEARTBEAT).is_some_and(|beat| now.saturating_sub(*beat as u32) <= HEARTBEAT_SECONDS)
}
