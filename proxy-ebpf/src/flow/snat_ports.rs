//! The ports of this node that connections use towards a backend (SNAT), and their assignment.
//!
//! The first attempt is the port named by the connection's hash, then come seven more. If none of them is
//! free or quiet, the search goes through all ports of the range. A port in use is lent only if there is no
//! other one.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use proxy_common::flow::{
    FLOW_ANSWERED, FLOW_CLOSING, FLOW_DATAGRAM, FLOW_ESTABLISHED, FLOW_FIN_BACKEND, FLOW_FIN_CLIENT,
    FLOW_REPLY, FLOW_REWRITE_DESTINATION, FLOW_REWRITE_SOURCE, FLOW_SYN, FlowKey, fingerprint,
};
use proxy_common::hash::{flow_hash, mix};
use proxy_common::selection::BackendRef;
use proxy_common::timeouts::{FLOW_QUIET, silence};
use proxy_common::trace::Step;
use proxy_common::verdict::Reason;

use crate::flow::open::Opening;
use crate::flow::{self, Found, Owner};
use crate::header::tcp_flag;
use crate::maps::config::{SNAT_PORT_COUNT, SNAT_PORT_FIRST};
use crate::maps::family::{Family, FlowOf, KeyOf};
use crate::maps::global::{KEY, REPLY_KEY, global_by_family, key_room, store_key, stored_key};
use crate::maps::mode::is_newer;
use crate::maps::{self, clock};
use crate::packet::Parsed;
use crate::packet::shape::{is_below, opaque};
use crate::trace;
use crate::verdict::Verdict;

/// Ports that a connection's hash names.
const TRIES: u32 = 8;
/// Ports that [`search_row`] looks at: the verifier walks through all of its rounds, and through all rows of
/// a search.
const ROW: u32 = 64;
/// Rows of the largest range, and one more; see [`search`].
const ROWS: u32 = (1 << 16) / ROW + 1;
/// Milliseconds without a new search towards a destination after one found all ports taken. A search of
/// 64,512 ports takes some milliseconds.
const PAUSE: u32 = 100;

/// Chooses a port for a connection: an [`Offer`]'s number, zero if all are taken.
///
/// The keys are those stored for global functions, which read the port written here. The reply's key lacks
/// its port.
#[inline(always)]
fn choose<F: Family>(key: &KeyOf<F>, reply_key: *mut KeyOf<F>) -> u32 {
    let (mut hash, mut best) = (flow_hash(key), Offer::NONE);
    for _ in 0..TRIES {
        best = best.or_better(offer::<F>(reply_key, port_of(hash)));
        if best.is_free() {
            break;
        }
        hash = mix(u64::from(hash) + 1) as u32;
    }
    // A port that was used this very second is the last resort.
    if best.is_quiet() { best.0 } else { search::<F>(reply_key, hash, best).0 }
}

/// Chooses a port and makes both entries, each in a global function; [`flow::port_or_verdict`] explains the
/// answer.
#[inline(always)]
fn open<F: Family>(key: &KeyOf<F>, reply_key: &KeyOf<F>, owner: &Owner, state: u8) -> u32 {
    store_key::<F>(KEY, key);
    store_key::<F>(REPLY_KEY, reply_key);
    let chosen = global_choose::<F>();
    global_open::<F>(owner.backend.0, owner.service, Opening::new(owner.flags, state).0, chosen)
}

global_by_family! { fn global_choose = choose_port4 | choose_port6() -> u32, choose_body }
global_by_family! {
    fn global_open = open_translated4 | open_translated6
    (backend: u32, service: u32, opening: u32, chosen: u32) -> u32, open_body
}

#[inline(always)]
fn choose_body<F: Family>() -> u32 {
    match (stored_key::<F>(KEY), key_room::<F>(REPLY_KEY)) {
        (Some(key), Some(reply_key)) => choose::<F>(key, reply_key),
        _ => TAKEN,
    }
}

// Repeats the beginning of the one in `flow/open.rs`: a function for both needs half as much stack again.
#[inline(always)]
fn open_body<F: Family>(backend: u32, service: u32, opening: u32, chosen: u32) -> u32 {
    let (Some(key), Some(reply_key)) = (stored_key::<F>(KEY), key_room::<F>(REPLY_KEY)) else {
        return flow::REFUSED;
    };
    let opening = Opening(opening);
    let owner = Owner { backend: BackendRef(backend), service, flags: opening.flags() };
    let answer = insert_with_port::<F>(key, reply_key, &owner, opening.state(), chosen);
    // SAFETY: as in `write_port`.
    flow::count_opened::<F>(answer, key, unsafe { &*reply_key }, &owner, opening.state());
    answer
}

