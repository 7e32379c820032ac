//! Direct Server Return: encapsulate on the director, decapsulate on the backend's node.

use proxy_common::backend::Backend;
use proxy_common::flow::{FLOW_DECAPSULATED, FLOW_OUTER_IPV6};
use proxy_common::fragment::Side;
use proxy_common::frontend::{FRONTEND_AFFINITY, Frontend};
use proxy_common::hash::flow_hash;
use proxy_common::selection::{BackendRef, HINT_POD, HintKey};
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF, WAY_IPV4, Way};

use crate::flow::mode_change;
use crate::flow::{self, Owner, Sender};
use crate::forward::dsr_pod;
use crate::forward::nat;
use crate::forward::path_mtu;
use crate::forward::route;
use crate::forward::route::NextHop;
use crate::header::{ETHERNET, Ethernet, Ipv6, Tcp, protocol};
use crate::icmp::{Icmp, Plain};
use crate::maps;
use crate::maps::config::OUTER_SPREAD;
use crate::maps::family::{Family, KeyOf, Outer};
use crate::maps::observe;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::encap;
use crate::packet::encap::Encapsulation;
use crate::packet::parsed::{has_connections, parse};
use crate::packet::{Packet, Parsed};
use crate::select::backend;
use crate::select::source;
use crate::verdict::{HAND_TO_TC, NO_ROOM, UNTOUCHED, Verdict};

/// Bit of the outer header's hint: this packet has had its second chance and is never sent on again.
pub const ONWARD: u32 = 1 << 14;
pub const HINT_MASK: u32 = ONWARD - 1;

/// Sends a client's packet to the node of `backend`, encapsulated.
#[inline(always)]
pub fn send<P: Packet, F: Family>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    backend: &Backend<F::Address>,
) -> Result<Verdict, Verdict> {
    let way = route::lookup_way(backend.way)?;
    if parsed.hop_limit <= 1 {
        return Err(Verdict::Refuse(Reason::HopLimit, backend.way));
    }
    let between = encap::own_bytes();
    let outer = header_of(way) + between;
    let size = packet.largest_packet(parsed, outer);
    if size > u32::from(way.mtu) {
        path_mtu::check(backend.way, size, outer as u32)?;
    }
    let next = route::resolve(packet, way)?;
    F::decrement_hop_limit(packet, ETHERNET).ok_or(NO_ROOM)?;
    packet.push_outer(parsed.transport(), outer).map_err(|_| NO_ROOM)?;
    write_outer::<P, F>(packet, parsed, way, &next, backend.hint, between)?;
    Ok(Verdict::Send(Reason::SentDsr, next.device))
}

/// Bytes of the outer IP header a way takes.
#[inline(always)]
const fn header_of(way: &Way) -> usize {
    if way.flags & WAY_IPV4 != 0 { V4::HEADER } else { V6::HEADER }
}

/// Writes Ethernet and outer headers in front of an inner packet of family `F`; `between` is the UDP header's bytes, or zero.
#[inline(always)]
pub fn write_outer<P: Packet, F: Family>(
    packet: &P,
    parsed: &Parsed<F::Address>,
    way: &Way,
    next: &NextHop,
    hint: u32,
    between: usize,
) -> Result<(), Verdict> {
    let ether_type = if way.flags & WAY_IPV4 != 0 { V4::ETHER_TYPE } else { V6::ETHER_TYPE };
    let ethernet = packet.ethernet().ok_or(NO_ROOM)?;
    // SAFETY: `at` checked the bound.
    unsafe { *ethernet = Ethernet { addresses: next.addresses, ether_type } };
    packet.sign();
    let written = if way.flags & WAY_IPV4 != 0 {
        V4::write_outer(packet, ETHERNET, &outer::<F, V4>(parsed, way, hint, between))
    } else {
        V6::write_outer(packet, ETHERNET, &outer::<F, V6>(parsed, way, hint, between))
    };
    written.ok_or(NO_ROOM)?;
    if OUTER_SPREAD.load() != 0 {
        let spread = if way.flags & WAY_IPV4 != 0 {
            spread::<P, F, V4>(*packet, &parsed.key)
        } else {
            spread::<P, F, V6>(*packet, &parsed.key)
        };
        spread.ok_or(NO_ROOM)?;
    }
    if between != 0 {
        encap::write_header::<P, F>(packet, ETHERNET + header_of(way), parsed).ok_or(NO_ROOM)?;
    }
    Ok(())
}

