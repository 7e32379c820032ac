//! A packet that a pod of this node sends: `tc_pod_in`. Packets to pods pass [`egress`](crate::egress), as on
//! all other devices.
//!
//! Socket hooks have turned most calls to a backend before there is a packet. This program serves pods whose
//! sockets the node's kernel does not see. It translates addresses only; the stack, which sees the pod and
//! the backend, routes.

use proxy_common::fragment::Side;
use proxy_common::frontend::{FRONTEND_NODE_ONLY, Frontend};
use proxy_common::trace::Step;
use proxy_common::verdict::Reason;

use crate::flow::{self, Owner, mode_change};
use crate::forward::{hairpin, nat, other_mode, snat};
use crate::header::{ETHERNET, protocol};
use crate::hooks::{first_look, refusal};
use crate::icmp::{self, Icmp};
use crate::maps::config::is_snat_port;
use crate::maps::observe;
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed, by_ether_type};
use crate::parse::parse_with;
use crate::parse::unusual::Fragments;
use crate::select::{affinity, backend, node_flow, source, vip};
use crate::trace;
use crate::verdict::{HAND_TO_TC, NO_ROOM, NextStage, UNTOUCHED, Verdict};

/// Decides about a frame of a pod.
#[inline(always)]
pub fn walk<P: Packet>(packet: P) -> Verdict {
    by_ether_type!(packet, walk_family(packet) else UNTOUCHED)
}

#[inline(always)]
fn walk_family<P: Packet, F: Icmp>(packet: P) -> Verdict {
    if !first_look::may_be_request::<P, F>(&packet) {
        return UNTOUCHED;
    }
    match F::peek_protocol(&packet, ETHERNET) {
        Some(protocol) if protocol == F::PROTOCOL => Verdict::Continue(F::ICMP),
        Some(_) => F::CLIENT.map_or_else(|| walk_client::<P, F>(packet), Verdict::Continue),
        None => UNTOUCHED,
    }
}

/// Serves a packet that is not ICMP.
#[inline(always)]
pub fn walk_client<P: Packet, F: Icmp>(packet: P) -> Verdict {
    let verdict = match forward::<P, F>(packet) {
        NextStage::Done(verdict) => verdict,
        NextStage::Translate => return Verdict::Continue(F::SNAT),
        NextStage::Restore => return Verdict::Continue(F::SNAT_REPLY),
        NextStage::TrackOtherMode => other_mode::track::<P, F>(packet),
        // Pods' tunnels are their own, and the program encapsulates none of their packets.
        NextStage::Decapsulate | NextStage::ToPod => UNTOUCHED,
    };
    refusal::hand_over::<F>(verdict)
}

/// Returns a packet to its pod, which is the backend of its own connection.
#[inline(always)]
pub fn walk_hairpin<P: Packet, F: Icmp>(packet: P) -> Verdict {
    refusal::hand_over::<F>(hairpin::translate::<P, F>(packet))
}

/// Returns a pod's reply to itself.
#[inline(always)]
pub fn walk_hairpin_reply<P: Packet, F: Icmp>(packet: P) -> Verdict {
    refusal::hand_over::<F>(hairpin::restore::<P, F>(packet))
}

/// Tells the pod why its packet is refused.
#[inline(always)]
pub fn walk_refusal<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match refusal::handed_over() {
        Some((reason, detail)) => icmp::answer::<P, F, { Side::Pod as u32 }>(packet, reason, detail),
        None => NO_ROOM,
    }
}

#[inline(never)]
fn forward<P: Packet, F: Header>(mut packet: P) -> NextStage {
    match parse_with::<P, F>(&packet, ETHERNET, Fragments::Judged(Side::Pod)) {
        Ok(parsed) => forward_parsed::<P, F>(&mut packet, &parsed).into(),
        Err(verdict) => verdict.into(),
    }
}

#[inline(always)]
fn forward_parsed<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
) -> Result<Verdict, NextStage> {
    let key = &parsed.key;
    if !parsed.has_ports() {
        return Err(vip::unknown_protocol::<F>(parsed).into());
    }
    if is_snat_port(key.destination_port) && snat::is_reply::<F>(key) {
        return Err(NextStage::Restore);
    }
    let Some(frontend) = backend::lookup_internal::<F>(&key.destination, key.destination_port, key.protocol)
    else {
        if key.protocol == protocol::UDP && observe::has_served(key.destination_port) {
            flow::forget_ambiguous::<F>(key);
        }
        return Err(vip::unknown_port::<F>(&key.destination).into());
    };
    // Every pod has a loopback device of its own.
    if frontend.flags & FRONTEND_NODE_ONLY != 0 {
        return Err(UNTOUCHED.into());
    }
    let frontend =
        mode_change::claim::<F>(parsed, frontend, |frontend| source::check_ranges::<F>(frontend, key))?;
    trace::step(Step::Service, frontend.service);
    let verdict = serve::<P, F>(packet, parsed, &frontend)?;
    observe::count_service(frontend.service, packet.length());
    Ok(verdict)
}

/// Serves a packet by its flow entry, or by its slot if it has none.
///
/// An entry that translates the pod's address too belongs to a pod that reaches itself.
#[inline(always)]
fn serve<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    frontend: &Frontend,
) -> Result<Verdict, NextStage> {
    let Some((found, entry)) = flow::lookup::<F>(parsed, frontend) else {
        return open::<P, F>(packet, parsed, frontend);
    };
    let Some(backend) = backend::lookup_keeper::<F>(found.backend, parsed) else {
        return open::<P, F>(packet, parsed, frontend);
    };
    trace::step(Step::Flow, found.traced());
    if found.is_translated() {
        // A client outside has the same address and port, or a forged packet claims so.
        if backend.address != parsed.key.source {
            return Err(Verdict::Drop(Reason::ReplyKeyInUse).into());
        }
        let leave = snat::hand_over_flow::<F>(entry, &parsed.key).ok_or(NO_ROOM)?;
        affinity::track::<P, F>(packet, parsed, found, frontend);
        return Err(leave);
    }
    packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
    affinity::track::<P, F>(packet, parsed, found, frontend);
    let destination = (backend.address, backend.port);
    Ok(nat::deliver::<P, F>(packet, parsed, found.client_port(), &destination, Reason::ServedPod)?)
}

/// Opens a connection with the first packet that this node sees of it.
#[inline(always)]
fn open<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    frontend: &Frontend,
) -> Result<Verdict, NextStage> {
    if node_flow::is_nodes_own::<F>(parsed, frontend) {
        return Err(UNTOUCHED.into());
    }
    let slot = backend::select_slot::<F>(frontend, &parsed.key);
    let reference = affinity::choose::<F>(frontend, parsed, slot);
    let backend = F::backend(reference).ok_or_else(|| backend::verdict_of_none(frontend))?;
    trace::step(Step::Backend, reference.id());
    let owner = Owner { backend: reference, service: frontend.port_service(), flags: 0 };
    if backend.address == parsed.key.source {
        return Err(snat::hand_over_new::<F>(backend, &owner));
    }
    packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
    let destination = (backend.address, backend.port);
    let client_port = flow::create::<F>(parsed, &destination, &owner)?;
    Ok(nat::deliver::<P, F>(packet, parsed, client_port, &destination, Reason::ServedPod)?)
}
