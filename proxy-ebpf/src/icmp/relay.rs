//! ICMP errors from others about our connections. Each goes to the sender of the quoted packet, and
//! quotes the packet as that sender sent it.

use core::mem::offset_of;

use proxy_common::backend::Backend;
use proxy_common::checksum::Difference;
use proxy_common::flow::{FLOW_ENCAPSULATE, FLOW_REPLY, FlowKey};
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;
use proxy_common::way::FOU_PORT;

use super::encapsulated;
use super::family::{Icmp, Quote};
use crate::flow;
use crate::forward::nat::difference;
use crate::forward::route::{self, NextHop};
use crate::forward::{decap, dsr_node, dsr_pod};
use crate::header::{ETHERNET, IcmpHeader, Ports, Tcp, Udp, has_connections, has_ports, protocol};
use crate::icmp::quoted::{MAX_OFFSET, QUOTE};
use crate::maps::family::{Family, FlowOf, KeyOf};
use crate::maps::{mode, observe, peers};
use crate::packet::encap::Encapsulation;
use crate::packet::ip::Plain;
use crate::packet::ip::plain::parse_plain;
use crate::packet::{MOST_HEADERS, Packet, ethernet};
use crate::select::{backend, node_flow};
use crate::verdict::{Decision, HAND_TO_TC, NO_ROOM, UNTOUCHED, Verdict};

/// Bytes of a transport header that every error quotes.
const QUOTED_TRANSPORT: u32 = 8;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = offset_of!(Tcp, checksum);

/// An error, and the connection it is about.
struct Error<F: Family> {
    /// The tuple of the connection's packets in the error's direction: the quoted one, reversed.
    key: KeyOf<F>,
    /// Offset of the quoted transport header.
    transport: u32,
    /// Offset behind the message.
    end: u32,
    /// Bytes of the message's packet.
    length: u32,
    hop_limit: u8,
}

/// The next step for an error. The function that finds it out has no stack left to take it.
#[derive(Clone, Copy)]
enum Next {
    /// Nothing more.
    End(Verdict),
    /// The error goes to the node of this backend.
    Send(BackendRef),
    /// The error goes to the pod of this backend.
    SendToPod(BackendRef),
    /// The error is about a connection whose client's address is translated.
    Translate,
    /// The error is about no connection, but may be about a packet that was encapsulated here.
    Encapsulated,
}

/// Receives an error for the backend, from the client or from a router on the way to it.
#[inline(always)]
pub fn receive<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match judge::<P, F>(packet) {
        Next::End(verdict) => verdict,
        Next::Send(backend) => send::<P, F>(packet, backend),
        Next::SendToPod(backend) => send_to_pod::<P, F>(packet, backend),
        Next::Translate => translate::<P, F>(packet),
        Next::Encapsulated => encapsulated::receive::<P, F>(packet),
    }
}

#[inline(never)]
fn judge<P: Packet, F: Icmp>(mut packet: P) -> Next {
    let Some(error) = read::<P, F>(&packet, ETHERNET) else {
        return Next::Encapsulated;
    };
    let Some(flow) = flow::lookup_quoted::<F>(&error.key) else {
        return if is_tunnel::<F>(&error.key) { Next::Encapsulated } else { choose::<F>(&error.key) };
    };
    if flow.check != 0 {
        return Next::Translate;
    }
    Next::End(match flow.flags & (FLOW_REPLY | FLOW_ENCAPSULATE) {
        0 if packet.claim_delivery().is_err() => HAND_TO_TC,
        0 => rewrite::<P, F>(&packet, &error, flow).map_or(NO_ROOM, |()| Verdict::Deliver(Reason::IcmpError)),
        // The connection began after this mode gave way to another.
        FLOW_ENCAPSULATE if BackendRef(flow.backend).is_none() => UNTOUCHED,
        FLOW_ENCAPSULATE => return send_as::<F>(&error.key, BackendRef(flow.backend)),
        // Errors from a backend on this node come by `restore`.
        _ => UNTOUCHED,
    })
}

