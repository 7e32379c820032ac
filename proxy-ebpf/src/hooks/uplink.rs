//! A packet that comes in over an uplink: `xdp_ingress` and `tc_ingress`.

use proxy_common::backend::Backend;
use proxy_common::flow::FLOW_ENCAPSULATE;
use proxy_common::fragment::Side;
use proxy_common::frontend::Frontend;
use proxy_common::part::Part;
use proxy_common::selection::{BackendRef, Slot};
use proxy_common::trace::Step;
use proxy_common::verdict::Reason;

use crate::flow::{self, Found, Owner, mode_change};
use crate::forward::{dsr_node, dsr_pod, fragment_ipv4, nat, other_mode, snat};
use crate::header::{ETHERNET, ether_type, protocol};
use crate::hooks::{first_look, refusal};
use crate::icmp::{self, Icmp};
use crate::maps::config::{is_snat_port, takes_ipip};
use crate::maps::family::{Family, FlowOf};
use crate::maps::{mode, observe};
use crate::packet::ip::Header;
use crate::packet::{Kind, Packet, Parsed, by_ether_type};
use crate::parse::parse_with;
use crate::parse::unusual::Fragments;
use crate::select::{affinity, backend, node_flow, peer, source, vip};
use crate::trace;
use crate::verdict::{HAND_TO_TC, NO_ROOM, NextStage, UNTOUCHED, Verdict};

/// Decides about a frame. The VLAN device above, which has TC programs of its own, serves tagged frames.
#[inline(always)]
pub fn walk<P: Packet>(packet: P) -> Verdict {
    by_ether_type!(packet, walk_family(packet) else walk_other(&packet))
}

#[inline(always)]
fn walk_other<P: Packet>(packet: &P) -> Verdict {
    let is_arp = P::KIND != Kind::Bare && packet.ether_type() == ether_type::ARP;
    if is_arp { Verdict::Continue(Part::Announced) } else { UNTOUCHED }
}

#[inline(always)]
fn walk_family<P: Packet, F: Icmp>(packet: P) -> Verdict {
    if !first_look::may_be_for_us::<P, F>(&packet) {
        let is_solicitation = P::KIND != Kind::Bare && F::may_be_solicitation(&packet);
        return if is_solicitation { Verdict::Continue(Part::Announced) } else { UNTOUCHED };
    }
    if first_look::is_for_another_mac(&packet) {
        return UNTOUCHED;
    }
    match F::peek_protocol(&packet, ETHERNET) {
        Some(protocol::IPV4 | protocol::IPV6) if takes_ipip() => Verdict::Continue(F::TUNNEL),
        Some(protocol) if protocol == F::PROTOCOL => Verdict::Continue(F::ICMP),
        Some(_) => F::CLIENT.map_or_else(|| walk_client::<P, F>(packet), Verdict::Continue),
        None => UNTOUCHED,
    }
}

/// Serves a packet that is neither ICMP nor, by its protocol, a tunnel packet.
///
/// The stages are separate functions: together their variables would not fit the 512-byte stack.
#[inline(always)]
pub fn walk_client<P: Packet, F: Icmp>(packet: P) -> Verdict {
    let verdict = match forward::<P, F>(packet) {
        NextStage::Done(verdict) => verdict,
        NextStage::Translate => return Verdict::Continue(F::SNAT),
        NextStage::ToPod => dsr_pod::send::<P, F>(packet),
        NextStage::Decapsulate => return Verdict::Continue(F::TUNNEL),
        NextStage::Restore => return Verdict::Continue(F::SNAT_REPLY),
        NextStage::TrackOtherMode => other_mode::track::<P, F>(packet),
    };
    refusal::hand_over::<F>(verdict)
}

/// Sends a client's packet to the stored backend on another node, from an address of this node.
#[inline(always)]
pub fn walk_snat<P: Packet, F: Icmp>(packet: P) -> Verdict {
    refusal::hand_over::<F>(snat::translate::<P, F>(packet))
}

/// Sends a backend's reply to this node on to the client.
#[inline(always)]
pub fn walk_snat_reply<P: Packet, F: Icmp>(packet: P) -> Verdict {
    refusal::hand_over::<F>(snat::restore::<P, F>(packet))
}

/// Cuts a packet that is too large, or tells the sender of a refused one.
#[inline(always)]
pub fn walk_refusal<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match refusal::handed_over() {
        Some((Reason::TooBig, fits)) if F::may_be_fragmented(&packet, ETHERNET) => {
            fragment_ipv4::fragment(packet, fits)
        }
        Some((reason, detail)) => icmp::answer::<P, F, { Side::Uplink as u32 }>(packet, reason, detail),
        None => NO_ROOM,
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
    let frontend =
        mode_change::claim::<F>(parsed, frontend, |frontend| source::admit::<F>(frontend, &parsed.key))?;
    trace::step(Step::Service, frontend.service);
    let choice = choose::<F>(parsed, &frontend)?;
    trace::step(Step::Backend, choice.reference.id());
    let verdict = send::<P, F>(packet, parsed, &frontend, &choice)?;
    observe::count_service(frontend.service, packet.length());
    Ok(verdict)
}

