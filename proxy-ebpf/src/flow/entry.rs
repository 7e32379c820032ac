//! Flow entries: look-up and creation.
//!
//! Entries of both directions are made, renewed and closed together, so that neither outlives the other.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::config::seconds;
use proxy_common::flow::{
    FLOW_CLOSING, FLOW_DATAGRAM, FLOW_DECAPSULATED, FLOW_ENCAPSULATE, FLOW_ESTABLISHED, FLOW_FIN_BACKEND,
    FLOW_FIN_CLIENT, FLOW_OUTER_IPV6, FLOW_REPLY, FLOW_REWRITE_DESTINATION, FLOW_REWRITE_SOURCE, FLOW_SYN,
    Flow, FlowKey, fingerprint,
};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use crate::forward::nat::Endpoint;
use crate::header::tcp_flag;
use crate::maps::config;
use crate::maps::family::{Family, FlowOf, KeyOf};
use crate::maps::global;
use crate::maps::observe;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::Parsed;
use crate::packet::encap;
use crate::packet::parsed::has_connections;
use crate::verdict::{NO_ROOM, Verdict};

/// What a walk needs of an entry that has not expired; the rest stays in the map.
#[derive(Clone, Copy)]
pub struct Found {
    /// The backend that serves the connection.
    pub backend: BackendRef,
    /// The port the backend knows the client by, network byte order.
    pub client_port: u16,
    pub(super) last_seen: u32,
    /// When it was found.
    pub(super) now: u32,
    pub(super) flags: u8,
    /// Whether it is still in FLOWS_NEW.
    pub(super) embryo: bool,
    /// Whether the client's address is translated (SNAT).
    pub(super) translated: bool,
}

impl Found {
    /// Whether the client's packets come in encapsulated.
    #[inline(always)]
    pub const fn is_decapsulated(&self) -> bool {
        self.flags & FLOW_DECAPSULATED != 0
    }
    /// Whether it is one that this node encapsulates.
    #[inline(always)]
    pub const fn is_encapsulated(&self) -> bool {
        self.flags & FLOW_ENCAPSULATE != 0
    }
    /// Whether both sides have sent their FIN.
    #[inline(always)]
    pub const fn has_finished(&self) -> bool {
        const BOTH: u8 = FLOW_FIN_CLIENT | FLOW_FIN_BACKEND;
        self.flags & BOTH == BOTH
    }
    /// Whether nobody has answered in it.
    #[inline(always)]
    pub const fn is_embryo(&self) -> bool {
        self.embryo
    }
    /// Seconds since the last packet. Another CPU may be a tick ahead.
    #[inline(always)]
    pub const fn silence(&self) -> u32 {
        self.now.saturating_sub(self.last_seen)
    }
    /// Whether the backend knows the client by an address of this node.
    #[inline(always)]
    pub const fn is_translated(&self) -> bool {
        self.translated
    }
    /// Bytes of the outer headers they come in with. Whether one of them is UDP's is what this node does itself: an entry has
    /// no room to say, and all nodes do the same, but for the minutes in which they are switched.
    #[inline(always)]
    pub fn outer_headers(&self) -> u16 {
        let network = if self.flags & FLOW_OUTER_IPV6 != 0 { V6::HEADER } else { V4::HEADER };
        (network + encap::own_bytes()) as u16
    }
}

/// Who sent the packet that renews an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The client.
    Client,
    /// The backend.
    Backend,
}

/// Monotonic seconds.
#[inline(always)]
pub fn now() -> u32 {
    seconds(observe::clock())
}

/// The live entry for a client's packet to a service, unless the packet opens a new connection that happens to have
/// the ports of one that has ended.
#[inline(always)]
pub fn lookup<F: Family>(parsed: &Parsed<F::Address>, service: u32) -> Option<(Found, &'static FlowOf<F>)> {
    let (found, flow) = find::<F>(&parsed.key)?;
    let ended = flow.state == FLOW_CLOSING || flow.flags & FLOW_FIN_CLIENT != 0;
    let belongs = flow.service == service && is_client_entry::<F>(flow, &parsed.key);
    (belongs && !(parsed.is_syn() && ended)).then_some((found, flow))
}