/// Whether an error quotes a packet that this node may have sent another one in UDP. A pod or a client may
/// have that port, too.
#[inline(always)]
fn is_tunnel<F: Family>(key: &KeyOf<F>) -> bool {
    key.source_port == FOU_PORT.to_be()
        && key.protocol == protocol::UDP
        && peers::is_own::<F>(&key.destination)
        && peers::is_other_node::<F>(&key.source)
}

/// Chooses the backend without an entry, as directors keep none while nothing changed (rule 1 of the slot).
#[inline(always)]
fn choose<F: Family>(key: &KeyOf<F>) -> Next {
    let Some(frontend) = backend::lookup_frontend::<F>(key) else {
        return Next::End(UNTOUCHED);
    };
    if node_flow::is_about_nodes::<F>(key) {
        return Next::End(UNTOUCHED);
    }
    if !frontend.may_have_dsr() || !mode::owns_unknown(key.protocol) {
        return Next::End(unknown());
    }
    let former =
        if has_connections(key.protocol) { backend::former_owner::<F>(&frontend, key) } else { None };
    if let Some(owner) = former {
        return send_as::<F>(key, owner);
    }
    let slot = backend::select_slot::<F>(&frontend, key);
    send_as::<F>(key, backend::keeper::<F>(slot, key.protocol))
}

/// Decides about an error for a connection without an entry here, or for another mode's in the stack.
#[inline(always)]
fn unknown() -> Verdict {
    if mode::is_alone() { Verdict::Drop(Reason::IcmpUnknown) } else { UNTOUCHED }
}

/// Sends an error the same way as the connection's own packets.
#[inline(always)]
fn send_as<F: Family>(key: &KeyOf<F>, backend: BackendRef) -> Next {
    let takes = |backend: &Backend<F::Address>| backend::pod_takes::<F>(backend, key);
    if F::backend(backend).is_some_and(takes) { Next::SendToPod(backend) } else { Next::Send(backend) }
}

/// Sends an error to the node of a backend, encapsulated as the connection's own packets.
#[inline(never)]
fn send<P: Packet, F: Icmp>(mut packet: P, to: BackendRef) -> Verdict {
    let Some(backend) = F::backend(to).filter(|backend| !backend.is_local()) else {
        return Verdict::Drop(Reason::IcmpUnknown);
    };
    let Some(parsed) = parse_plain::<P, F>(&packet, ETHERNET, F::PROTOCOL) else {
        return UNTOUCHED;
    };
    sent(dsr_node::send::<P, F>(&mut packet, &parsed, backend))
}

/// Sends an error to the pod of a backend, encapsulated as the connection's own packets.
#[inline(never)]
fn send_to_pod<P: Packet, F: Icmp>(mut packet: P, to: BackendRef) -> Verdict {
    match parse_plain::<P, F>(&packet, ETHERNET, F::PROTOCOL) {
        Some(parsed) => sent(dsr_pod::encapsulate::<P, F>(&mut packet, &parsed, to)),
        None => UNTOUCHED,
    }
}

#[inline(always)]
fn sent(result: Decision) -> Verdict {
    match result {
        Ok(Verdict::Send(_, device)) => Verdict::Send(Reason::IcmpError, device),
        Ok(Verdict::Transmit(_, device)) => Verdict::Transmit(Reason::IcmpError, device),
        Ok(verdict) | Err(verdict) => unanswered(verdict),
    }
}

/// The verdict without an answer: an error never answers another.
#[inline(always)]
const fn unanswered(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Refuse(reason, _) => Verdict::Drop(reason),
        verdict => verdict,
    }
}