/// The backend of a client's packet, and what this node knows of the connection.
struct Choice<F: Family> {
    backend: &'static Backend<F::Address>,
    reference: BackendRef,
    connection: Connection<F>,
}

/// This node's knowledge of a connection.
enum Connection<F: Family> {
    /// It has this entry.
    Known(Found, &'static FlowOf<F>),
    /// Its slot tells its backend: it needs no entry.
    BySlot,
    /// This is the first packet that this node sees of it.
    New,
}

/// Chooses a packet's backend: by its slot alone if that suffices, else by its flow entry, else anew.
#[inline(always)]
fn choose<F: Family>(parsed: &Parsed<F::Address>, frontend: &Frontend) -> Result<Choice<F>, NextStage> {
    let needs_entry = !frontend.needs_no_flow_entry();
    let mut slot = Slot::default();
    if !needs_entry {
        if node_flow::is_nodes_ephemeral::<F>(parsed, frontend) {
            return Err(UNTOUCHED.into());
        }
        slot = backend::select_slot::<F>(frontend, &parsed.key);
        let reference = slot.current();
        if !slot.is_unsettled()
            && !mode::is_newer()
            && let Some(backend) = F::backend(reference)
            && !backend.is_local()
        {
            return Ok(Choice { backend, reference, connection: Connection::BySlot });
        }
    }
    if let Some((found, entry)) = flow::lookup::<F>(parsed, frontend)
        && let Some(backend) = F::backend(found.backend)
        && parsed.role().keeps(backend.flags)
    {
        trace::step(Step::Flow, found.traced());
        return Ok(Choice { backend, reference: found.backend, connection: Connection::Known(found, entry) });
    }
    if node_flow::is_nodes_own::<F>(parsed, frontend) {
        return Err(UNTOUCHED.into());
    }
    if needs_entry {
        slot = backend::select_slot::<F>(frontend, &parsed.key);
    }
    let former = if parsed.is_midstream() { backend::former_owner::<F>(frontend, &parsed.key) } else { None };
    let chosen = former.unwrap_or_else(|| affinity::choose::<F>(frontend, parsed, slot));
    let reference = second_chance_backend::<F>(frontend, parsed, slot, chosen);
    let backend = F::backend(reference).ok_or_else(|| backend::verdict_of_none(frontend))?;
    Ok(Choice { backend, reference, connection: Connection::New })
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
    let exists = |other| F::backend(other).is_some();
    let has_entry =
        |backend: &Backend<F::Address>| backend.is_local() && !backend::pod_takes::<F>(backend, &parsed.key);
    if frontend.may_lack_flow_entry() && F::backend(chosen).is_some_and(has_entry) {
        slot.second_chance(chosen, parsed.role(), exists)
    } else {
        chosen
    }
}

/// Sends a packet to its backend in one of the four ways, and enters or renews its connection.
#[inline(always)]
fn send<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    frontend: &Frontend,
    choice: &Choice<F>,
) -> Result<Verdict, NextStage> {
    let Choice { backend, reference, ref connection } = *choice;
    let renew = |packet: &P| {
        if let Connection::Known(found, _) = connection {
            affinity::track::<P, F>(packet, parsed, *found, frontend);
        }
    };
    if let Connection::Known(found, entry) = connection
        && found.is_translated()
    {
        snat::hand_over_flow::<F>(entry, &parsed.key).ok_or(NO_ROOM)?;
        renew(packet);
        return snat::translate_known::<P, F>(packet, parsed);
    }
    let is_dsr = frontend.returns_directly(parsed.role());
    let (may_go_to_pod, flags) = match connection {
        Connection::Known(found, _) => (found.is_encapsulated(), 0),
        Connection::BySlot => (true, 0),
        Connection::New => (is_dsr, FLOW_ENCAPSULATE),
    };
    if may_go_to_pod && dsr_pod::prepare::<F>(backend, &parsed.key, reference, frontend, flags) {
        renew(packet);
        return Err(NextStage::ToPod);
    }
    let owner = Owner { backend: reference, service: frontend.port_service(), flags: 0 };
    if backend.is_local() {
        packet.claim_delivery().map_err(|_| HAND_TO_TC)?;
        renew(packet);
        let destination = (backend.address, backend.port);
        let client_port = match connection {
            Connection::Known(found, _) => found.client_port(),
            _ => flow::create::<F>(parsed, &destination, &owner)?,
        };
        return Ok(nat::deliver::<P, F>(packet, parsed, client_port, &destination, Reason::ServedLocal)?);
    }
    let is_new = matches!(connection, Connection::New);
    if is_new && !is_dsr {
        return Err(snat::hand_over_new::<F>(backend, &owner));
    }
    let verdict = dsr_node::send::<P, F>(packet, parsed, backend)?;
    // After sending: a packet handed to TC must not be remembered here, or TC would not see a first packet.
    renew(packet);
    if is_new {
        flow::remember::<F>(parsed, &owner)?;
    }
    Ok(verdict)
}