/// Gives a connection the chosen port, which the reply key lacks, and makes both entries.
///
/// The keys are as for [`choose`]; [`flow::port_or_verdict`] explains the answer.
#[inline(always)]
fn insert_with_port<F: Family>(
    key: &KeyOf<F>,
    reply_key: *mut KeyOf<F>,
    owner: &Owner,
    state: u8,
    chosen: u32,
) -> u32 {
    let chosen = Offer(chosen);
    if chosen.is_none() {
        return flow::IN_USE;
    }
    trace::step(Step::Port, u16::from_be(chosen.port()).into());
    write_port::<F>(reply_key, chosen.port());
    if !chosen.is_free() {
        global_evict::<F>();
    }
    // SAFETY: as in `write_port`.
    enter::<F>(key, unsafe { &*reply_key }, owner, state)
}

/// Searches all ports from a hash on for the first one that is free or quiet; else returns the best one, which
/// may be the one that was `tried`.
///
/// A whole search in vain pauses further ones towards the destination for `PAUSE`, and all those that have a
/// port in use at hand. Otherwise a flood would cost a whole search for each packet. If the search found ports
/// in use, a connection without one goes on to the next row that has one.
#[inline(always)]
fn search<F: Family>(reply_key: *mut KeyOf<F>, from: u32, tried: Offer) -> Offer {
    write_port::<F>(reply_key, 0);
    // SAFETY: as in `write_port`.
    let destination = flow_hash(unsafe { &*reply_key });
    let now = (clock::nanoseconds() / 1_000_000) as u32;
    let Some(word) = maps::SNAT_FULL.get_ptr_mut(destination % maps::SNAT_FULL_ENTRIES) else {
        return tried;
    };
    // SAFETY: the map look-up checked the index; the word is read and written at once.
    let full = unsafe { word.read_volatile() };
    let (tag, is_recent) = ((full >> 32) as u32, now.wrapping_sub(full as u32) < PAUSE);
    if is_recent && (tag == destination || !tried.is_none()) {
        return tried;
    }
    // The last search found ports in use, and no quiet one.
    let suffices = if is_recent && tag == !destination { TAKEN } else { FLOW_QUIET };
    let count = SNAT_PORT_COUNT.load();
    // A little less than the distance of two ports; over the whole range the error stays below one distance.
    // So one step more than there are ports leaves none out.
    let distance = u32::MAX.checked_div(count).unwrap_or(0);
    let (mut hash, mut best) = (from, tried);
    for row in 0..ROWS {
        if row * ROW > count {
            break;
        }
        best = best.or_better(Offer(global_search_row::<F>(hash, distance)));
        if best.worth() > suffices {
            return best;
        }
        hash = hash.wrapping_add(distance.wrapping_mul(ROW));
    }
    let tag = if best.is_none() { destination } else { !destination };
    // SAFETY: as above.
    unsafe { word.write_volatile(u64::from(tag) << 32 | u64::from(now)) };
    best
}

global_by_family! {
    fn global_search_row = search_row4 | search_row6(from: u32, distance: u32) -> u32, search_row_body
}

#[inline(always)]
fn search_row_body<F: Family>(from: u32, distance: u32) -> u32 {
    match key_room::<F>(REPLY_KEY) {
        Some(reply_key) => search_row::<F>(reply_key, from, distance),
        None => TAKEN,
    }
}

/// Searches one row: an [`Offer`]'s number for the first port that is free or quiet, else for the best one.
#[inline(always)]
fn search_row<F: Family>(reply_key: *mut KeyOf<F>, from: u32, distance: u32) -> u32 {
    let (mut hash, mut best) = (from, Offer::NONE);
    for _ in 0..ROW {
        best = best.or_better(offer::<F>(reply_key, port_of(hash)));
        if best.is_quiet() {
            break;
        }
        hash = hash.wrapping_add(distance);
    }
    best.0
}

/// A port (network byte order) and, above it, its worth to the new connection; zero if it is taken.
#[derive(Clone, Copy)]
struct Offer(u32);

impl Offer {
    const NONE: Self = Self(0);