/// Relays an error about a connection with a translated client (SNAT) to the backend or the client, as its
/// packets go.
#[inline(never)]
fn translate<P: Packet, F: Icmp>(packet: P) -> Verdict {
    let Some(error) = read::<P, F>(&packet, ETHERNET) else {
        return UNTOUCHED;
    };
    match flow::lookup_quoted::<F>(&error.key) {
        Some(flow) if error.hop_limit > 1 => {
            translate_by::<P, F>(&packet, &error, flow).unwrap_or_else(unanswered)
        }
        Some(_) => Verdict::Drop(Reason::HopLimit),
        None => Verdict::Drop(Reason::IcmpUnknown),
    }
}

#[inline(always)]
fn translate_by<P: Packet, F: Icmp>(packet: &P, error: &Error<F>, flow: &FlowOf<F>) -> Decision {
    let mut next = NextHop::default();
    if flow.flags & FLOW_REPLY != 0 {
        route::to_client::<P, F>(packet, flow, error.length, &mut next)?;
    } else {
        let backend = BackendRef(flow.backend);
        F::backend(backend).ok_or(Verdict::Drop(Reason::IcmpUnknown))?;
        next = NextHop::of_hop(route::hop::<P, F>(packet, backend, &flow.destination)?);
    }
    rewrite::<P, F>(packet, error, flow).ok_or(NO_ROOM)?;
    F::decrement_hop_limit(packet, ETHERNET).ok_or(NO_ROOM)?;
    packet.write_ethernet_addresses(next.addresses).ok_or(NO_ROOM)?;
    Ok(Verdict::Send(Reason::IcmpError, next.device))
}

/// Receives an encapsulated error from a director.
#[inline(always)]
pub fn receive_tunnelled<P: Packet, O: Icmp, F: Icmp, E: Encapsulation>(packet: P) -> Verdict {
    match judge_tunnelled::<P, O, F, E>(packet) {
        Next::End(verdict) => verdict,
        Next::Send(backend) => send_onward::<P, O, F, E>(packet, backend),
        Next::SendToPod(_) | Next::Translate | Next::Encapsulated => UNTOUCHED,
    }
}

#[inline(never)]
fn judge_tunnelled<P: Packet, O: Icmp, F: Icmp, E: Encapsulation>(mut packet: P) -> Next {
    let Some(Plain { length: outer, .. }) = O::read_plain(&packet, ETHERNET, E::outer_protocol::<F>()) else {
        return Next::End(UNTOUCHED);
    };
    match read::<P, F>(&packet, ETHERNET + O::HEADER + E::BYTES) {
        Some(mut error) if error.length + (O::HEADER + E::BYTES) as u32 <= outer => {
            judge_inner::<P, O, F, E>(&mut packet, &mut error).unwrap_or_else(Next::End)
        }
        _ => Next::End(UNTOUCHED),
    }
}

#[inline(always)]
fn judge_inner<P: Packet, O: Icmp, F: Icmp, E: Encapsulation>(
    packet: &mut P,
    error: &mut Error<F>,
) -> Result<Next, Verdict> {
    let frontend = backend::lookup_encapsulated::<F>(&error.key).ok_or(UNTOUCHED)?;
    let is_for_pod = decap::check_addressee::<P, O, F, E>(packet)?.is_some();
    let is_here = |flow: &&FlowOf<F>| flow.flags & (FLOW_REPLY | FLOW_ENCAPSULATE) == 0 && flow.check == 0;
    let Some(flow) = flow::lookup_quoted::<F>(&error.key).filter(is_here) else {
        if is_for_pod {
            return Err(UNTOUCHED);
        }
        return backend::other_owner::<F>(&frontend, &error.key)
            .map(Next::Send)
            .ok_or(Verdict::Drop(Reason::NoBackendHere));
    };
    if is_for_pod && !decap::is_addressed::<P, O, F>(packet, &flow.destination) {
        return Err(UNTOUCHED);
    }
    packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
    packet.pop_outer(O::HEADER + E::BYTES, O::ETHER_TYPE, F::ETHER_TYPE).map_err(|_| NO_ROOM)?;
    error.transport -= (O::HEADER + E::BYTES) as u32;
    error.end -= (O::HEADER + E::BYTES) as u32;
    rewrite::<P, F>(packet, error, flow).ok_or(NO_ROOM)?;
    Err(Verdict::Deliver(Reason::IcmpError))
}

