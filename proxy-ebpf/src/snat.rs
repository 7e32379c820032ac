//! Backends on other nodes that are reached from an address and port of this node: both directions pass here.
//!
//! The walk that chooses a backend leaves a note and ends; what is here begins anew from the frame. Called from inside that
//! walk, it would not fit the stack.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use proxy_common::backend::Backend;
use proxy_common::flow::{
    FLOW_CLOSING, FLOW_ESTABLISHED, FLOW_REPLY, FLOW_REWRITE_DESTINATION, FLOW_REWRITE_SOURCE, FLOW_SYN,
    Flow, FlowKey, fingerprint,
};
use proxy_common::fragment::Side;
use proxy_common::hash::{flow_hash, mix};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use crate::apart;
use crate::config::{SNAT_PORT_COUNT, SNAT_PORT_FIRST};
use crate::family::{Family, FlowOf, KeyOf};
use crate::flow::{self, Found, Owner, Sender};
use crate::mss;
use crate::nat::{self, Endpoint};
use crate::observe;
use crate::packet::header::{ETHERNET, tcp_flag};
use crate::packet::parse::parse;
use crate::packet::{Packet, Parsed};
use crate::route::{self, NextHop};
use crate::verdict::{BY_HOP, Leave, NO_ROOM, UNTOUCHED, Verdict};

/// Ports that are tried for a connection, before one that is only lent is taken.
const TRIES: u32 = 8;

/// Notes for [`translate`] that a packet opens a connection, as far as this node knows.
#[inline(always)]
pub fn begin<F: Family>(backend: &Backend<F::Address>, owner: &Owner) -> Leave {
    note::<F>(&Flow {
        destination: backend.address,
        destination_port: backend.port,
        backend: owner.backend.0,
        service: owner.service,
        ..Flow::default()
    })
}

/// Notes for [`translate`] what a connection's entry says; `None` if it is another connection's by now. What was copied is
/// judged: the entry may change its owner while it is read.
#[inline(always)]
pub fn go_on<F: Family>(entry: &FlowOf<F>, key: &KeyOf<F>) -> Option<Leave> {
    let leave = note::<F>(entry);
    flow::is_client_entry::<F>(noted::<F>().ok()?, key).then_some(leave)
}

/// What was noted last.
#[inline(always)]
pub fn noted<F: Family>() -> Result<&'static FlowOf<F>, Verdict> {
    let scratch = F::scratch().ok_or(NO_ROOM)?;
    // SAFETY: as in `note`.
    Ok(unsafe { &*scratch })
}

#[inline(always)]
fn note<F: Family>(flow: &FlowOf<F>) -> Leave {
    let Some(scratch) = F::scratch() else {
        return NO_ROOM.into();
    };
    // SAFETY: this CPU's own, and no other program of ours runs on it before this packet is done with.
    unsafe { *scratch = *flow };
    Leave::Translate
}

/// Whether a packet is the reply of a backend on another node.
#[inline(never)]
pub fn is_reply<F: Family>(key: &KeyOf<F>) -> bool {
    flow::lookup_translated::<F>(key).is_some()
}

/// Sends a client's packet on to the backend that was noted.
#[inline(never)]
pub fn translate<P: Packet, F: Family>(mut packet: P) -> Verdict {
    parse::<P, F>(&packet, ETHERNET, Side::Uplink)
        .and_then(|parsed| translate_parsed::<P, F>(&mut packet, &parsed))
        .unwrap_or_else(|verdict| verdict)
}

