//! ICMP errors about packets that this node encapsulated and that are too large for some link between two
//! nodes.

use proxy_common::flow::FlowKey;
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Reason;
use proxy_common::way::{DOUBTED_SECONDS, FOU_PORT, NARROWED_SECONDS, PEER_WAY_SHIFT, WAY_VALID};

use super::answer::{self, MOST_QUOTED, QUOTED_TRANSPORT};
use super::family::{Icmp, LEAST_LINK, Quote};
use super::limit;
use super::quoted::{MAX_OFFSET, QUOTE};
use crate::flow;
use crate::forward::route::{self, NextHop};
use crate::forward::{outer, path_mtu};
use crate::header::{ETHERNET, IcmpHeader, Ipv6, Ports, Udp, protocol};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::maps::{self, Buffer, config, peers};
use crate::packet::encap::{Encapsulation, Fou};
use crate::packet::ip::plain::parse_plain;
use crate::packet::{CHUNK_WORDS, Chunk, MOST_HEADERS, Packet, Transport};
use crate::select::backend;
use crate::verdict::{NO_ROOM, UNTOUCHED, Verdict};

/// The stack gets the error as well: other software that encapsulates for this node may need it.
const NOTED: Verdict = Verdict::Pass(Reason::IcmpError);

/// An error about a packet of ours.
#[derive(Clone, Copy)]
struct Finding {
    /// The MTU that the router names.
    mtu: u32,
    /// Bytes of the packet that was too large.
    size: u32,
    /// Bytes of that packet's outer headers.
    outer: u32,
    /// The hint in them, or zero.
    hint: u32,
    /// The lowest MTU that the way may get.
    least: u32,
    /// The MTU that the client is told.
    told: u32,
    /// Id of the packet's way.
    way: u32,
    /// Offset of the inner packet in the quote.
    inner: u32,
    /// Offset behind the message.
    end: u32,
    /// The next hop to the client.
    next: NextHop,
}

/// Lowers the MTU of the way, and tells the client if the quote is long enough to identify it.
#[inline(always)]
pub fn receive<P: Packet, O: Icmp>(packet: P) -> Verdict {
    match find::<P, O>(packet) {
        protocol::IPV4 => act_on::<P, O, V4>(packet),
        protocol::IPV6 => act_on::<P, O, V6>(packet),
        _ => UNTOUCHED,
    }
}

/// Runs two functions in turn, so that each has a stack of its own.
#[inline(always)]
fn act_on<P: Packet, O: Icmp, F: Icmp>(packet: P) -> Verdict {
    match conclude::<P, F>(packet) {
        Ok(()) => tell::<P, O, F>(packet),
        Err(verdict) => verdict,
    }
}

/// The finding that one function here leaves for the next.
#[inline(always)]
fn finding() -> Option<&'static mut Finding> {
    const { assert!(size_of::<Finding>() <= size_of::<Buffer>() && align_of::<Finding>() <= align_of::<Buffer>()) };
    // SAFETY: this CPU's own, large enough, and any bytes are a finding.
    maps::BUFFER.get_ptr_mut(0).map(|room| unsafe { &mut *room.cast() })
}

/// The protocol number of the inner packet that an error is about, else zero.
///
/// This node must have sent the outer packet to a node of the cluster, and it must be larger than the error
/// says. The result is a number: a larger one would leave a pointer in the result's register, which Linux
/// refuses.
#[inline(never)]
fn find<P: Packet, O: Icmp>(packet: P) -> u8 {
    find_inner::<P, O>(packet).unwrap_or(0)
}

