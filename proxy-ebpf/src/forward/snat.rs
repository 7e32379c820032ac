//! Backends on other nodes that are reached from an address and port of this node: both directions pass here.
//!
//! The walk that chooses a backend leaves a note and ends; what is here begins anew from the frame. Called from inside that
//! walk, it would not fit the stack.

use proxy_common::backend::Backend;
use proxy_common::flow::{FLOW_ESTABLISHED, FLOW_SYN, Flow, FlowKey};
use proxy_common::fragment::Side;
use proxy_common::hash::flow_hash;
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use crate::flow::snat_ports;
use crate::flow::{self, Found, Owner, Sender};
use crate::forward::mss;
use crate::forward::nat;
use crate::forward::nat::Endpoint;
use crate::forward::route;
use crate::forward::route::NextHop;
use crate::header::{ETHERNET, tcp_flag};
use crate::maps::family::{Family, FlowOf, KeyOf};
use crate::maps::global;
use crate::maps::observe;
use crate::packet::parsed::parse;
use crate::packet::{Packet, Parsed};
use crate::verdict::{BY_HOP, Leave, NO_ROOM, UNTOUCHED, Verdict};

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
    flow::track::<P, F>(packet, parsed, found, Sender::Backend);
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
        return Ok(snat_ports::port_of(flow_hash(key)));
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
    flow::entered(global::open_translated::<F>(key, &reply_key, &owner, state), Reason::SnatPorts)
}
