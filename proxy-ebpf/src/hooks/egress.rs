//! A packet that leaves the node, or goes to a pod: `tc_egress` and `tc_pod_out`.

use crate::flow::{self, Sender};
use crate::forward::{mss, nat};
use crate::header::ETHERNET;
use crate::hooks::{first_look, forged_tunnel};
use crate::icmp::{self, Icmp};
use crate::maps::{self, config, observe};
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed, by_ether_type};
use crate::parse::parse_then;
use crate::select::{backend, node_flow, vip};
use crate::trace;
use crate::verdict::{Decision, UNTOUCHED, Verdict};
use proxy_common::fragment::Side;
use proxy_common::trace::Step;
use proxy_common::verdict::Reason;

/// Restores the frontend's address in a backend's reply.
///
/// Every packet that leaves the node comes through here. The source port settles most of them at once.
/// `came_in_by` is the device by which a forwarded packet came in, zero for others and at pods' devices.
#[inline(always)]
pub fn walk<P: Packet>(packet: P, came_in_by: u32) -> Verdict {
    by_ether_type!(packet, walk_family(packet, came_in_by) else UNTOUCHED)
}

#[inline(always)]
fn walk_family<P: Packet, F: Icmp>(packet: P, came_in_by: u32) -> Verdict {
    if came_in_by != 0 && is_unserved::<P, F>(&packet, came_in_by) {
        return Verdict::Drop(Reason::Unserved);
    }
    if !first_look::may_be_reply::<P, F>(&packet) {
        return UNTOUCHED;
    }
    match F::peek_protocol(&packet, ETHERNET) {
        Some(protocol) if protocol == F::PROTOCOL => icmp::restore::<P, F>(packet),
        _ => restore::<P, F>(packet),
    }
}

/// Whether a packet for a Service's address came from the network by this device and would go back there
/// unserved.
///
/// The agent's frontends have no such port, or its protocol or headers are not supported. Routers would send
/// it here again until its hop limit is used up. Another proxy on this node would have translated it by now.
#[inline(always)]
fn is_unserved<P: Packet, F: Header>(packet: &P, came_in_by: u32) -> bool {
    first_look::may_be_for_vip::<P, F>(packet) && is_vip_from_network::<P, F>(*packet, came_in_by)
}

/// Whether a packet is for a Service's address and came in by a device in DEVICES, the devices towards the
/// network.
#[inline(never)]
fn is_vip_from_network<P: Packet, F: Header>(packet: P, came_in_by: u32) -> bool {
    // The call keeps LLVM from handing over the frame's bounds in place of the context, which the verifier
    // refuses.
    packet.pull(ETHERNET + F::HEADER);
    let kinds = F::peek_destination(&packet, ETHERNET, |address, _protocol| vip::kinds::<F>(address));
    // SAFETY: nothing is read.
    kinds.unwrap_or(0) != 0 && unsafe { maps::DEVICES.get(&came_in_by) }.is_some()
}

#[inline(never)]
fn restore<P: Packet, F: Header>(mut packet: P) -> Verdict {
    parse_then::<P, F>(&mut packet, Side::Out, restore_parsed::<P, F>)
}

#[inline(always)]
fn restore_parsed<P: Packet, F: Header>(packet: &mut P, parsed: &Parsed<F::Address>) -> Decision {
    // A later fragment shows nothing of the inner packet, and no receiver reassembles it without the first
    // one.
    if forged_tunnel::may_be_tunnel::<F>(&parsed.key)
        && !parsed.is_later()
        && forged_tunnel::is_forged::<P, F>(*packet, parsed.payload, &parsed.key)
    {
        return Err(Verdict::Drop(Reason::ForgedTunnel));
    }
    if !parsed.has_ports() {
        return Err(UNTOUCHED);
    }
    if config::pods_decapsulate() && parsed.is_syn_ack() && backend::is_pods_answer::<F>(&parsed.key) {
        let _ = mss::clamp::<P, F>(
            packet,
            parsed.transport(),
            (F::HEADER + config::tunnel_header_bytes()) as u16,
        );
        return Err(UNTOUCHED);
    }
    let reply =
        if observe::has_served(parsed.key.source_port) { flow::lookup_reply::<F>(parsed) } else { None };
    let Some((found, frontend, client_port)) = reply else {
        if node_flow::may_be_node_port(parsed.key.source_port) {
            node_flow::record::<F>(parsed);
        }
        return Err(UNTOUCHED);
    };
    trace::step(Step::Flow, found.traced());
    if parsed.is_syn_ack() && found.has_finished() {
        // The backend answers a SYN that the client sent to it directly, from the port of a finished
        // connection.
        flow::forget_ambiguous::<F>(&parsed.key.reversed());
        return Err(UNTOUCHED);
    }
    flow::track::<P, F>(packet, parsed, found, Sender::Backend);
    let verdict = nat::restore::<P, F>(packet, parsed, &frontend, client_port)?;
    if parsed.is_syn_ack() && found.is_decapsulated() {
        let _ = mss::clamp::<P, F>(packet, parsed.transport(), found.outer_headers());
    }
    Ok(verdict)
}
