//! Flow entries: look-up, creation, promotion and the TCP states.
//!
//! Entries of both directions are made, renewed and closed together, so that neither outlives the other.

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::generated::bpf_ktime_get_coarse_ns;
use proxy_common::flow::{
    FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ENCAPSULATE, FLOW_ESTABLISHED, FLOW_FIN_BACKEND, FLOW_FIN_CLIENT,
    FLOW_REPLY, FLOW_REWRITE_DESTINATION, FLOW_REWRITE_SOURCE, FLOW_SYN, Flow, FlowKey,
};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use crate::config;
use crate::family::{Family, FlowOf, KeyOf};
use crate::observe;
use crate::packet::Parsed;
use crate::packet::header::{protocol, tcp_flag};
use crate::verdict::{NO_ROOM, Verdict};

const BOTH_FINS: u8 = FLOW_FIN_CLIENT | FLOW_FIN_BACKEND;
const NANOSECONDS: u64 = 1_000_000_000;

/// What a walk needs of an entry that has not expired; the rest stays in the map.
#[derive(Clone, Copy)]
pub struct Found {
    /// The backend that serves the connection.
    pub backend: BackendRef,
    last_seen: u32,
    state: u8,
    flags: u8,
    /// Whether it is still in FLOWS_NEW.
    embryo: bool,
}

/// Who sent the packet that renews an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The client.
    Client,
    /// The backend.
    Backend,
}

/// Monotonic seconds, by the coarse clock: a tick's precision, a third of the price.
#[inline(always)]
pub fn now() -> u32 {
    // SAFETY: no arguments, no preconditions.
    (unsafe { bpf_ktime_get_coarse_ns() } / NANOSECONDS) as u32
}

/// The live entry for a client's packet, unless the packet opens a new connection that happens to have the ports
/// of one that has ended.
#[inline(always)]
pub fn lookup<F: Family>(parsed: &Parsed<F::Address>, now: u32) -> Option<Found> {
    let (found, _) = find::<F>(&parsed.key, now)?;
    let ended = found.state == FLOW_CLOSING || found.flags & FLOW_FIN_CLIENT != 0;
    let belongs = found.flags & FLOW_REPLY == 0 && !(parsed.is_syn() && ended);
    belongs.then_some(found)
}

/// The live entry for a backend's reply, with the frontend it has to come from.
#[inline(always)]
pub fn lookup_reply<F: Family>(parsed: &Parsed<F::Address>, now: u32) -> Option<(Found, (F::Address, u16))> {
    let (found, flow) = find::<F>(&parsed.key, now)?;
    (found.flags & FLOW_REPLY != 0).then_some((found, (flow.source, flow.source_port)))
}

/// The reference may be recycled under us: what is read through it is read at once, and the backend reference
/// carries a generation that the caller checks.
#[inline(always)]
fn find<F: Family>(key: &KeyOf<F>, now: u32) -> Option<(Found, &'static FlowOf<F>)> {
    // SAFETY: see above; the memory is the map's for the program's run.
    if let Some(flow) = unsafe { F::flows().get(key) }
        && let Some(found) = live::<F>(flow, false, now)
    {
        return Some((found, flow));
    }
    // SAFETY: as above.
    let flow = unsafe { F::flows_new().get(key) }?;
    live::<F>(flow, true, now).map(|found| (found, flow))
}

#[inline(always)]
fn live<F: Family>(flow: &FlowOf<F>, embryo: bool, now: u32) -> Option<Found> {
    let Flow { backend, last_seen, state, flags, .. } = *flow;
    if config::timeouts().expired(state, last_seen, now) {
        return None;
    }
    Some(Found { backend: BackendRef(backend), last_seen, state, flags, embryo })
}

/// Makes both entries of a connection to a backend on this node.
#[inline(never)]
pub fn create<F: Family>(
    parsed: &Parsed<F::Address>,
    destination: &(F::Address, u16),
    owner: &Owner,
    now: u32,
) -> Result<(), Verdict> {
    let key = &parsed.key;
    // One entry is built and turned round in place: two of them do not fit the stack beside the caller's.
    let mut flow = Flow {
        source: key.source,
        source_port: key.source_port,
        destination: destination.0,
        destination_port: destination.1,
        flags: FLOW_REWRITE_DESTINATION | owner.flags,
        ..blank::<F>(parsed, owner, now)
    };
    let reply_key = FlowKey {
        source: destination.0,
        source_port: destination.1,
        destination: key.source,
        destination_port: key.source_port,
        protocol: key.protocol,
        reserved: [0; 3],
    };
    if is_taken::<F>(&reply_key, key, now) {
        return Err(Verdict::Drop(Reason::ReplyKeyInUse));
    }
    // What stands in FLOWS is expired, closing, or names a backend that is gone; it would be found first.
    let _ = F::flows().remove(key);
    let _ = F::flows().remove(&reply_key);
    F::flows_new().insert(key, &flow, BPF_ANY.into()).map_err(|_| NO_ROOM)?;
    turn_round::<F>(&mut flow, key);
    F::flows_new().insert(&reply_key, &flow, BPF_ANY.into()).map_err(|_| NO_ROOM)?;
    observe::note_served();
    Ok(())
}