#[inline(always)]
fn outer<F: Family, O: Family>(
    parsed: &Parsed<F::Address>,
    way: &Way,
    hint: u32,
    between: usize,
) -> Outer<O::Address> {
    Outer {
        source: O::unmap(&way.source),
        destination: O::unmap(&way.target),
        protocol: if between == 0 { F::ENCAPSULATED } else { protocol::UDP },
        // Without the ECN bits: a mark set on the way would be lost with the outer header (RFC 6040).
        traffic_class: parsed.traffic_class & !3,
        inner_length: parsed.length + between as u32,
        hint,
    }
}

/// Puts an address of the flow's own in place of this node's: receive queues are chosen by addresses, and all that a director
/// sends to a node would be given to one. A function of its own: the walk's stack has no room for another address.
#[inline(never)]
fn spread<P: Packet, F: Family, O: Family>(packet: P, key: &KeyOf<F>) -> Option<()> {
    O::spread_source(&packet, ETHERNET, flow_hash(key))
}

/// A tunnel packet of family `O`: ours if its inner destination is a frontend and its outer one this node, or one of its pods.
#[inline(never)]
pub fn receive<P: Packet, O: Icmp, E: Encapsulation>(packet: P) -> Verdict {
    received::<P, O, E>(packet).unwrap_or_else(|verdict| verdict)
}

/// Ours have neither options nor extension headers, and are no fragments; so inner offsets are constants.
#[inline(always)]
fn received<P: Packet, O: Icmp, E: Encapsulation>(mut packet: P) -> Result<Verdict, Verdict> {
    packet.need(ETHERNET + O::HEADER + E::BYTES + size_of::<Ipv6>() + size_of::<Tcp>());
    let protocol = O::peek_protocol(&packet, ETHERNET).ok_or(UNTOUCHED)?;
    let Plain { length, .. } = O::read_plain(&packet, ETHERNET, protocol).ok_or(UNTOUCHED)?;
    // An IPv6 header says how much follows it.
    let uncounted = if O::HAS_HEADER_CHECKSUM { 0 } else { O::HEADER };
    let counted = packet.network_length(length - uncounted as u32, ETHERNET + uncounted);
    let length = counted + uncounted as u32;
    if !packet.holds(ETHERNET as u32 + length) {
        return Err(UNTOUCHED);
    }
    match E::inner_protocol::<P, O>(&packet, protocol) {
        Some(protocol::IPV4) => receive_inner::<P, O, V4, E>(&mut packet, length),
        Some(protocol::IPV6) => receive_inner::<P, O, V6, E>(&mut packet, length),
        _ => Err(UNTOUCHED),
    }
}

#[inline(always)]
fn receive_inner<P: Packet, O: Family, F: Family, E: Encapsulation>(
    packet: &mut P,
    outer_length: u32,
) -> Result<Verdict, Verdict> {
    let mut inner = parse::<P, F>(packet, ETHERNET + O::HEADER + E::BYTES, Side::Tunnel)?;
    if !inner.has_ports() || inner.length + (O::HEADER + E::BYTES) as u32 > outer_length {
        return Err(UNTOUCHED);
    }
    let frontend = backend::lookup_encapsulated::<F>(&inner.key).ok_or(UNTOUCHED)?;
    let hint = match check_addressee::<P, O, F, E>(packet)? {
        Some(pod) => pod,
        None => O::read_hint(packet, ETHERNET).ok_or(NO_ROOM)?,
    };
    // The director asked, too; this one does not have to believe that it was one.
    source::check_ranges::<F>(&frontend, &inner.key)?;
    let verdict = serve::<P, O, F, E>(packet, &mut inner, &frontend, hint)?;
    observe::count_service(frontend.service, packet.length());
    Ok(verdict)
}

/// As [`check_peers`], where a packet may also be addressed to a pod, as IPVS does it, which can name no more than that: then the answer is
/// the pod's hint. It comes in IP, and in its own family.
#[inline(always)]
pub fn check_addressee<P: Packet, O: Family, F: Family, E: Encapsulation>(
    packet: &P,
) -> Result<Option<u32>, Verdict> {
    let (source, destination) = O::read_addresses(packet, ETHERNET).ok_or(UNTOUCHED)?;
    if is_for_node::<O>(&source, &destination)? {
        return Ok(None);
    }
    if may_be_for_pod::<O, F, E>() && is_other_node::<O>(&source) {
        Ok(Some(HintKey::pod(0, &destination).hint))
    } else {
        Err(UNTOUCHED)
    }
}

#[inline(always)]
fn may_be_for_pod<O: Family, F: Family, E: Encapsulation>() -> bool {
    E::BYTES == 0 && O::HEADER == F::HEADER
}

/// Whether the outer header names this address: pods may share a hint.
#[inline(always)]
pub fn is_addressed<P: Packet, O: Family, F: Family>(packet: &P, pod: &F::Address) -> bool {
    O::read_addresses(packet, ETHERNET).is_some_and(|(_, destination)| O::map(&destination) == F::map(pod))
}