    #[inline(always)]
    const fn is_none(self) -> bool {
        self.worth() == TAKEN
    }
    #[inline(always)]
    const fn is_free(self) -> bool {
        self.worth() == FREE
    }
    /// Free, or silent for so long that no answer is on its way.
    #[inline(always)]
    const fn is_quiet(self) -> bool {
        self.worth() > FLOW_QUIET
    }
    #[inline(always)]
    const fn worth(self) -> u32 {
        self.0 >> 16
    }
    #[inline(always)]
    const fn port(self) -> u16 {
        self.0 as u16
    }
    #[inline(always)]
    fn or_better(self, other: Self) -> Self {
        let is_worse = is_below(self.worth().into(), other.worth().into());
        // LLVM would make a mask of the factor, which the verifier of Linux 6.18 follows like a branch.
        Self(self.0 ^ (self.0 ^ other.0).wrapping_mul(opaque(is_worse.into()) as u32))
    }
}

#[inline(always)]
fn offer<F: Family>(reply_key: *mut KeyOf<F>, port: u16) -> Offer {
    write_port::<F>(reply_key, port);
    Offer(global_occupancy::<F>() << 16 | u32::from(port))
}

#[inline(always)]
fn write_port<F: Family>(reply_key: *mut KeyOf<F>, port: u16) {
    // SAFETY: this CPU's own, and no reference to it lives while it is written.
    unsafe { (&raw mut (*reply_key).destination_port).write(port) }
}

/// A port of the range, network byte order.
#[inline(always)]
pub fn port_of(hash: u32) -> u16 {
    let above = (u64::from(hash) * u64::from(SNAT_PORT_COUNT.load())) >> 32;
    (SNAT_PORT_FIRST.load() as u16).wrapping_add(above as u16).to_be()
}

/// Another connection has the reply key, and needs it.
const TAKEN: u32 = 0;
/// No connection has it, or only this one.
const FREE: u32 = 0xffff;
/// Added to the seconds of a port's silence if its connection began but was never established.
const ABANDONED: u32 = 0x100;

global_by_family! { fn global_occupancy = occupancy4 | occupancy6() -> u32, occupancy_body }

#[inline(always)]
fn occupancy_body<F: Family>() -> u32 {
    match (stored_key::<F>(KEY), stored_key::<F>(REPLY_KEY)) {
        (Some(key), Some(reply_key)) => occupancy::<F>(key, reply_key),
        _ => TAKEN,
    }
}

/// Whether a reply key is available: `TAKEN`, `FREE`, or between them its worth if it may be taken from
/// another connection.
#[inline(always)]
fn occupancy<F: Family>(key: &KeyOf<F>, reply_key: &KeyOf<F>) -> u32 {
    match flow::find::<F>(reply_key) {
        None if is_kernels::<F>(reply_key) => TAKEN,
        None => FREE,
        Some((_, entry)) if entry.is_twin_of(key) => FREE,
        Some((found, entry)) => worth::<F>(&found, entry),
    }
}

/// Whether a connection that the kernel translates has the reply key. While a node changes to this mode, the agent
/// notes those with a port of the range.
#[inline(always)]
fn is_kernels<F: Family>(reply_key: &KeyOf<F>) -> bool {
    // SAFETY: nothing is read.
    is_newer() && unsafe { F::node_flows().get(reply_key) }.is_some()
}

/// The worth of another connection's port: the longer the connection is silent, the more.
///
/// A port may be taken from an embryo, from a connection that has ended, and from any exchange of datagrams,
/// which has no visible end. A RST may be forged: only silence shows that the receiver believed it.
#[inline(always)]
fn worth<F: Family>(found: &Found, entry: &FlowOf<F>) -> u32 {
    const BOTH: u8 = FLOW_FIN_CLIENT | FLOW_FIN_BACKEND;
    const LONGEST: u32 = 0xfe;
    let silence = silence(entry.last_seen, clock::now());
    let is_quiet = silence >= FLOW_QUIET;
    let has_ended = entry.state == FLOW_CLOSING && (is_quiet || entry.flags & BOTH == BOTH);
    // The entries of a confirmed connection stay with the embryos if FLOWS is full. A RST of its own closes it; one
    // that refuses a connection leaves no mark of an answer.
    let was_answered = entry.state == FLOW_CLOSING && found.has(FLOW_ANSWERED);
    let is_unconfirmed = found.is_embryo() && entry.state != FLOW_ESTABLISHED && !was_answered;
    if !(is_unconfirmed || has_ended || entry.state == FLOW_DATAGRAM) {
        return TAKEN;
    }
    let seconds = 1 + if silence < LONGEST { silence } else { LONGEST };
    if is_unconfirmed && is_quiet { ABANDONED + seconds } else { seconds }
}

