//! The walk of a packet that leaves the node, or goes to a pod: `tc_egress` and `tc_pod_out`.

use crate::dispatch;
use crate::family::{Family, V4, V6};
use crate::flow::{self, Sender};
use crate::fou;
use crate::icmp::{self, Icmp};
use crate::mss;
use crate::nat;
use crate::observe;
use crate::packet::header::{ETHERNET, ether_type};
use crate::packet::parse::parse;
use crate::packet::{Packet, Parsed};
use crate::verdict::{UNTOUCHED, Verdict};
use proxy_common::fragment::Side;

/// Restores the frontend's address in a backend's reply. Every packet that leaves the node comes by here; most
/// are done with after their source port was looked at.
#[inline(always)]
pub fn walk<P: Packet>(packet: P) -> Verdict {
    match packet.ether_type() {
        ether_type::IPV4 => walk_family::<P, V4>(packet),
        ether_type::IPV6 => walk_family::<P, V6>(packet),
        _ => UNTOUCHED,
    }
}

#[inline(always)]
fn walk_family<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match F::peek_protocol(&packet, ETHERNET) {
        Some(protocol) if protocol == F::PROTOCOL => icmp::leave::<P, F>(packet),
        _ => restore::<P, F>(packet),
    }
}

#[inline(never)]
fn restore<P: Packet, F: Family>(mut packet: P) -> Verdict {
    parse::<P, F>(&packet, ETHERNET, Side::Out)
        .and_then(|parsed| restore_parsed::<P, F>(&mut packet, &parsed))
        .unwrap_or_else(|verdict| verdict)
}

#[inline(always)]
fn restore_parsed<P: Packet, F: Family>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
) -> Result<Verdict, Verdict> {
    if !parsed.has_ports() {
        return Err(UNTOUCHED);
    }
    if dispatch::is_on() && parsed.is_syn_ack() && dispatch::is_pods_answer::<F>(&parsed.key) {
        let _ = mss::clamp::<P, F>(packet, parsed.transport(), (F::HEADER + fou::own_bytes()) as u16);
        return Err(UNTOUCHED);
    }
    if !observe::has_served(parsed.key.source_port) {
        return Err(UNTOUCHED);
    }
    let (found, frontend, client_port) = flow::lookup_reply::<F>(parsed).ok_or(UNTOUCHED)?;
    if parsed.is_syn_ack() && found.has_finished() {
        // An answer to a SYN that the client sent to the backend itself, by the port of a connection that is over.
        flow::give_way::<F>(&parsed.key.reversed());
        return Err(UNTOUCHED);
    }
    flow::track::<F>(parsed, found, Sender::Backend);
    let verdict = nat::restore::<P, F>(packet, parsed, &frontend, client_port)?;
    if parsed.is_syn_ack() && found.is_decapsulated() {
        let _ = mss::clamp::<P, F>(packet, parsed.transport(), found.outer_headers());
    }
    Ok(verdict)
}