/// A packet for a frontend of ours is encapsulated from node to node, this one the last.
#[inline(always)]
pub fn check_peers<P: Packet, O: Family>(packet: &P) -> Result<(), Verdict> {
    let (source, destination) = O::read_addresses(packet, ETHERNET).ok_or(UNTOUCHED)?;
    if is_for_node::<O>(&source, &destination)? { Ok(()) } else { Err(UNTOUCHED) }
}

/// Whether an outer header names this node, from somebody who may. Whose the sources in `--dsr-outer-source` are is not asked: the
/// network must let nobody else use them.
#[inline(always)]
fn is_for_node<O: Family>(source: &O::Address, destination: &O::Address) -> Result<bool, Verdict> {
    if !is_own::<O>(destination) {
        return Ok(false);
    }
    if may_send::<O>(source) { Ok(true) } else { Err(Verdict::Drop(Reason::NotPeer)) }
}

/// What PEERS has of an address; zero if it is no node's.
#[inline(always)]
pub fn peer<O: Family>(address: &O::Address) -> u32 {
    // SAFETY: copied at once; a peer that is being removed may be taken for one a moment longer.
    O::with_peer_key(address, |key| unsafe { maps::PEERS.get(key).copied() }.unwrap_or(0))
}

/// Whether an address is this node's.
#[inline(never)]
pub fn is_own<F: Family>(address: &F::Address) -> bool {
    peer::<F>(address) & PEER_SELF != 0
}

/// Whether an address is another node's of the cluster.
#[inline(never)]
pub fn is_other_node<F: Family>(address: &F::Address) -> bool {
    peer::<F>(address) & (PEER_NODE | PEER_SELF) == PEER_NODE
}

/// Whether encapsulated packets are taken from an address.
#[inline(never)]
pub fn may_send<F: Family>(address: &F::Address) -> bool {
    F::is_outer_source(address) || peer::<F>(address) & (PEER_NODE | PEER_SELF) == PEER_NODE
}

/// The order of a decapsulated packet: flow entry, second chance, hint, this node's own slot. What is addressed to a pod is for that
/// pod, or not ours: a pod may take the outer header off itself, and so may IPVS on this node, while the mode changes.
#[inline(always)]
fn serve<P: Packet, O: Family, F: Family, E: Encapsulation>(
    packet: &mut P,
    inner: &mut Parsed<F::Address>,
    frontend: &Frontend,
    hint: u32,
) -> Result<Verdict, Verdict> {
    let is_for_pod = may_be_for_pod::<O, F, E>() && hint & HINT_POD != 0;
    if is_for_pod && mode_change::is_older() && !has_connections(inner.key.protocol) {
        return Err(UNTOUCHED);
    }
    let suits = |packet: &P, backend: &Backend<F::Address>| {
        !is_for_pod || is_addressed::<P, O, F>(packet, &backend.address)
    };
    if let Some((found, _)) = flow::lookup::<F>(inner, frontend.service)
        && let Some(backend) = backend::lookup_keeper::<F>(found.backend, inner)
        && backend.is_local()
        && suits(packet, backend)
        && (is_for_pod || !opens_elsewhere::<F>(inner, frontend, hint, found.backend))
    {
        packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
        flow::track::<P, F>(packet, inner, found, Sender::Client);
        return decapsulate::<P, O, F, E>(
            *packet,
            inner,
            found.client_port,
            &(backend.address, backend.port),
        );
    }
    let chosen = choose::<F>(inner, frontend, hint);
    let Some(backend) = backend::lookup_backend::<F>(chosen) else {
        return Err(if is_for_pod { leave::<F>(inner) } else { Verdict::Drop(Reason::NoBackendHere) });
    };
    if !suits(packet, backend) || is_for_pod && !begins_here::<F>(inner, backend) {
        return Err(leave::<F>(inner));
    }
    if !backend.is_local() {
        return Ok(send_onward::<P, O, F, E>(*packet, inner, backend, hint));
    }
    packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
    let outer = if O::HEADER == V6::HEADER { FLOW_OUTER_IPV6 } else { 0 };
    let owner = Owner { backend: chosen, service: frontend.service, flags: FLOW_DECAPSULATED | outer };
    let destination = (backend.address, backend.port);
    let client_port = flow::create::<F>(inner, &destination, &owner)?;
    decapsulate::<P, O, F, E>(*packet, inner, client_port, &destination)
}

/// Whether a packet that is addressed to a backend's pod, and has no flow entry, begins something that this node translates.
#[inline(always)]
fn begins_here<F: Family>(inner: &Parsed<F::Address>, backend: &Backend<F::Address>) -> bool {
    let is_pods = dsr_pod::is_on() && dsr_pod::takes::<F>(backend, &inner.key);
    backend.is_local() && !inner.is_midstream() && !mode_change::is_older() && !is_pods
}