/// The live entry for a backend's reply, with the frontend it has to come from and the client's own port.
#[inline(always)]
pub fn lookup_reply<F: Family>(parsed: &Parsed<F::Address>) -> Option<(Found, Endpoint<F>, u16)> {
    let (found, flow) = find::<F>(&parsed.key)?;
    let frontend = (flow.source, flow.source_port);
    is_reply_entry::<F>(flow, &parsed.key).then_some((found, frontend, flow.destination_port))
}

/// The live entry for a reply that a backend on another node sent to this one: frontend and client are in it.
#[inline(always)]
pub fn lookup_translated<F: Family>(key: &KeyOf<F>) -> Option<(Found, &'static FlowOf<F>)> {
    find::<F>(key).filter(|(found, flow)| found.translated && is_reply_entry::<F>(flow, key))
}

/// The live entry, of either direction, for packets with a tuple that another packet quotes.
#[inline(always)]
pub fn lookup_quoted<F: Family>(key: &KeyOf<F>) -> Option<&'static FlowOf<F>> {
    let (_, flow) = find::<F>(key)?;
    (is_client_entry::<F>(flow, key) || is_reply_entry::<F>(flow, key)).then_some(flow)
}

/// A value may be given to another key while it is read (an LRU map reuses nodes at once, and an update of an existing
/// key frees one). Every entry holds its client, or a fingerprint, so that one that is another connection's can be told.
#[inline(always)]
pub fn is_client_entry<F: Family>(flow: &FlowOf<F>, key: &KeyOf<F>) -> bool {
    if flow.check != 0 {
        return flow.flags & FLOW_REPLY == 0 && flow.check == fingerprint(key);
    }
    let same_port = flow.source_port == key.source_port || flow.flags & FLOW_REWRITE_SOURCE != 0;
    flow.flags & FLOW_REPLY == 0 && flow.source == key.source && same_port
}

/// As [`is_client_entry`]; a reply goes to the client.
#[inline(always)]
pub fn is_reply_entry<F: Family>(flow: &FlowOf<F>, key: &KeyOf<F>) -> bool {
    if flow.check != 0 {
        return flow.flags & FLOW_REPLY != 0 && flow.check == fingerprint(key);
    }
    let same_port =
        flow.destination_port == key.destination_port || flow.flags & FLOW_REWRITE_DESTINATION != 0;
    flow.flags & FLOW_REPLY != 0 && flow.destination == key.destination && same_port
}

#[inline(always)]
pub fn find<F: Family>(key: &KeyOf<F>) -> Option<(Found, &'static FlowOf<F>)> {
    // SAFETY: the memory is the map's for the program's run; callers check whose entry it is.
    if let Some(flow) = unsafe { F::flows().get(key) }
        && let Some(found) = live::<F>(flow, false)
    {
        return Some((found, flow));
    }
    // SAFETY: as above.
    let flow = unsafe { F::flows_new().get(key) }?;
    live::<F>(flow, true).map(|found| (found, flow))
}

#[inline(always)]
fn live<F: Family>(flow: &FlowOf<F>, embryo: bool) -> Option<Found> {
    let now = now();
    let Flow { backend, last_seen, flags, check, source_port, .. } = *flow;
    if flow.has_expired(&config::timeouts(), now) {
        return None;
    }
    let translated = check != 0;
    let backend = BackendRef(backend);
    Some(Found { backend, client_port: source_port, last_seen, now, flags, embryo, translated })
}

/// Makes both entries of a connection to a backend on this node, and says by which port the backend knows the client:
/// another one than the client's own if the replies could not be told from another connection's. A RST leaves no trace.
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
    entered(global::open::<F>(key, &reply_key, owner, first_state(parsed)), Reason::ReplyKeyInUse)
}

/// No map took the entries.
pub const REFUSED: u32 = 1 << 16;
/// The reply key, each that was tried, is another connection's.
pub const IN_USE: u32 = 2 << 16;

/// What became of two entries: the port by which the backend knows the client (network byte order), unless it is `REFUSED` or `IN_USE`.
#[inline(always)]
pub const fn entered(answer: u32, in_use: Reason) -> Result<u16, Verdict> {
    match answer {
        REFUSED => Err(NO_ROOM),
        IN_USE => Err(Verdict::Drop(in_use)),
        port => Ok(port as u16),
    }
}