#[inline(always)]
fn find_inner<P: Packet, O: Icmp>(packet: P) -> Option<u8> {
    let finding = finding()?;
    packet.pull(MOST_HEADERS);
    let message = ETHERNET + O::HEADER;
    let ip = parse_plain::<P, O>(&packet, ETHERNET, O::PROTOCOL)?;
    // SAFETY: `at` checked the bound.
    finding.mtu = O::next_mtu(unsafe { *packet.at::<IcmpHeader>(message)? })?;
    finding.end = ETHERNET as u32 + ip.length;
    let quote = message + QUOTE;
    let outer = O::peek_protocol(&packet, quote)?;
    finding.size = O::read_plain(&packet, quote, outer)?.length;
    let (source, destination) = O::read_addresses(&packet, quote)?;
    let is_told = (O::LEAST_MTU..finding.size).contains(&finding.mtu) && source == ip.key.destination;
    if !is_told || !peers::is_own::<O>(&source) || O::may_be_fragmented(&packet, quote) {
        return None;
    }
    let hint = O::read_hint(&packet, quote)?;
    if hint & !(outer::HINT_MASK | outer::ONWARD) != 0 {
        return None;
    }
    finding.hint = hint & outer::HINT_MASK;
    finding.way = peers::peer::<O>(&destination) >> PEER_WAY_SHIFT;
    let way = maps::WAYS.get(finding.way)?;
    if way.flags & WAY_VALID == 0 || O::unmap(&way.target) != destination {
        return None;
    }
    if !path_mtu::can_have_sent(finding.way, way, finding.size) {
        return None;
    }
    let transport = quote + O::HEADER;
    let (inner, between) = match outer {
        protocol::UDP => (inside_udp(&packet, transport)?, Fou::BYTES),
        other => (other, 0),
    };
    finding.inner = (transport + between) as u32;
    finding.outer = (O::HEADER + between) as u32;
    // The smallest IPv6 packets must still fit: a client can't be told to send smaller ones.
    finding.least = LEAST_LINK + (O::HEADER + between.max(config::tunnel_header_bytes())) as u32;
    Some(inner)
}

/// The protocol number of a packet in UDP, if it went to the tunnel port.
#[inline(always)]
fn inside_udp<P: Packet>(packet: &P, offset: usize) -> Option<u8> {
    let udp = packet.read::<Udp>(offset)?;
    if udp.ports.destination != FOU_PORT.to_be() {
        return None;
    }
    match packet.read::<u8>(offset + Fou::BYTES) {
        Some(version) if version >> 4 == 6 => Some(protocol::IPV6),
        // If the quote ends before the inner packet, its family does not matter.
        _ => Some(protocol::IPV4),
    }
}

/// Lowers the way's MTU; returns `Ok` if the client is to be told, and prepares the message.
#[inline(never)]
fn conclude<P: Packet, F: Icmp>(packet: P) -> Result<(), Verdict> {
    let finding = finding().ok_or(UNTOUCHED)?;
    let quote = read_quote::<P, F>(&packet, finding);
    // Only the inner headers identify packets of a backend without a hint. Routers quote more than the outer
    // header of IPv6 (RFC 4443, section 2.4), so an error without the inner one is forged.
    let may_lack_quote = finding.hint != 0 && finding.outer < size_of::<Ipv6>() as u32;
    let is_ours = quote.map_or(may_lack_quote, |quote| is_ours::<P, F>(&packet, &quote, finding));
    let Some(way) = maps::WAYS.get_ptr_mut(finding.way).filter(|_| is_ours) else {
        // A foreign tunnel between the same nodes.
        return Err(UNTOUCHED);
    };
    let seconds = if quote.is_some() { NARROWED_SECONDS } else { DOUBTED_SECONDS };
    path_mtu::narrow(finding.way, way, finding.mtu.max(finding.least) as u16, seconds);
    let quote = quote.ok_or(NOTED)?;
    finding.told = finding.mtu.saturating_sub(finding.outer).max(F::LEAST_TOLD);
    if finding.told.saturating_add(finding.outer) >= finding.size {
        return Err(NOTED);
    }
    if F::may_be_fragmented(&packet, (finding.inner & MAX_OFFSET) as usize) || !F::is_host(&quote.source) {
        return Err(NOTED);
    }
    find_client::<P, F>(&packet, &quote, &mut finding.next)?;
    if limit::admit(&F::prefix(&quote.source).about_size()) { Ok(()) } else { Err(NOTED) }
}

