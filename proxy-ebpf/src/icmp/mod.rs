//! ICMP and `ICMPv6`: what senders are told, and what others tell.

mod answer;
mod echo;
mod encapsulated;
mod family;
mod limit;
pub mod quoted;
mod relay;

pub use answer::answer;
pub use family::{Icmp, Plain};
pub use relay::{leave, receive_tunnelled};

use proxy_common::fragment::Side;

use crate::header::{ETHERNET, IcmpHeader};
use crate::packet::{Packet, Parsed};
use crate::verdict::{UNTOUCHED, Verdict};

/// An ICMP message that came in over an uplink. One behind options or extension headers is the stack's.
#[inline(always)]
pub fn receive<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match read_kind::<P, F>(&packet) {
        Kind::EchoRequest => echo::receive::<P, F, { Side::Uplink as u32 }>(packet),
        Kind::Error => relay::receive::<P, F>(packet),
        Kind::Other => UNTOUCHED,
    }
}

/// The same of one that a pod of this node sends.
#[inline(always)]
pub fn receive_of_pod<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match read_kind::<P, F>(&packet) {
        Kind::EchoRequest => echo::receive::<P, F, { Side::Pod as u32 }>(packet),
        Kind::Error => relay::receive_of_pod::<P, F>(packet),
        Kind::Other => UNTOUCHED,
    }
}

/// Kinds of messages that are treated differently.
enum Kind {
    EchoRequest,
    Error,
    Other,
}

#[inline(always)]
fn read_kind<P: Packet, F: Icmp>(packet: &P) -> Kind {
    packet.need(ETHERNET + F::HEADER + size_of::<IcmpHeader>());
    let Some(header) = packet.at::<IcmpHeader>(ETHERNET + F::HEADER) else {
        return Kind::Other;
    };
    // SAFETY: `at` checked the bound.
    let (kind, code) = unsafe { ((*header).kind, (*header).code) };
    if kind == F::ECHO_REQUEST && code == 0 {
        Kind::EchoRequest
    } else if F::is_error(kind) {
        Kind::Error
    } else {
        Kind::Other
    }
}

/// Whether a packet came from one host to one host, and may be answered.
#[inline(always)]
fn may_answer<P: Packet, F: Icmp>(packet: &P, parsed: &Parsed<F::Address>) -> bool {
    let Some(ethernet) = packet.ethernet() else {
        return false;
    };
    // SAFETY: `at` checked the bound.
    let [destination, ..] = unsafe { (*ethernet).addresses };
    let [first, _] = destination.to_ne_bytes();
    first & 1 == 0 && F::is_host(&parsed.key.source) && F::is_host(&parsed.key.destination)
}

/// Sends the frame back to the neighbour it came from.
#[inline(always)]
pub fn swap_ethernet<P: Packet>(packet: &P) -> Option<()> {
    let ethernet = packet.ethernet()?;
    // SAFETY: `at` checked the bound.
    unsafe {
        let [to0, to1, to2, from0, from1, from2] = (*ethernet).addresses;
        (*ethernet).addresses = [from0, from1, from2, to0, to1, to2];
    }
    Some(())
}