/// Whether a live connection of another client tuple uses this reply key.
#[inline(always)]
fn is_taken<F: Family>(reply_key: &KeyOf<F>, key: &KeyOf<F>, now: u32) -> bool {
    // SAFETY: read at once; the worst a recycled entry does is to refuse a connection's first packet.
    let Some(other) = (unsafe { F::flows().get(reply_key) }) else {
        return false;
    };
    let live = matches!(other.state, FLOW_ESTABLISHED | FLOW_DATAGRAM)
        && !config::timeouts().expired(other.state, other.last_seen, now);
    // A reply entry holds the frontend as its source and the client as its destination.
    live && (other.source != key.destination || other.source_port != key.destination_port)
}

/// Turns the client's entry into the reply's, or the other way round.
#[inline(always)]
fn turn_round<F: Family>(flow: &mut FlowOf<F>, key: &KeyOf<F>) {
    const REWRITES: u8 = FLOW_REWRITE_SOURCE | FLOW_REWRITE_DESTINATION;
    flow.source = key.destination;
    flow.source_port = key.destination_port;
    flow.destination = key.source;
    flow.destination_port = key.source_port;
    flow.flags = (flow.flags ^ FLOW_REPLY) & !REWRITES | swap_rewrites(flow.flags);
}

/// Remembers on a director which node serves a connection whose slot is unsettled.
#[inline(never)]
pub fn remember<F: Family>(parsed: &Parsed<F::Address>, owner: &Owner, now: u32) -> Result<(), Verdict> {
    let _ = F::flows().remove(&parsed.key);
    let flow = Flow { flags: FLOW_ENCAPSULATE, ..blank::<F>(parsed, owner, now) };
    F::flows_new().insert(&parsed.key, flow, BPF_ANY.into()).map_err(|_| NO_ROOM)
}

/// Whom a connection was given to.
#[derive(Clone, Copy)]
pub struct Owner {
    /// The backend.
    pub backend: BackendRef,
    /// The service it was chosen for.
    pub service: u32,
    /// `FLOW_*` bits both entries get.
    pub flags: u8,
}

#[inline(always)]
fn blank<F: Family>(parsed: &Parsed<F::Address>, owner: &Owner, now: u32) -> FlowOf<F> {
    let state = if parsed.key.protocol == protocol::TCP { FLOW_SYN } else { FLOW_DATAGRAM };
    Flow { backend: owner.backend.0, service: owner.service, last_seen: now, state, ..Flow::default() }
}

/// Renews an entry and its twin for a packet: promotes an embryo the client has answered in, follows FIN and RST,
/// and writes the time at most once a second.
#[inline(always)]
pub fn track<F: Family>(parsed: &Parsed<F::Address>, found: Found, sender: Sender, now: u32) {
    let grown_up = found.embryo && sender == Sender::Client && !parsed.is_syn();
    let ending = parsed.tcp_flags & (tcp_flag::FIN | tcp_flag::RST) != 0;
    if grown_up || ending || found.last_seen != now {
        let table = match (found.embryo, grown_up) {
            (false, _) => Table::Flows,
            (true, false) => Table::FlowsNew,
            (true, true) => Table::Promoted,
        };
        renew::<F>(parsed, table, sender, now);
    }
}

/// Where an entry is, and where it belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Flows,
    FlowsNew,
    /// In FLOWS_NEW, and from now on in FLOWS.
    Promoted,
}

#[inline(never)]
fn renew<F: Family>(parsed: &Parsed<F::Address>, table: Table, sender: Sender, now: u32) {
    let entry = match table {
        // SAFETY: copied at once, below; if it was recycled since it was found, one entry of another connection is
        // renewed for nothing.
        Table::Flows => unsafe { F::flows().get(&parsed.key) },
        // SAFETY: as above.
        Table::FlowsNew | Table::Promoted => unsafe { F::flows_new().get(&parsed.key) },
    };
    let Some(entry) = entry else {
        return;
    };
    let mut flow = *entry;
    flow.last_seen = now;
    if table == Table::Promoted && flow.state == FLOW_SYN {
        flow.state = FLOW_ESTABLISHED;
    }
    if parsed.tcp_flags & tcp_flag::FIN != 0 {
        flow.flags |= if sender == Sender::Client { FLOW_FIN_CLIENT } else { FLOW_FIN_BACKEND };
    }
    if parsed.tcp_flags & tcp_flag::RST != 0 || flow.flags & BOTH_FINS == BOTH_FINS {
        flow.state = FLOW_CLOSING;
    }
    let twin_key = flow.twin(&parsed.key);
    store::<F>(&parsed.key, &flow, table);
    if flow.flags & FLOW_ENCAPSULATE != 0 {
        return;
    }
    // The twin is made from what both share, so that one that was evicted comes back.
    turn_round::<F>(&mut flow, &parsed.key);
    store::<F>(&twin_key, &flow, table);
}

/// What is a source in one direction is a destination in the other.
#[inline(always)]
const fn swap_rewrites(flags: u8) -> u8 {
    (flags & FLOW_REWRITE_SOURCE) << 1 | (flags & FLOW_REWRITE_DESTINATION) >> 1
}

#[inline(always)]
fn store<F: Family>(key: &KeyOf<F>, flow: &FlowOf<F>, table: Table) {
    // A refused insert leaves the older entry, which serves the connection as well.
    if table == Table::FlowsNew {
        let _ = F::flows_new().insert(key, flow, BPF_ANY.into());
        return;
    }
    let _ = F::flows().insert(key, flow, BPF_ANY.into());
    if table == Table::Promoted {
        let _ = F::flows_new().remove(key);
    }
}