#[inline(always)]
fn translate_parsed<P: Packet, F: Family>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
) -> Result<Verdict, Verdict> {
    let noted = noted::<F>()?;
    let backend = BackendRef(noted.backend);
    let hop = route::hop::<P, F>(packet, backend, &noted.destination)?;
    check_hops(parsed, BY_HOP | backend.id())?;
    if packet.largest_packet(parsed, 0) > u32::from(hop.mtu) {
        return Err(Verdict::Refuse(Reason::TooBig, u32::from(hop.mtu)));
    }
    let source = if noted.check == 0 {
        (hop.source, create::<F>(parsed, noted, &hop.source)?)
    } else {
        (noted.source, noted.source_port)
    };
    let destination = (noted.destination, noted.destination_port);
    let next = NextHop::of_hop(hop);
    send::<P, F>(packet, parsed, &source, &destination, &next)?;
    observe::count_service(noted.service, packet.length());
    Ok(Verdict::Send(Reason::SentSnat, next.device))
}

/// Notes the entry of a reply to a translated connection; where there is none, the reply is not ours. As in [`go_on`], what was
/// copied is judged.
#[inline(always)]
pub fn note_reply<F: Family>(key: &KeyOf<F>) -> Result<(Found, &'static FlowOf<F>), Verdict> {
    let (found, entry) = flow::lookup_translated::<F>(key).ok_or(UNTOUCHED)?;
    note::<F>(entry);
    let entry = noted::<F>()?;
    if flow::is_reply_entry::<F>(entry, key) { Ok((found, entry)) } else { Err(UNTOUCHED) }
}

/// A backend's reply to this node: back to the client, from the frontend. Anything else is not ours.
#[inline(never)]
pub fn restore<P: Packet, F: Family>(mut packet: P) -> Verdict {
    parse::<P, F>(&packet, ETHERNET, Side::Uplink)
        .and_then(|parsed| restore_parsed::<P, F>(&mut packet, &parsed))
        .unwrap_or_else(|verdict| verdict)
}

#[inline(always)]
fn restore_parsed<P: Packet, F: Family>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
) -> Result<Verdict, Verdict> {
    let (found, entry) = note_reply::<F>(&parsed.key)?;
    let frontend = (entry.source, entry.source_port);
    let client = (entry.destination, entry.destination_port);
    // What the backend is told comes from where it sent the packet: an address of this node.
    check_hops(parsed, 0)?;
    let length = packet.largest_packet(parsed, 0);
    let mut next = NextHop::default();
    route::to_client::<P, F>(packet, entry, length, &mut next)?;
    flow::track::<F>(parsed, found, Sender::Backend);
    send::<P, F>(packet, parsed, &frontend, &client, &next)?;
    if parsed.is_syn_ack()
        && let Some(mtu) = route::hop_mtu::<F>(found.backend)
    {
        let _ = mss::limit::<P, F>(packet, parsed.transport(), mtu);
    }
    Ok(Verdict::Send(Reason::ReplySnat, next.device))
}

#[inline(always)]
const fn check_hops<A>(parsed: &Parsed<A>, way: u32) -> Result<(), Verdict> {
    if parsed.hop_limit <= 1 { Err(Verdict::Refuse(Reason::HopLimit, way)) } else { Ok(()) }
}

#[inline(always)]
fn send<P: Packet, F: Family>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    source: &Endpoint<F>,
    destination: &Endpoint<F>,
    next: &NextHop,
) -> Result<(), Verdict> {
    nat::write::<P, F>(*packet, parsed, source, destination).ok_or(NO_ROOM)?;
    F::decrement_hop_limit(packet, ETHERNET).ok_or(NO_ROOM)?;
    let ethernet = packet.ethernet().ok_or(NO_ROOM)?;
    // SAFETY: `at` checked the bound.
    unsafe { (*ethernet).addresses = next.addresses };
    Ok(())
}

/// Makes both entries of a connection to the backend that was noted, and says which port of this node it has. A RST leaves no trace,
/// and gets the port its connection would be given first.
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
    // Until the backend answers, one that is met in its middle is as short-lived as one that begins.
    let state = match flow::first_state(parsed) {
        FLOW_ESTABLISHED => FLOW_SYN,
        state => state,
    };
    flow::entered(apart::open_translated::<F>(key, &reply_key, &owner, state), Reason::SnatPorts)
}

