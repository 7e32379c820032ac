//! Counters, the ports of backends, and the heartbeat of the agent.

use proxy_common::config::{AGENT_HEARTBEAT, AGENT_HOLD, AGENT_NAMESPACE, HEARTBEAT_SECONDS, PORT_GROUP};
use proxy_common::verdict::{Counter, Program, Reason};

use crate::maps::{self, clock};

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

/// Whether a backend with this port was ever given a connection whose replies are restored here.
///
/// Most packets that leave the node have another source port, and need no further look.
#[inline(always)]
pub fn has_served(port: u16) -> bool {
    let (group, member) = port_index(port);
    maps::SERVED_PORTS.get(group).and_then(|ports| ports.get(member)).is_some_and(|served| *served != 0)
}

/// Records that replies from a port are restored here.
#[inline(always)]
pub fn note_served(port: u16) {
    let (group, member) = port_index(port);
    if let Some(ports) = maps::SERVED_PORTS.get_ptr_mut(group) {
        // SAFETY: the map look-up checked the group, and the mask the member; every writer writes the same
        // byte.
        unsafe { *ports.cast::<u8>().add(member) = 1 };
    }
}

#[inline(always)]
const fn port_index(port: u16) -> (u32, usize) {
    (port as u32 / PORT_GROUP, (port as u32 % PORT_GROUP) as usize)
}

/// Whether the agent follows routes and neighbours, so that the programs can rely on resolved ways.
#[inline(always)]
pub fn agent_is_alive() -> bool {
    maps::AGENT
        .get(AGENT_HEARTBEAT)
        .is_some_and(|beat| clock::now().saturating_sub(*beat as u32) <= HEARTBEAT_SECONDS)
}

/// Whether connections must stay out of FLOWS, because the agent copies it.
#[inline(always)]
pub fn flows_are_held() -> bool {
    maps::AGENT.get(AGENT_HOLD).is_some_and(|until| u64::from(clock::now()) < *until)
}

/// Cookie of the node's own network namespace; 0, which no namespace has, if no agent wrote it.
#[inline(always)]
pub fn node_namespace() -> u64 {
    maps::AGENT.get(AGENT_NAMESPACE).copied().unwrap_or(0)
}