/// The inner packet's header, if the quote reaches the first bytes of TCP or UDP and the client can get as
/// much.
#[inline(always)]
fn read_quote<P: Packet, F: Icmp>(packet: &P, finding: &Finding) -> Option<Quote<F::Address>> {
    let quote = F::read_quote(packet, (finding.inner & MAX_OFFSET) as usize)?;
    let end = quote.transport + QUOTED_TRANSPORT as u32;
    (end <= finding.end && end <= finding.inner + MOST_QUOTED as u32).then_some(quote)
}

/// Whether a quoted packet asked for a frontend with encapsulated packets, and its backend matches its way
/// and its hint.
///
/// An attacker may know addresses and ports, but has to guess the hint.
#[inline(always)]
fn is_ours<P: Packet, F: Icmp>(packet: &P, quote: &Quote<F::Address>, finding: &Finding) -> bool {
    let Some(ports) = packet.read::<Ports>((quote.transport & MAX_OFFSET) as usize) else {
        return false;
    };
    let Ports { source: source_port, destination: destination_port } = ports;
    let key = FlowKey {
        source: quote.source,
        destination: quote.destination,
        source_port,
        destination_port,
        protocol: quote.protocol,
        ..FlowKey::default()
    };
    let Some(frontend) = backend::lookup_encapsulated::<F>(&key) else {
        return false;
    };
    let carries = |reference| {
        let backend = F::backend(reference);
        backend.is_some_and(|backend| {
            backend.way == finding.way && backend.hint & outer::HINT_MASK == finding.hint
        })
    };
    let slot = backend::select_slot::<F>(&frontend, &key);
    let kept = || flow::lookup_quoted::<F>(&key).is_some_and(|flow| carries(BackendRef(flow.backend)));
    carries(slot.settled()) || carries(slot.current()) || kept()
}

/// Finds the client's next hop. The error itself came from another router.
#[inline(always)]
fn find_client<P: Packet, F: Icmp>(
    packet: &P,
    quote: &Quote<F::Address>,
    next: &mut NextHop,
) -> Result<(), Verdict> {
    let scratch = F::scratch().ok_or(NO_ROOM)?;
    // SAFETY: this CPU's own, and no other program of ours runs on it before this packet is done with.
    let reply = unsafe { &mut *scratch };
    (reply.source, reply.destination) = (quote.destination, quote.source);
    match route::to_client::<P, F>(packet, reply, 0, next) {
        Err(verdict) if verdict.reason() == Reason::HandedToTc => Err(verdict),
        Err(_) => Err(NOTED),
        Ok(()) => Ok(()),
    }
}

/// Turns the error into one for the client, from the frontend's address, about the client's own packet.
#[inline(never)]
fn tell<P: Packet, O: Icmp, F: Icmp>(packet: P) -> Verdict {
    let Some(finding) = finding() else {
        return NOTED;
    };
    rewrite::<P, O, F>(packet, finding)
        .map_or(NO_ROOM, |()| Verdict::Send(Reason::IcmpError, finding.next.device))
}

#[inline(always)]
fn rewrite<P: Packet, O: Icmp, F: Icmp>(mut packet: P, finding: &Finding) -> Option<()> {
    let message = F::error(Reason::TooBig, finding.told)?;
    let before = ((finding.inner & MAX_OFFSET) as usize).wrapping_sub(ETHERNET);
    packet.pop_outer(before, O::ETHER_TYPE, F::ETHER_TYPE).ok()?;
    // The rest of the frame begins with the client's packet.
    let Quote { source, destination, transport, .. } = F::read_quote(&packet, ETHERNET)?;
    let quoted = ((transport & MAX_OFFSET) as usize).wrapping_sub(ETHERNET) + QUOTED_TRANSPORT;
    let mut quote: Chunk = [0; CHUNK_WORDS];
    answer::read(&packet, ETHERNET, quoted, &mut quote)?;
    packet.resize(answer::frame_length::<F>(quoted), Transport::at(transport)).ok()?;
    answer::write::<P, F>(&packet, finding.next.addresses, &(destination, source), message, (&quote, quoted))
}
