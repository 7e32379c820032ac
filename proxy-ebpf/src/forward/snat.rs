//! Backends on other nodes, reached from an address and port of this node (SNAT), in both directions.
//!
//! The stage that chooses a backend stores a flow entry and ends ([`handoff`]). The functions here begin anew
//! from the frame: called from inside that stage, they would not fit the stack.

use proxy_common::addr::Address;
use proxy_common::backend::Backend;
use proxy_common::flow::Flow;
use proxy_common::fragment::Side;
use proxy_common::hop::Hop;
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;

use crate::flow::{self, Found, Owner, Sender, handoff, snat_ports};
use crate::forward::route::{self, NextHop};
use crate::forward::{mss, nat};
use crate::header::ETHERNET;
use crate::maps::family::{Endpoint, Family, FlowOf, KeyOf};
use crate::maps::observe;
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed};
use crate::parse::parse_then;
use crate::verdict::{BY_HOP, Decision, NO_ROOM, NextStage, UNTOUCHED, Verdict};

/// Stores the backend for [`translate`], for a packet that opens a connection as far as this node knows.
#[inline(always)]
pub fn hand_over_new<F: Family>(backend: &Backend<F::Address>, owner: &Owner) -> NextStage {
    handoff::store::<F>(&Flow {
        destination: backend.address,
        destination_port: backend.port,
        backend: owner.backend.0,
        service: owner.service,
        ..Flow::default()
    })
}

/// Translates a packet of a connection whose entry is stored, and sends it to the backend.
///
/// IPv4 does it at once. IPv6 has no stack left for it, and goes on in [`translate`].
#[inline(always)]
pub fn translate_known<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
) -> Result<Verdict, NextStage> {
    if F::Address::WORDS != 1 {
        return Err(NextStage::Translate);
    }
    let noted = handoff::load::<F>()?;
    let hop = find_hop::<P, F>(packet, parsed, noted)?;
    Ok(send_on::<P, F>(packet, parsed, noted, &(noted.source, noted.source_port), hop)?)
}

/// Stores a connection's entry for [`translate`]; `None` if the entry is another connection's by now.
///
/// The check reads the copy: the map may reuse the entry while it is read.
#[inline(always)]
pub fn hand_over_flow<F: Family>(entry: &FlowOf<F>, key: &KeyOf<F>) -> Option<NextStage> {
    let leave = handoff::store::<F>(entry);
    handoff::load::<F>().ok()?.is_clients(key).then_some(leave)
}

/// Whether a packet is the reply of a backend on another node.
#[inline(never)]
pub fn is_reply<F: Family>(key: &KeyOf<F>) -> bool {
    flow::lookup_translated::<F>(key).is_some()
}

/// Sends a client's packet to the stored backend.
#[inline(never)]
pub fn translate<P: Packet, F: Header>(mut packet: P) -> Verdict {
    parse_then::<P, F>(&mut packet, Side::Uplink, translate_parsed::<P, F>)
}

#[inline(always)]
fn translate_parsed<P: Packet, F: Header>(packet: &mut P, parsed: &Parsed<F::Address>) -> Decision {
    let noted = handoff::load::<F>()?;
    let hop = find_hop::<P, F>(packet, parsed, noted)?;
    let source = if noted.check == 0 {
        (hop.source, snat_ports::create::<F>(parsed, noted, &hop.source)?)
    } else {
        (noted.source, noted.source_port)
    };
    let verdict = send_on::<P, F>(packet, parsed, noted, &source, hop)?;
    observe::count_service(noted.service, packet.length());
    Ok(verdict)
}

/// The hop to the stored backend, if the packet fits.
#[inline(always)]
fn find_hop<P: Packet, F: Header>(
    packet: &P,
    parsed: &Parsed<F::Address>,
    noted: &FlowOf<F>,
) -> Result<&'static Hop<F::Address>, Verdict> {
    let backend = BackendRef(noted.backend);
    let hop = route::hop::<P, F>(packet, backend, &noted.destination)?;
    check_hops(parsed, BY_HOP | backend.id())?;
    if packet.largest_packet(parsed, 0) > u32::from(hop.mtu) {
        return Err(Verdict::Refuse(Reason::TooBig, u32::from(hop.mtu)));
    }
    Ok(hop)
}

/// Sends a client's packet from an address and port of this node to the stored backend.
#[inline(always)]
fn send_on<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    noted: &FlowOf<F>,
    source: &Endpoint<F>,
    hop: &Hop<F::Address>,
) -> Decision {
    let destination = (noted.destination, noted.destination_port);
    let next = NextHop::of_hop(hop);
    send::<P, F>(packet, parsed, source, &destination, &next)?;
    Ok(Verdict::Send(Reason::SentSnat, next.device))
}

/// Stores the entry of a reply to a translated connection. Without an entry the reply is not ours.
///
/// As in [`hand_over_flow`], the check reads the copy.
#[inline(always)]
pub fn store_reply<F: Family>(key: &KeyOf<F>) -> Result<(Found, &'static FlowOf<F>), Verdict> {
    let (found, entry) = flow::lookup_translated::<F>(key).ok_or(UNTOUCHED)?;
    handoff::store::<F>(entry);
    let entry = handoff::load::<F>()?;
    if entry.is_reply(key) { Ok((found, entry)) } else { Err(UNTOUCHED) }
}

/// Sends a backend's reply to this node on to the client, from the frontend. Other packets are not ours.
#[inline(never)]
pub fn restore<P: Packet, F: Header>(mut packet: P) -> Verdict {
    parse_then::<P, F>(&mut packet, Side::Uplink, restore_parsed::<P, F>)
}

#[inline(always)]
fn restore_parsed<P: Packet, F: Header>(packet: &mut P, parsed: &Parsed<F::Address>) -> Decision {
    let (found, entry) = store_reply::<F>(&parsed.key)?;
    let frontend = (entry.source, entry.source_port);
    let client = (entry.destination, entry.destination_port);
    // An error to the backend comes from the address it sent the packet to: one of this node.
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
fn send<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    source: &Endpoint<F>,
    destination: &Endpoint<F>,
    next: &NextHop,
) -> Result<(), Verdict> {
    nat::write::<P, F>(*packet, parsed, source, destination).ok_or(NO_ROOM)?;
    F::decrement_hop_limit(packet, ETHERNET).ok_or(NO_ROOM)?;
    packet.write_ethernet_addresses(next.addresses).ok_or(NO_ROOM)?;
    Ok(())
}
