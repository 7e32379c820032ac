//! Direct Server Return: the backend's node decapsulates, or sends the packet on to the slot's other owner.

use proxy_common::backend::Backend;
use proxy_common::flow::{FLOW_DECAPSULATED, FLOW_OUTER_IPV6};
use proxy_common::fragment::Side;
use proxy_common::frontend::{FRONTEND_AFFINITY, Frontend};
use proxy_common::selection::{BackendRef, HINT_POD, HintKey};
use proxy_common::verdict::Reason;

use crate::flow::{self, Owner, Sender};
use crate::forward::outer::{HINT_MASK, ONWARD, header_of, write_outer};
use crate::forward::{nat, path_mtu, route};
use crate::header::{ETHERNET, Ipv6, Tcp, has_connections, protocol};
use crate::maps::family::Family;
use crate::maps::peers::is_other_node;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::maps::{self, config, mode, observe, recorder};
use crate::packet::encap::Encapsulation;
use crate::packet::ip::{Header, Plain};
use crate::packet::{Packet, Parsed};
use crate::parse::parse;
use crate::select::peer::is_for_node;
use crate::select::{backend, source};
use crate::verdict::{Decision, HAND_TO_TC, NO_ROOM, UNTOUCHED, Verdict};

/// Receives a tunnel packet of family `O`.
///
/// It is ours if its inner destination is a frontend and its outer destination is this node, or one of its
/// pods.
#[inline(never)]
pub fn receive<P: Packet, O: Header, E: Encapsulation>(packet: P) -> Verdict {
    received::<P, O, E>(packet).unwrap_or_else(|verdict| verdict)
}

/// Our tunnel packets have neither options nor extension headers and are no fragments, so inner offsets are
/// constants.
#[inline(always)]
fn received<P: Packet, O: Header, E: Encapsulation>(mut packet: P) -> Decision {
    packet.pull(ETHERNET + O::HEADER + E::BYTES + size_of::<Ipv6>() + size_of::<Tcp>());
    let protocol = O::peek_protocol(&packet, ETHERNET).ok_or(UNTOUCHED)?;
    let Plain { length, .. } = O::read_plain(&packet, ETHERNET, protocol).ok_or(UNTOUCHED)?;
    // An IPv6 header counts only the bytes behind it.
    let uncounted = if O::HAS_HEADER_CHECKSUM { 0 } else { O::HEADER };
    let counted = packet.network_length(length - uncounted as u32, ETHERNET + uncounted);
    let length = counted + uncounted as u32;
    if !packet.has_bytes(ETHERNET as u32 + length) {
        return Err(UNTOUCHED);
    }
    match E::inner_protocol::<P, O>(&packet, protocol) {
        Some(protocol::IPV4) => receive_inner::<P, O, V4, E>(&mut packet, length),
        Some(protocol::IPV6) => receive_inner::<P, O, V6, E>(&mut packet, length),
        _ => Err(UNTOUCHED),
    }
}

#[inline(always)]
fn receive_inner<P: Packet, O: Header, F: Header, E: Encapsulation>(
    packet: &mut P,
    outer_length: u32,
) -> Decision {
    let mut inner = parse::<P, F>(packet, ETHERNET + O::HEADER + E::BYTES, Side::Tunnel)?;
    if !inner.has_ports() || inner.length + (O::HEADER + E::BYTES) as u32 > outer_length {
        return Err(UNTOUCHED);
    }
    let frontend = backend::lookup_encapsulated::<F>(&inner.key).ok_or(UNTOUCHED)?;
    let served = serve_frontend::<P, O, F, E>(packet, &mut inner, frontend);
    if let Err(verdict) = served {
        recorder::remember_drop(frontend.service, verdict);
    }
    served
}

/// Serves a tunnel packet for a frontend.
#[inline(always)]
fn serve_frontend<P: Packet, O: Header, F: Header, E: Encapsulation>(
    packet: &mut P,
    inner: &mut Parsed<F::Address>,
    frontend: Frontend,
) -> Decision {
    let hint = match check_addressee::<P, O, F, E>(packet)? {
        Some(pod) => pod,
        None => O::read_hint(packet, ETHERNET).ok_or(NO_ROOM)?,
    };
    // The director checked this too, but the sender may not be a director.
    let frontend = source::check_ranges::<F>(frontend, &inner.key)?;
    let verdict = serve::<P, O, F, E>(packet, inner, &frontend, hint)?;
    observe::count_service(frontend.service, packet.length());
    Ok(verdict)
}

