//! ICMP and `ICMPv6`: what senders are told, and what others tell.

mod answer;
mod echo;
mod family;
mod limit;

pub use answer::answer;
pub use family::Icmp;

use crate::packet::Packet;
use crate::packet::header::{ETHERNET, Ethernet, IcmpHeader};
use crate::packet::parse::{Parsed, parse};
use crate::verdict::{UNTOUCHED, Verdict};
use crate::vip;

/// An ICMP message that came in over an uplink. One behind options or extension headers is the stack's.
#[inline(never)]
pub fn receive<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match parse::<P, F>(&packet, ETHERNET) {
        Ok(parsed) if parsed.payload == (ETHERNET + F::HEADER) as u32 => {
            receive_parsed::<P, F>(packet, &parsed)
        }
        _ => UNTOUCHED,
    }
}

#[inline(always)]
fn receive_parsed<P: Packet, F: Icmp>(packet: P, parsed: &Parsed<F::Address>) -> Verdict {
    let Some(header) = packet.at::<IcmpHeader>(parsed.transport().offset()) else {
        return UNTOUCHED;
    };
    if (parsed.length as usize) < F::HEADER + size_of::<IcmpHeader>() {
        return UNTOUCHED;
    }
    // SAFETY: `at` checked the bound.
    let (kind, code) = unsafe { ((*header).kind, (*header).code) };
    let address = &parsed.key.destination;
    if kind == F::ECHO_REQUEST && code == 0 && vip::may_be_vip::<F>(address) {
        let is_ours = vip::kinds::<F>(address) != 0 && may_answer::<P, F>(&packet, parsed);
        return if is_ours { echo::reply::<P, F>(packet, parsed) } else { UNTOUCHED };
    }
    UNTOUCHED
}

/// Whether a packet came from one host to one host, and may be answered.
#[inline(always)]
fn may_answer<P: Packet, F: Icmp>(packet: &P, parsed: &Parsed<F::Address>) -> bool {
    let Some(ethernet) = packet.at::<Ethernet>(0) else {
        return false;
    };
    // SAFETY: `at` checked the bound.
    let [destination, ..] = unsafe { (*ethernet).addresses };
    let [first, _] = destination.to_ne_bytes();
    first & 1 == 0 && F::is_host(&parsed.key.source) && F::is_host(&parsed.key.destination)
}

/// Sends the frame back to the neighbour it came from.
#[inline(always)]
fn swap_ethernet<P: Packet>(packet: &P) -> Option<()> {
    let ethernet = packet.at::<Ethernet>(0)?;
    // SAFETY: `at` checked the bound.
    unsafe {
        let [to0, to1, to2, from0, from1, from2] = (*ethernet).addresses;
        (*ethernet).addresses = [from0, from1, from2, to0, to1, to2];
    }
    Some(())
}
