//! A packet that comes in over an uplink: `xdp_ingress` and `tc_ingress`.

use proxy_common::backend::Backend;
use proxy_common::flow::FLOW_ENCAPSULATE;
use proxy_common::fragment::Side;
use proxy_common::frontend::{FRONTEND_DSR, FRONTEND_LISTENER, Frontend};
use proxy_common::selection::{BackendRef, Slot};
use proxy_common::verdict::Reason;

use crate::flow::{self, Owner, mode_change};
use crate::forward::{decap, dsr_node, dsr_pod, fragment_ipv4, nat, other_mode, snat};
use crate::header::{ETHERNET, protocol};
use crate::icmp::{self, Icmp};
use crate::maps::config::{is_snat_port, takes_ipip};
use crate::maps::family::Family;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::maps::{mode, observe};
use crate::packet::encap::{Encapsulation, Fou, Ipip};
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed, by_ether_type};
use crate::parse::parse_with;
use crate::parse::unusual::Fragments;
use crate::select::{affinity, backend, node_flow, peer, source, vip};
use crate::verdict::{HAND_TO_TC, NO_ROOM, NextStage, UNTOUCHED, Verdict};

/// Decides about a frame. The VLAN device above, which has TC programs of its own, serves tagged frames.
///
/// The four branches are separate functions: together their variables would not fit the 512-byte stack.
#[inline(always)]
pub fn walk<P: Packet>(packet: P) -> Verdict {
    by_ether_type!(packet, walk_family(packet) else UNTOUCHED)
}

#[inline(always)]
fn walk_family<P: Packet, F: Icmp>(packet: P) -> Verdict {
    let verdict = match F::peek_protocol(&packet, ETHERNET) {
        Some(protocol::IPV4) if takes_ipip() => return walk_tunnel::<P, F, V4, Ipip>(packet),
        Some(protocol::IPV6) if takes_ipip() => return walk_tunnel::<P, F, V6, Ipip>(packet),
        Some(protocol) if protocol == F::PROTOCOL => return icmp::receive::<P, F>(packet),
        Some(_) => match forward::<P, F>(packet) {
            NextStage::Done(verdict) => verdict,
            NextStage::Translate => snat::translate::<P, F>(packet),
            NextStage::ToPod => dsr_pod::send::<P, F>(packet),
            NextStage::Decapsulate => return walk_fou::<P, F>(packet),
            NextStage::Restore => snat::restore::<P, F>(packet),
            NextStage::TrackOtherMode => other_mode::track::<P, F>(packet),
        },
        None => return UNTOUCHED,
    };
    // Answered here, after the walk has left the stack.
    match verdict {
        Verdict::Refuse(Reason::TooBig, fits) if F::may_be_fragmented(&packet, ETHERNET) => {
            fragment_ipv4::fragment(packet, fits)
        }
        Verdict::Refuse(reason, detail) => {
            icmp::answer::<P, F, { Side::Uplink as u32 }>(packet, reason, detail)
        }
        verdict => verdict,
    }
}

/// As [`walk_tunnel`], for an outer header that does not name the inner family.
#[inline(always)]
fn walk_fou<P: Packet, O: Icmp>(packet: P) -> Verdict {
    packet.pull(ETHERNET + O::HEADER + Fou::BYTES + 1);
    let inner =
        O::peek_protocol(&packet, ETHERNET).and_then(|outer| Fou::inner_protocol::<P, O>(&packet, outer));
    match inner {
        Some(protocol::IPV4) => walk_tunnel::<P, O, V4, Fou>(packet),
        Some(protocol::IPV6) => walk_tunnel::<P, O, V6, Fou>(packet),
        _ => UNTOUCHED,
    }
}

/// Receives a tunnel packet.
///
/// ICMP errors and other packets have separate walks, so that each has a stack of its own.
#[inline(always)]
fn walk_tunnel<P: Packet, O: Icmp, F: Icmp, E: Encapsulation>(packet: P) -> Verdict {
    let inner = ETHERNET + O::HEADER + E::BYTES;
    packet.pull(inner + F::HEADER);
    if F::peek_protocol(&packet, inner) == Some(F::PROTOCOL) {
        icmp::receive_tunnelled::<P, O, F, E>(packet)
    } else {
        decap::receive::<P, O, E>(packet)
    }
}

#[inline(never)]
fn forward<P: Packet, F: Header>(mut packet: P) -> NextStage {
    match parse_with::<P, F>(&packet, ETHERNET, Fragments::Judged(Side::Uplink)) {
        Ok(parsed) => forward_parsed::<P, F>(&mut packet, &parsed).into(),
        Err(verdict) => verdict.into(),
    }
}

/// Serves a client's packet on the node it was sent to.
#[inline(always)]
fn forward_parsed<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
) -> Result<Verdict, NextStage> {
    if !parsed.has_ports() {
        return Err(vip::unknown_protocol::<F>(parsed).into());
    }
    if peer::is_fou::<F>(&parsed.key) {
        return Err(NextStage::Decapsulate);
    }
    if is_snat_port(parsed.key.destination_port) && snat::is_reply::<F>(&parsed.key) {
        return Err(NextStage::Restore);
    }
    let Some(frontend) = backend::lookup_frontend::<F>(&parsed.key) else {
        return Err(vip::unknown_port::<F>(&parsed.key.destination).into());
    };
    if mode_change::is_other_modes::<F>(parsed, backend::needs_no_flow_entry(&frontend)) {
        return Err(UNTOUCHED.into());
    }
    // After this mode has given way, the other mode decides which clients it serves.
    let refused = |verdict| if mode::is_older() { UNTOUCHED } else { verdict };
    let frontend = source::admit::<F>(frontend, &parsed.key).map_err(refused)?;
    if frontend.flags & FRONTEND_LISTENER != 0 {
        return Err(UNTOUCHED.into());
    }
    mode_change::check_owner::<F>(parsed, frontend.service, backend::needs_no_flow_entry(&frontend))?;
    let verdict = serve::<P, F>(packet, parsed, &frontend)?;
    observe::count_service(frontend.service, packet.length());
    Ok(verdict)
}