/// As [`check_peers`], for a packet that may also be addressed to a pod: then it returns the pod's hint.
///
/// IPVS addresses pods, and can name no more than that. Such a packet comes in IP, and in its own family.
#[inline(always)]
pub fn check_addressee<P: Packet, O: Header, F: Family, E: Encapsulation>(
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

/// Whether the outer header names this address. Pods may share a hint.
#[inline(always)]
pub fn is_addressed<P: Packet, O: Header, F: Family>(packet: &P, pod: &F::Address) -> bool {
    O::read_addresses(packet, ETHERNET).is_some_and(|(_, destination)| O::map(&destination) == F::map(pod))
}

/// Serves a decapsulated packet by flow entry, second chance, hint or this node's own slot, in that order.
///
/// A packet addressed to a pod is for that pod, or not ours. A pod may take the outer header off itself, and
/// so may IPVS on this node during a mode change.
#[inline(always)]
fn serve<P: Packet, O: Header, F: Header, E: Encapsulation>(
    packet: &mut P,
    inner: &mut Parsed<F::Address>,
    frontend: &Frontend,
    hint: u32,
) -> Decision {
    let is_for_pod = may_be_for_pod::<O, F, E>() && hint & HINT_POD != 0;
    if is_for_pod && mode::is_older() && !has_connections(inner.key.protocol) {
        return Err(UNTOUCHED);
    }
    let suits = |packet: &P, backend: &Backend<F::Address>| {
        !is_for_pod || is_addressed::<P, O, F>(packet, &backend.address)
    };
    if let Some((found, _)) = flow::lookup::<F>(inner, frontend)
        && let Some(backend) = backend::lookup_keeper::<F>(found.backend, inner)
    {
        if backend.is_local()
            && suits(packet, backend)
            && (is_for_pod || !opens_elsewhere::<F>(inner, frontend, hint, found.backend))
        {
            packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
            flow::track::<P, F>(packet, inner, found, Sender::Client);
            return decapsulate::<P, O, F, E>(
                *packet,
                inner,
                found.client_port(),
                &(backend.address, backend.port),
            );
        }
        if !backend.is_local() && inner.is_midstream() && hint & (HINT_POD | ONWARD) == 0 {
            flow::track::<P, F>(packet, inner, found, Sender::Client);
            return Ok(send_onward::<P, O, F, E>(*packet, inner, backend, hint));
        }
    }
    let chosen = choose::<F>(inner, frontend, hint);
    let Some(backend) = F::backend(chosen) else {
        return Err(if is_for_pod {
            pass_untouched::<F>(inner)
        } else {
            Verdict::Drop(Reason::NoBackendHere)
        });
    };
    if !suits(packet, backend) || is_for_pod && !begins_here::<F>(inner, backend) {
        return Err(pass_untouched::<F>(inner));
    }
    if !backend.is_local() {
        let verdict = send_onward::<P, O, F, E>(*packet, inner, backend, hint);
        if inner.is_syn() && verdict.reason() == Reason::SentOnward {
            // The director goes on to send the connection's packets here. Once this node has heard of the
            // backend that they name, and of a further change, no slot would tell where the connection is.
            let owner = Owner { backend: chosen, service: frontend.port_service(), flags: 0 };
            flow::remember::<F>(inner, &owner)?;
        }
        return Ok(verdict);
    }
    packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
    let outer = if O::HEADER == V6::HEADER { FLOW_OUTER_IPV6 } else { 0 };
    let owner = Owner { backend: chosen, service: frontend.port_service(), flags: FLOW_DECAPSULATED | outer };
    let destination = (backend.address, backend.port);
    let client_port = flow::create::<F>(inner, &destination, &owner)?;
    decapsulate::<P, O, F, E>(*packet, inner, client_port, &destination)
}

/// Whether a packet for a backend's pod, without a flow entry, begins a connection that this node translates.
#[inline(always)]
fn begins_here<F: Family>(inner: &Parsed<F::Address>, backend: &Backend<F::Address>) -> bool {
    let is_pods = config::pods_decapsulate() && backend::pod_takes::<F>(backend, &inner.key);
    backend.is_local() && !inner.is_midstream() && !mode::is_older() && !is_pods
}

/// Passes a packet to the stack.
///
/// A new connection must not meet the entries of an earlier one with its ports.
#[inline(always)]
fn pass_untouched<F: Family>(inner: &Parsed<F::Address>) -> Verdict {
    if inner.is_syn() {
        flow::forget::<F>(&inner.key);
    }
    UNTOUCHED
}

/// Whether a SYN is for another backend of this node than the one in its flow entry.
///
/// The entry of an earlier connection would take the new one from the backend that its director chose.
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

/// The backend of a decapsulated packet that has no flow entry.
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
    slot.second_chance(hinted, inner.role(), |other| F::backend(other).is_some())
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
fn decapsulate<P: Packet, O: Family, F: Header, E: Encapsulation>(
    mut packet: P,
    inner: &mut Parsed<F::Address>,
    client_port: u16,
    destination: &(F::Address, u16),
) -> Decision {
    packet.pop_outer(O::HEADER + E::BYTES, O::ETHER_TYPE, F::ETHER_TYPE).map_err(|_| NO_ROOM)?;
    inner.network -= (O::HEADER + E::BYTES) as u32;
    inner.payload -= (O::HEADER + E::BYTES) as u32;
    nat::deliver::<P, F>(&mut packet, inner, client_port, destination, Reason::ServedDsr)
}

/// Gives a packet its second chance: rewrites the outer header in place, once. A way of the other family
/// can't be used.
///
/// Returns a verdict rather than a result: a result comes back through memory, and Linux refuses the value
/// that may then be in the result's register.
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
) -> Decision {
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
    Ok(next.send(Reason::SentOnward))
}