global_by_family! { fn global_evict = evict4 | evict6() -> u32, evict_body }

#[inline(always)]
fn evict_body<F: Family>() -> u32 {
    if let Some(reply_key) = stored_key::<F>(REPLY_KEY) {
        remove_both::<F>(reply_key);
    }
    0
}

/// Takes a port from the connection it was lent to. Both entries go, unless its client has a newer connection
/// by now.
#[inline(always)]
fn remove_both<F: Family>(reply_key: &KeyOf<F>) {
    let Some((_, entry)) = flow::find::<F>(reply_key) else {
        return;
    };
    let client_key = entry.twin(reply_key);
    if flow::find::<F>(&client_key).is_some_and(|(_, client)| client.is_twin_of(reply_key)) {
        let _ = F::flows().remove(&client_key);
        let _ = F::flows_new().remove(&client_key);
    }
    let _ = F::flows().remove(reply_key);
    let _ = F::flows_new().remove(reply_key);
}

/// Whether no other connection has the reply key. Removes an entry of this very connection, or one that has
/// expired.
#[inline(always)]
fn vacate<F: Family>(reply_key: &KeyOf<F>) -> bool {
    if global_occupancy::<F>() != FREE {
        return false;
    }
    let _ = F::flows().remove(reply_key);
    let _ = F::flows_new().remove(reply_key);
    true
}

/// Makes both entries, the reply's first; [`flow::port_or_verdict`] explains the answer.
///
/// Another CPU may give the port to another connection at this moment. The packet is lost then, and its
/// sender tries again.
#[inline(always)]
fn enter<F: Family>(key: &KeyOf<F>, reply_key: &KeyOf<F>, owner: &Owner, state: u8) -> u32 {
    // Field by field: two entries do not fit the stack.
    let mut flow = flow::blank::<F>(key, owner, state);
    (flow.source, flow.source_port) = (key.destination, key.destination_port);
    (flow.destination, flow.destination_port) = (key.source, key.source_port);
    flow.flags = FLOW_REPLY | FLOW_REWRITE_SOURCE | FLOW_REWRITE_DESTINATION | owner.flags;
    flow.check = fingerprint(reply_key);
    flow::clear::<F>(key);
    // SAFETY: nothing is read.
    let is_shadowed = unsafe { F::flows().get(reply_key) }.is_some();
    if is_shadowed && !vacate::<F>(reply_key) {
        return flow::IN_USE;
    }
    // Another CPU may have got the same port since the look-up; its entry must stay.
    if F::flows_new().insert(reply_key, &flow, BPF_NOEXIST.into()).is_err()
        && !(vacate::<F>(reply_key) && F::flows_new().insert(reply_key, &flow, BPF_NOEXIST.into()).is_ok())
    {
        return flow::IN_USE;
    }
    flow.reverse(reply_key, key);
    if F::flows_new().insert(key, &flow, BPF_ANY.into()).is_err() {
        return flow::REFUSED;
    }
    reply_key.destination_port.into()
}

/// Makes both entries of a connection to the stored backend, and returns its port of this node.
///
/// A RST leaves no trace, and gets the port that its connection would try first.
#[inline(never)]
pub fn create<F: Family>(
    parsed: &Parsed<F::Address>,
    noted: &FlowOf<F>,
    source: &F::Address,
) -> Result<u16, Verdict> {
    let key = &parsed.key;
    if parsed.tcp_flags & tcp_flag::RST != 0 {
        return Ok(port_of(flow_hash(key)));
    }
    let owner = Owner { backend: BackendRef(noted.backend), service: noted.service, flags: 0 };
    let reply_key = FlowKey {
        source: noted.destination,
        source_port: noted.destination_port,
        destination: *source,
        protocol: key.protocol,
        ..FlowKey::default()
    };
    // Until the backend answers, a connection met in its middle is as short-lived as a new one.
    let state = match flow::first_state(parsed) {
        FLOW_ESTABLISHED => FLOW_SYN,
        state => state,
    };
    flow::port_or_verdict(open::<F>(key, &reply_key, &owner, state), Reason::SnatPorts)
}