/// Gives a connection a port, which the reply key lacks, and makes both entries; for the answer see [`flow::entered`]. The keys are those
/// that are left for [`apart`], whose functions read what is written here.
#[inline(always)]
pub fn open<F: Family>(key: &KeyOf<F>, reply_key: *mut KeyOf<F>, owner: &Owner, state: u8) -> u32 {
    // SAFETY: this CPU's own, and no reference to it lives while it is written.
    let write = |port| unsafe { (&raw mut (*reply_key).destination_port).write(port) };
    let (mut hash, mut free, mut lent) = (flow_hash(key), 0, 0);
    for _ in 0..TRIES {
        let port = port_of(hash);
        write(port);
        match apart::occupancy::<F>() {
            FREE => {
                free = port;
                break;
            }
            LENT => lent = port,
            _ => {}
        }
        hash = mix(u64::from(hash) + 1) as u32;
    }
    if free == 0 {
        if lent == 0 {
            return flow::IN_USE;
        }
        write(lent);
        apart::evict::<F>();
    }
    // SAFETY: as above.
    enter::<F>(key, unsafe { &*reply_key }, owner, state)
}

/// A port of the range, network byte order.
#[inline(always)]
fn port_of(hash: u32) -> u16 {
    let above = (u64::from(hash) * u64::from(SNAT_PORT_COUNT.load())) >> 32;
    (SNAT_PORT_FIRST.load() as u16).wrapping_add(above as u16).to_be()
}

/// Another connection has the reply key.
pub const TAKEN: u32 = 0;
/// Nobody has it, or this very connection.
const FREE: u32 = 1;
/// A connection has it that nobody has answered in, or that has ended.
const LENT: u32 = 2;

/// Who has a reply key: `TAKEN`, `FREE` or `LENT`.
#[inline(always)]
pub fn occupancy<F: Family>(key: &KeyOf<F>, reply_key: &KeyOf<F>) -> u32 {
    match flow::find::<F>(reply_key) {
        None => FREE,
        Some((_, entry)) if flow::is_twin::<F>(entry, key) => FREE,
        Some((found, entry)) if found.is_embryo() || entry.state == FLOW_CLOSING => LENT,
        Some(_) => TAKEN,
    }
}

/// Takes a port from the connection it was lent to: both entries go, unless its client has a newer connection by now.
#[inline(always)]
pub fn evict<F: Family>(reply_key: &KeyOf<F>) {
    let Some((_, entry)) = flow::find::<F>(reply_key) else {
        return;
    };
    let client_key = entry.twin(reply_key);
    if flow::find::<F>(&client_key).is_some_and(|(_, client)| flow::is_twin::<F>(client, reply_key)) {
        let _ = F::flows().remove(&client_key);
        let _ = F::flows_new().remove(&client_key);
    }
    let _ = F::flows().remove(reply_key);
    let _ = F::flows_new().remove(reply_key);
}

/// Whether nobody's entry has the reply key: an entry of this very connection, or one that has expired, is removed.
#[inline(always)]
fn vacate<F: Family>(reply_key: &KeyOf<F>) -> bool {
    if apart::occupancy::<F>() != FREE {
        return false;
    }
    let _ = F::flows().remove(reply_key);
    let _ = F::flows_new().remove(reply_key);
    true
}

/// Makes both entries, the reply's first; for the answer see [`flow::entered`]. Another CPU may have given the port to another
/// connection this very moment: the packet is lost then, and its sender tries again.
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
    // Another CPU may have been given the same port since we looked; what it has entered must stay.
    if F::flows_new().insert(reply_key, &flow, BPF_NOEXIST.into()).is_err()
        && !(vacate::<F>(reply_key) && F::flows_new().insert(reply_key, &flow, BPF_NOEXIST.into()).is_ok())
    {
        return flow::IN_USE;
    }
    flow::turn_round::<F>(&mut flow, reply_key, key);
    if F::flows_new().insert(key, &flow, BPF_ANY.into()).is_err() {
        return flow::REFUSED;
    }
    reply_key.destination_port.into()
}
