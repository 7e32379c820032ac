//! A tunnel packet that comes in over an uplink: two parts for each family of the outer header.

use crate::forward::decap;
use crate::header::{ETHERNET, protocol};
use crate::icmp::{self, Icmp};
use crate::maps::config::{takes_fou, takes_ipip};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::Packet;
use crate::packet::encap::{Encapsulation, Fou, Ipip};
use crate::verdict::{UNTOUCHED, Verdict};

/// The encapsulation and the inner family of a tunnel packet.
enum Tunnel {
    Ipip4,
    Ipip6,
    Fou4,
    Fou6,
}

/// Receives a tunnel packet. Another part takes ICMP errors.
#[inline(always)]
pub fn receive<P: Packet, O: Icmp>(packet: P) -> Verdict {
    match tunnel::<P, O>(&packet) {
        Some(Tunnel::Ipip4) => receive_inner::<P, O, V4, Ipip>(packet),
        Some(Tunnel::Ipip6) => receive_inner::<P, O, V6, Ipip>(packet),
        Some(Tunnel::Fou4) => receive_inner::<P, O, V4, Fou>(packet),
        Some(Tunnel::Fou6) => receive_inner::<P, O, V6, Fou>(packet),
        None => UNTOUCHED,
    }
}

#[inline(always)]
fn receive_inner<P: Packet, O: Icmp, F: Icmp, E: Encapsulation>(packet: P) -> Verdict {
    let inner = ETHERNET + O::HEADER + E::BYTES;
    packet.pull(inner + F::HEADER);
    if F::peek_protocol(&packet, inner) == Some(F::PROTOCOL) {
        return Verdict::Continue(O::TUNNEL_ICMP);
    }
    decap::receive::<P, O, E>(packet)
}

/// Receives an ICMP error in a tunnel packet.
#[inline(always)]
pub fn receive_icmp<P: Packet, O: Icmp>(packet: P) -> Verdict {
    match tunnel::<P, O>(&packet) {
        Some(Tunnel::Ipip4) => icmp::receive_tunnelled::<P, O, V4, Ipip>(packet),
        Some(Tunnel::Ipip6) => icmp::receive_tunnelled::<P, O, V6, Ipip>(packet),
        Some(Tunnel::Fou4) => icmp::receive_tunnelled::<P, O, V4, Fou>(packet),
        Some(Tunnel::Fou6) => icmp::receive_tunnelled::<P, O, V6, Fou>(packet),
        None => UNTOUCHED,
    }
}

#[inline(always)]
fn tunnel<P: Packet, O: Icmp>(packet: &P) -> Option<Tunnel> {
    match O::peek_protocol(packet, ETHERNET)? {
        protocol::IPV4 if takes_ipip() => Some(Tunnel::Ipip4),
        protocol::IPV6 if takes_ipip() => Some(Tunnel::Ipip6),
        outer if takes_fou() => {
            packet.pull(ETHERNET + O::HEADER + Fou::BYTES + 1);
            match Fou::inner_protocol::<P, O>(packet, outer)? {
                protocol::IPV4 => Some(Tunnel::Fou4),
                _ => Some(Tunnel::Fou6),
            }
        }
        _ => None,
    }
}