/// Gives an error a second chance: once, it goes to another owner of the slot if this node lacks the
/// connection.
#[inline(never)]
fn send_onward<P: Packet, O: Icmp, F: Icmp, E: Encapsulation>(packet: P, to: BackendRef) -> Verdict {
    let Some(backend) = F::backend(to) else {
        return Verdict::Drop(Reason::NoBackendHere);
    };
    let Some(inner) = parse_plain::<P, F>(&packet, ETHERNET + O::HEADER + E::BYTES, F::PROTOCOL) else {
        return UNTOUCHED;
    };
    let Some(hint) = O::read_hint(&packet, ETHERNET) else {
        return NO_ROOM;
    };
    decap::send_onward::<P, O, F, E>(packet, &inner, backend, hint)
}

/// Relays an error from a backend, or its node, to the client.
#[inline(never)]
pub fn restore<P: Packet, F: Icmp>(packet: P) -> Verdict {
    let Some(error) = read::<P, F>(&packet, ETHERNET) else {
        return UNTOUCHED;
    };
    if !observe::has_served(error.key.source_port) {
        return UNTOUCHED;
    }
    let is_reply = |flow: &&FlowOf<F>| flow.flags & FLOW_REPLY != 0 && flow.check == 0;
    let Some(flow) = flow::lookup_quoted::<F>(&error.key).filter(is_reply) else {
        return UNTOUCHED;
    };
    rewrite::<P, F>(&packet, &error, flow).map_or(NO_ROOM, |()| Verdict::Deliver(Reason::IcmpError))
}

/// Relays an error of a pod of this node, about a packet of its Service's backend, to that backend. A pod
/// that reaches itself gets it back.
#[inline(never)]
pub fn receive_of_pod<P: Packet, F: Icmp>(mut packet: P) -> Verdict {
    let Some(error) = read::<P, F>(&packet, ETHERNET) else {
        return UNTOUCHED;
    };
    let key = &error.key;
    let Some(flow) = flow::lookup_quoted::<F>(key) else {
        let frontend = backend::lookup_internal::<F>(&key.destination, key.destination_port, key.protocol);
        let is_ours = frontend.is_some() && !node_flow::is_about_nodes::<F>(key);
        return if is_ours { unknown() } else { UNTOUCHED };
    };
    let is_client = flow.flags & (FLOW_REPLY | FLOW_ENCAPSULATE) == 0;
    let is_hairpin = flow.check != 0 && flow.destination == key.source;
    if !is_hairpin && (!is_client || flow.check != 0) || packet.claim_delivery().is_err() {
        return UNTOUCHED;
    }
    // First: Linux 6.1 would take this code, behind the other function and for this case alone, for
    // unreachable.
    if is_hairpin && ethernet::swap_ethernet(&packet).is_none() {
        return NO_ROOM;
    }
    match rewrite::<P, F>(&packet, &error, flow) {
        None => NO_ROOM,
        Some(()) if is_hairpin => Verdict::Bounce(Reason::IcmpError),
        Some(()) => Verdict::Deliver(Reason::IcmpError),
    }
}

