//! Creation of flow entries, and removal of those in their way.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::figures::{ConnectionEvent, is_timed};
use proxy_common::flow::{
    FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ENCAPSULATE, FLOW_ESTABLISHED, FLOW_REWRITE_DESTINATION,
    FLOW_REWRITE_SOURCE, FLOW_SYN, Flow, FlowKey,
};
use proxy_common::hash::flow_hash;
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use crate::flow::entry::find;
use crate::header::{has_connections, tcp_flag};
use crate::maps::family::{Endpoint, Family, FlowOf, KeyOf};
use crate::maps::global::{KEY, REPLY_KEY, global_by_family, key_room, store_key, stored_key};
use crate::maps::{clock, figures, observe};
use crate::packet::Parsed;
use crate::verdict::{NO_ROOM, Verdict};

/// Makes both entries of a connection to a backend on this node, and returns the port by which the backend
/// knows the client.
///
/// It is another port than the client's own if the replies could not be told from another connection's. A RST
/// leaves no trace.
#[inline(never)]
pub fn create<F: Family>(
    parsed: &Parsed<F::Address>,
    destination: &Endpoint<F>,
    owner: &Owner,
) -> Result<u16, Verdict> {
    let key = &parsed.key;
    if parsed.tcp_flags & tcp_flag::RST != 0 {
        return Ok(key.source_port);
    }
    let reply_key = FlowKey {
        source: destination.0,
        source_port: destination.1,
        destination: key.source,
        destination_port: key.source_port,
        protocol: key.protocol,
        ..FlowKey::default()
    };
    port_or_verdict(open::<F>(key, &reply_key, owner, first_state(parsed)), Reason::ReplyKeyInUse)
}

/// No map accepted the entries.
pub const REFUSED: u32 = 1 << 16;

/// Every tried reply key belongs to another connection.
pub const IN_USE: u32 = 2 << 16;

/// The outcome of making two entries: the port by which the backend knows the client (network byte order), or
/// `REFUSED` or `IN_USE`.
#[inline(always)]
pub const fn port_or_verdict(answer: u32, in_use: Reason) -> Result<u16, Verdict> {
    match answer {
        REFUSED => Err(NO_ROOM),
        IN_USE => Err(Verdict::Drop(in_use)),
        port => Ok(port as u16),
    }
}

/// Makes both entries in a global function; [`port_or_verdict`] explains the answer.
#[inline(always)]
fn open<F: Family>(key: &KeyOf<F>, reply_key: &KeyOf<F>, owner: &Owner, state: u8) -> u32 {
    store_key::<F>(KEY, key);
    store_key::<F>(REPLY_KEY, reply_key);
    global_open::<F>(owner.backend.0, owner.service, Opening::new(owner.flags, state).0)
}

global_by_family! {
    fn global_open = open_flow4 | open_flow6(backend: u32, service: u32, opening: u32) -> u32, open_body
}

#[inline(always)]
fn open_body<F: Family>(backend: u32, service: u32, opening: u32) -> u32 {
    let (Some(key), Some(reply_key)) = (stored_key::<F>(KEY), key_room::<F>(REPLY_KEY)) else {
        return REFUSED;
    };
    let opening = Opening(opening);
    let owner = Owner { backend: BackendRef(backend), service, flags: opening.flags() };
    // SAFETY: this CPU's own, and no other code uses it meanwhile.
    let reply_key = unsafe { &mut *reply_key };
    let answer = insert_both::<F>(key, reply_key, &owner, opening.state());
    count_opened::<F>(answer, key, reply_key, &owner, opening.state());
    answer
}

/// Counts a new connection, and stores the time of some SYNs.
#[inline(always)]
pub fn count_opened<F: Family>(answer: u32, key: &KeyOf<F>, reply_key: &KeyOf<F>, owner: &Owner, state: u8) {
    // The entry of an established connection was lost.
    if answer >= REFUSED || state == FLOW_ESTABLISHED {
        return;
    }
    figures::count_connection::<F>(ConnectionEvent::Opened, key, owner.service, owner.backend);
    if state == FLOW_SYN && is_timed(reply_key.destination_port) {
        figures::begin_handshake(flow_hash(reply_key));
    }
}

/// The way a connection is opened: bits 0 to 7 are the `FLOW_*` bits of both entries, bits 8 to 15 their
/// state.
#[derive(Clone, Copy)]
pub struct Opening(pub u32);

impl Opening {
    const STATE_SHIFT: u32 = 8;

    /// Packs these bits and this state.
    #[inline(always)]
    pub const fn new(flags: u8, state: u8) -> Self {
        Self((state as u32) << Self::STATE_SHIFT | flags as u32)
    }
    /// The bits of both entries.
    #[inline(always)]
    pub const fn flags(self) -> u8 {
        self.0 as u8
    }
    /// The state of both entries.
    #[inline(always)]
    pub const fn state(self) -> u8 {
        (self.0 >> Self::STATE_SHIFT) as u8
    }
}