/// Passes what is not taken. A connection that begins must not meet what is left here of an earlier one with its ports.
#[inline(always)]
fn leave<F: Family>(inner: &Parsed<F::Address>) -> Verdict {
    if inner.is_syn() {
        flow::forget::<F>(&inner.key);
    }
    UNTOUCHED
}

/// Whether a SYN is for another backend of this node than the one that has its entry: what is left of an earlier connection
/// would tear it from the one that its director gives it to.
#[inline(always)]
fn opens_elsewhere<F: Family>(
    inner: &Parsed<F::Address>,
    frontend: &Frontend,
    hint: u32,
    found: BackendRef,
) -> bool {
    if !inner.is_syn() {
        return false;
    }
    let hinted = lookup_hint(frontend.service, hint);
    !hinted.is_none() && hinted.0 != found.0
}

/// Who gets a decapsulated packet that has no flow entry.
#[inline(always)]
fn choose<F: Family>(inner: &Parsed<F::Address>, frontend: &Frontend, hint: u32) -> BackendRef {
    let hinted = lookup_hint(frontend.service, hint);
    if hint & HINT_POD != 0 {
        return hinted;
    }
    let slot = backend::select_slot::<F>(frontend, &inner.key);
    if hinted.is_none() {
        let (role, flags) = (inner.role(), backend::flags_of::<F>);
        return if hint & HINT_MASK == 0 { slot.owner(role, flags) } else { slot.owner_instead(role, flags) };
    }
    // With affinity a backend serves clients whose slots it does not own.
    let suits = frontend.flags & FRONTEND_AFFINITY == 0 || slot.is_owned_by(hinted);
    if hint & ONWARD != 0 || !suits {
        return hinted;
    }
    slot.second_chance(hinted, inner.role(), |other| backend::lookup_backend::<F>(other).is_some())
}

#[inline(always)]
fn lookup_hint(service: u32, hint: u32) -> BackendRef {
    let hint = if hint & HINT_POD == 0 { hint & HINT_MASK } else { hint };
    if hint == 0 {
        return BackendRef::NONE;
    }
    // SAFETY: copied at once; the reference carries a generation.
    unsafe { maps::HINTS.get(HintKey { service, hint }).copied() }.map_or(BackendRef::NONE, BackendRef)
}

#[inline(never)]
fn decapsulate<P: Packet, O: Family, F: Family, E: Encapsulation>(
    mut packet: P,
    inner: &mut Parsed<F::Address>,
    client_port: u16,
    destination: &(F::Address, u16),
) -> Result<Verdict, Verdict> {
    packet.pop_outer(O::HEADER + E::BYTES, O::ETHER_TYPE, F::ETHER_TYPE).map_err(|_| NO_ROOM)?;
    inner.network -= (O::HEADER + E::BYTES) as u32;
    inner.payload -= (O::HEADER + E::BYTES) as u32;
    nat::deliver::<P, F>(&mut packet, inner, client_port, destination, Reason::ServedDsr)
}

/// The second chance: rewrites the outer header in place, once. A way of the other family can't be taken.
///
/// A verdict, not a result of one: that goes back through memory, and Linux refuses what may stand in the result's register then.
#[inline(never)]
pub fn send_onward<P: Packet, O: Family, F: Family, E: Encapsulation>(
    packet: P,
    inner: &Parsed<F::Address>,
    backend: &Backend<F::Address>,
    hint: u32,
) -> Verdict {
    rewrite_outer::<P, O, F, E>(packet, inner, backend, hint).unwrap_or_else(|verdict| verdict)
}

#[inline(always)]
fn rewrite_outer<P: Packet, O: Family, F: Family, E: Encapsulation>(
    packet: P,
    inner: &Parsed<F::Address>,
    backend: &Backend<F::Address>,
    hint: u32,
) -> Result<Verdict, Verdict> {
    let way = route::lookup_way(backend.way)?;
    if hint & ONWARD != 0 || header_of(way) != O::HEADER {
        return Err(Verdict::Drop(Reason::NoBackendHere));
    }
    let size = inner.length + (O::HEADER + E::BYTES) as u32;
    if size > u32::from(way.mtu) && path_mtu::check(backend.way, size, 0).is_err() {
        return Err(Verdict::Drop(Reason::TooBig));
    }
    let next = route::resolve(&packet, way)?;
    write_outer::<P, F>(&packet, inner, way, &next, backend.hint | ONWARD, E::BYTES)?;
    Ok(Verdict::Send(Reason::SentOnward, next.device))
}