/// Makes both entries; for the answer see [`entered`].
#[inline(always)]
pub fn open<F: Family>(key: &KeyOf<F>, reply_key: &mut KeyOf<F>, owner: &Owner, state: u8) -> u32 {
    // One entry is built and turned round in place: two of them do not fit the stack.
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
    turn_round::<F>(&mut flow, key, reply_key);
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
    /// Odd, so that every port is reached; never the privileged ones, which mean something to some servers.
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

/// What stands in FLOWS is expired, closing, or names a backend that is gone; it would be found first.
#[inline(always)]
pub fn clear<F: Family>(key: &KeyOf<F>) {
    // A removal takes the bucket's lock even where there is nothing.
    // SAFETY: nothing is read.
    if unsafe { F::flows().get(key) }.is_some() {
        let _ = F::flows().remove(key);
    }
}

/// Forgets what a client's packets had: something that is not ours begins with its ports.
#[inline(never)]
pub fn forget<F: Family>(key: &KeyOf<F>) {
    let key = *key;
    clear::<F>(&key);
    let _ = F::flows_new().remove(&key);
}

/// Forgets a client's datagrams to a service, or a connection that is over, whose replies could not be told from those to what it
/// sends, with this key, to the backend itself: what it did last counts.
#[inline(never)]
pub fn give_way<F: Family>(key: &KeyOf<F>) {
    let reply_key = key.reversed();
    let Some((found, reply)) = find::<F>(&reply_key) else {
        return;
    };
    if found.translated || !is_reply_entry::<F>(reply, &reply_key) {
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

/// Whether an entry is that of the other direction of what has this key.
#[inline(always)]
pub fn is_twin<F: Family>(twin: &FlowOf<F>, key: &KeyOf<F>) -> bool {
    twin.source == key.destination
        && twin.source_port == key.destination_port
        && twin.destination == key.source
        && twin.destination_port == key.source_port
}

/// Turns the client's entry into the reply's, or the other way round: what `key` has becomes what `twin` has.
#[inline(always)]
pub fn turn_round<F: Family>(flow: &mut FlowOf<F>, key: &KeyOf<F>, twin: &KeyOf<F>) {
    const REWRITES: u8 = FLOW_REWRITE_SOURCE | FLOW_REWRITE_DESTINATION;
    flow.source = key.destination;
    flow.source_port = key.destination_port;
    flow.destination = key.source;
    flow.destination_port = key.source_port;
    flow.flags = (flow.flags ^ FLOW_REPLY) & !REWRITES | swap_rewrites(flow.flags);
    if flow.check != 0 {
        flow.check = fingerprint(twin);
    }
}

/// Remembers on a director which node serves a connection whose slot is unsettled.
#[inline(never)]
pub fn remember<F: Family>(parsed: &Parsed<F::Address>, owner: &Owner) -> Result<(), Verdict> {
    if parsed.tcp_flags & tcp_flag::RST != 0 {
        return Ok(());
    }
    clear::<F>(&parsed.key);
    let flow = Flow { flags: FLOW_ENCAPSULATE, ..blank::<F>(&parsed.key, owner, first_state(parsed)) };
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

/// The state in which a packet's connection is entered. One in mid-connection belongs to one whose entry was lost: it may be silent
/// for long.
#[inline(always)]
pub const fn first_state<A>(parsed: &Parsed<A>) -> u8 {
    match parsed.key.protocol {
        protocol if !has_connections(protocol) => FLOW_DATAGRAM,
        _ if parsed.is_midstream() => FLOW_ESTABLISHED,
        _ => FLOW_SYN,
    }
}

/// A client's entry that says nothing of what becomes of its packets.
#[inline(always)]
pub fn blank<F: Family>(key: &KeyOf<F>, owner: &Owner, state: u8) -> FlowOf<F> {
    Flow {
        source: key.source,
        source_port: key.source_port,
        backend: owner.backend.0,
        service: owner.service,
        last_seen: now(),
        state,
        ..Flow::default()
    }
}

/// What is a source in one direction is a destination in the other.
#[inline(always)]
const fn swap_rewrites(flags: u8) -> u8 {
    (flags & FLOW_REWRITE_SOURCE) << 1 | (flags & FLOW_REWRITE_DESTINATION) >> 1
}