/// Makes both entries; [`port_or_verdict`] explains the answer.
#[inline(always)]
fn insert_both<F: Family>(key: &KeyOf<F>, reply_key: &mut KeyOf<F>, owner: &Owner, state: u8) -> u32 {
    // One entry is built and reversed in place: two entries do not fit the stack.
    let mut flow = blank::<F>(key, owner, state);
    (flow.destination, flow.destination_port) = (reply_key.source, reply_key.source_port);
    flow.flags = FLOW_REWRITE_DESTINATION | owner.flags;
    if is_taken::<F>(reply_key, key) {
        let Some(port) = free_port::<F>(reply_key, key) else {
            return IN_USE;
        };
        flow.source_port = port;
        flow.flags |= FLOW_REWRITE_SOURCE;
    }
    clear::<F>(key);
    clear::<F>(reply_key);
    if F::flows_new().insert(key, &flow, BPF_ANY.into()).is_err() {
        return REFUSED;
    }
    flow.reverse(key, reply_key);
    if F::flows_new().insert(&*reply_key, &flow, BPF_ANY.into()).is_err() {
        return REFUSED;
    }
    observe::note_served(reply_key.source_port);
    reply_key.destination_port.into()
}

/// A port that makes the reply key unlike that of any other connection, network byte order.
#[inline(always)]
fn free_port<F: Family>(reply_key: &mut KeyOf<F>, key: &KeyOf<F>) -> Option<u16> {
    const TRIES: u16 = 4;
    /// Odd, so that the steps reach every port. Privileged ports, which mean something to some servers, are
    /// left out.
    const STEP: u16 = 0x6d2b;
    let mut port = u16::from_be(key.source_port);
    for _ in 0..TRIES {
        port = port.wrapping_add(STEP) | 0x0400;
        reply_key.destination_port = port.to_be();
        if !is_taken::<F>(reply_key, key) {
            return Some(reply_key.destination_port);
        }
    }
    None
}

/// Removes an entry in FLOWS that is expired, closing, or names a backend that is gone. A look-up would find
/// it first.
#[inline(always)]
pub fn clear<F: Family>(key: &KeyOf<F>) {
    // A removal takes the bucket's lock even if it finds nothing.
    // SAFETY: nothing is read.
    if unsafe { F::flows().get(key) }.is_some() {
        let _ = F::flows().remove(key);
    }
}

/// Forgets the entries of a client's packets, because a foreign connection begins with its ports.
#[inline(never)]
pub fn forget<F: Family>(key: &KeyOf<F>) {
    let key = *key;
    clear::<F>(&key);
    let _ = F::flows_new().remove(&key);
}

/// Forgets a client's datagrams to a Service, or a finished connection, when the client now sends with this
/// key to the backend itself.
///
/// Replies to the two could not be told apart. The client's last packet counts.
#[inline(never)]
pub fn forget_ambiguous<F: Family>(key: &KeyOf<F>) {
    let reply_key = key.reversed();
    let Some((found, reply)) = find::<F>(&reply_key) else {
        return;
    };
    if found.is_translated() || !reply.is_reply(&reply_key) {
        return;
    }
    for key in [&reply.twin(&reply_key), &reply_key] {
        clear::<F>(key);
        let _ = F::flows_new().remove(key);
    }
}

/// Whether a live connection of the same client to another frontend uses this reply key.
#[inline(always)]
fn is_taken<F: Family>(reply_key: &KeyOf<F>, key: &KeyOf<F>) -> bool {
    let Some((_, other)) = find::<F>(reply_key) else {
        return false;
    };
    // A reply entry holds the frontend as its source.
    other.state != FLOW_CLOSING
        && (other.source != key.destination || other.source_port != key.destination_port)
}

/// Records on a director which node serves a connection whose slot is unsettled.
#[inline(never)]
pub fn remember<F: Family>(parsed: &Parsed<F::Address>, owner: &Owner) -> Result<(), Verdict> {
    if parsed.tcp_flags & tcp_flag::RST != 0 {
        return Ok(());
    }
    clear::<F>(&parsed.key);
    let flow = Flow { flags: FLOW_ENCAPSULATE, ..blank::<F>(&parsed.key, owner, first_state(parsed)) };
    F::flows_new().insert(&parsed.key, flow, BPF_ANY.into()).map_err(|_| NO_ROOM)
}

/// The owner of a connection.
#[derive(Clone, Copy)]
pub struct Owner {
    /// The backend.
    pub backend: BackendRef,
    /// The Service it was chosen for.
    pub service: u32,
    /// `FLOW_*` bits for both entries.
    pub flags: u8,
}

/// The state in which a packet's connection is entered.
///
/// A packet in mid-connection belongs to one whose entry was lost, and may be silent for long.
#[inline(always)]
pub const fn first_state<A>(parsed: &Parsed<A>) -> u8 {
    match parsed.key.protocol {
        protocol if !has_connections(protocol) => FLOW_DATAGRAM,
        _ if parsed.is_midstream() => FLOW_ESTABLISHED,
        _ => FLOW_SYN,
    }
}

/// A client's entry that does not yet say how its packets are rewritten.
#[inline(always)]
pub fn blank<F: Family>(key: &KeyOf<F>, owner: &Owner, state: u8) -> FlowOf<F> {
    Flow {
        source: key.source,
        source_port: key.source_port,
        backend: owner.backend.0,
        service: owner.service,
        last_seen: clock::now(),
        state,
        ..Flow::default()
    }
}