/// Serves a packet by its slot alone if that suffices, else by its flow entry.
#[inline(always)]
fn serve<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    frontend: &Frontend,
) -> Result<Verdict, NextStage> {
    if !backend::needs_no_flow_entry(frontend) {
        return serve_by_flow::<P, F>(packet, parsed, frontend, None);
    }
    if node_flow::is_nodes_ephemeral::<F>(parsed, frontend) {
        return Err(UNTOUCHED.into());
    }
    let slot = backend::select_slot::<F>(frontend, &parsed.key);
    if !slot.is_unsettled()
        && !mode::is_newer()
        && let Some(backend) = backend::lookup_backend::<F>(slot.current())
        && !backend.is_local()
    {
        if dsr_pod::prepare::<F>(backend, &parsed.key, slot.current(), frontend, 0) {
            return Err(NextStage::ToPod);
        }
        return Ok(dsr_node::send::<P, F>(packet, parsed, backend)?);
    }
    serve_by_flow::<P, F>(packet, parsed, frontend, Some(slot))
}

/// Serves a packet by its flow entry, or by its slot if it has none.
#[inline(always)]
fn serve_by_flow<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    frontend: &Frontend,
    slot: Option<Slot>,
) -> Result<Verdict, NextStage> {
    if let Some((found, entry)) = flow::lookup::<F>(parsed, frontend.service)
        && let Some(backend) = backend::lookup_keeper::<F>(found.backend, parsed)
    {
        if found.is_translated() {
            let leave = snat::hand_over_flow::<F>(entry, &parsed.key).ok_or(NO_ROOM)?;
            affinity::track::<P, F>(packet, parsed, found, frontend);
            return Err(leave);
        }
        if found.is_encapsulated() && dsr_pod::prepare::<F>(backend, &parsed.key, found.backend, frontend, 0)
        {
            affinity::track::<P, F>(packet, parsed, found, frontend);
            return Err(NextStage::ToPod);
        }
        if !backend.is_local() {
            let verdict = dsr_node::send::<P, F>(packet, parsed, backend)?;
            affinity::track::<P, F>(packet, parsed, found, frontend);
            return Ok(verdict);
        }
        packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
        affinity::track::<P, F>(packet, parsed, found, frontend);
        let destination = (backend.address, backend.port);
        let client_port = found.client_port;
        return Ok(nat::deliver::<P, F>(packet, parsed, client_port, &destination, Reason::ServedLocal)?);
    }
    let slot = match slot {
        Some(slot) => slot,
        None => backend::select_slot::<F>(frontend, &parsed.key),
    };
    open::<P, F>(packet, parsed, frontend, slot)
}

/// The backend that gets a second chance with a DSR packet that has no flow entry.
///
/// Every connection to a backend on this node has an entry here, unless its pod takes off the outer header. A
/// DSR connection without an entry began at another director. Its backend may be the slot's other owner; if
/// it is not, that owner's node gives it a second chance.
#[inline(always)]
fn second_chance_backend<F: Family>(
    frontend: &Frontend,
    parsed: &Parsed<F::Address>,
    slot: Slot,
    chosen: BackendRef,
) -> BackendRef {
    let exists = |other| backend::lookup_backend::<F>(other).is_some();
    let has_entry =
        |backend: &Backend<F::Address>| backend.is_local() && !backend::pod_takes::<F>(backend, &parsed.key);
    if backend::needs_no_flow_entry(frontend) && backend::lookup_backend::<F>(chosen).is_some_and(has_entry) {
        slot.second_chance(chosen, parsed.role(), exists)
    } else {
        chosen
    }
}

/// Opens a connection with the first packet that this node sees of it.
#[inline(always)]
fn open<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    frontend: &Frontend,
    slot: Slot,
) -> Result<Verdict, NextStage> {
    if node_flow::is_nodes_own::<F>(parsed, frontend) {
        return Err(UNTOUCHED.into());
    }
    let reference =
        second_chance_backend::<F>(frontend, parsed, slot, affinity::choose::<F>(frontend, parsed, slot));
    let backend =
        backend::lookup_backend::<F>(reference).ok_or_else(|| backend::verdict_of_none(frontend))?;
    if frontend.flags & FRONTEND_DSR != 0
        && dsr_pod::prepare::<F>(backend, &parsed.key, reference, frontend, FLOW_ENCAPSULATE)
    {
        return Err(NextStage::ToPod);
    }
    let owner = Owner { backend: reference, service: frontend.service, flags: 0 };
    if backend.is_local() {
        packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
        let destination = (backend.address, backend.port);
        let client_port = flow::create::<F>(parsed, &destination, &owner)?;
        return Ok(nat::deliver::<P, F>(packet, parsed, client_port, &destination, Reason::ServedLocal)?);
    }
    if frontend.flags & FRONTEND_DSR == 0 {
        return Err(snat::hand_over_new::<F>(backend, &owner));
    }
    // Send first: a packet handed to TC must not be remembered here, or TC would not see a first packet.
    let verdict = dsr_node::send::<P, F>(packet, parsed, backend)?;
    flow::remember::<F>(parsed, &owner)?;
    Ok(verdict)
}