/// Reads an error whose IP header is at `network`, if it is about TCP, UDP or SCTP and goes to the sender of
/// the quoted packet.
#[inline(always)]
fn read<P: Packet, F: Icmp>(packet: &P, network: usize) -> Option<Error<F>> {
    let message = network + F::HEADER;
    packet.pull(MOST_HEADERS);
    let ip = parse_plain::<P, F>(packet, network, F::PROTOCOL)?;
    let header = packet.read::<IcmpHeader>(message)?;
    if !F::is_error(header.kind) {
        return None;
    }
    let end = network as u32 + ip.length;
    let Quote { source, destination, protocol, transport } = F::read_quote(packet, message + QUOTE)?;
    let is_ours = has_ports(protocol) && source == ip.key.destination;
    if !is_ours || transport + QUOTED_TRANSPORT > end {
        return None;
    }
    let ports = packet.read::<Ports>((transport & MAX_OFFSET) as usize)?;
    let Ports { source: source_port, destination: destination_port } = ports;
    let key = FlowKey {
        source: destination,
        destination: source,
        source_port: destination_port,
        destination_port: source_port,
        protocol,
        ..FlowKey::default()
    };
    Some(Error { key, transport, end, length: ip.length, hop_limit: ip.hop_limit })
}

/// Rewrites the error as `flow` rewrites packets in its direction, and the quote in reverse.
///
/// If the flow hides an address behind another, the error hides its sender behind it, too: the receiver knows
/// no other address.
#[inline(never)]
fn rewrite<P: Packet, F: Icmp>(packet: &P, error: &Error<F>, flow: &FlowOf<F>) -> Option<()> {
    let key = &error.key;
    let (sender, receiver) = F::read_addresses(packet, ETHERNET)?;
    let source = if flow.source == key.source { &sender } else { &flow.source };
    let outer = difference(Difference::default(), &sender, source);
    let outer = difference(outer, &receiver, &flow.destination);
    F::write_addresses(packet, ETHERNET, source, &flow.destination, outer)?;

    let inner = difference(Difference::default(), &key.destination, &flow.destination);
    let inner = difference(inner, &key.source, &flow.source);
    F::write_addresses(packet, ETHERNET + F::HEADER + QUOTE, &flow.destination, &flow.source, inner)?;
    packet.write(
        (error.transport & MAX_OFFSET) as usize,
        Ports { source: flow.destination_port, destination: flow.source_port },
    )?;
    let changed = Difference::default()
        .half(key.destination_port, flow.destination_port)
        .half(key.source_port, flow.source_port);
    let covered = Difference(inner.0.wrapping_add(changed.0));
    let checksum = seal_quote(packet, error, covered);

    // An IPv4 header's own checksum covers its addresses; ICMPv6's covers those of both headers.
    let addresses = if F::HAS_HEADER_CHECKSUM { 0 } else { inner.0.wrapping_add(outer.0) };
    let total = addresses.wrapping_add(changed.0).wrapping_add(checksum.0);
    packet.update::<IcmpHeader>(ETHERNET + F::HEADER, |header| {
        header.checksum = Difference(total).apply(header.checksum);
    })
}

/// Updates the quoted transport's checksum, if the quote reaches it; returns the difference that this makes.
#[inline(always)]
fn seal_quote<P: Packet, F: Icmp>(packet: &P, error: &Error<F>, covered: Difference) -> Difference {
    let none = Difference::default();
    let offset = (error.transport & MAX_OFFSET) as usize;
    if error.key.protocol == protocol::UDP {
        let Some(udp) = packet.at::<Udp>(offset) else {
            return none;
        };
        // SAFETY: `at` checked the bound.
        let field = unsafe { &mut (*udp).checksum };
        let old = core::mem::replace(field, covered.apply_udp(*field));
        return none.half(old, *field);
    }
    match packet.at::<u16>(offset + TCP_CHECKSUM) {
        // SCTP's CRC can't be verified, as quotes are seldom whole, nor patched without the length.
        _ if error.key.protocol == protocol::SCTP => none,
        Some(field) if error.transport + (TCP_CHECKSUM + size_of::<u16>()) as u32 <= error.end => {
            // SAFETY: `at` checked the bound.
            let field = unsafe { &mut *field };
            let old = core::mem::replace(field, covered.apply(*field));
            none.half(old, *field)
        }
        _ => none,
    }
}
