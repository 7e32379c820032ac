//! Questions for the MAC address of a Service's address that this node announces on a link.

mod arp;
mod solicitation;

use proxy_common::announced::AnnouncedKey;

use crate::header::{Mac, ether_type};
use crate::maps;
use crate::packet::{Packet, ethernet};
use crate::verdict::{UNTOUCHED, Verdict};

/// Answers a question for an announced address. All others are the stack's.
#[inline(always)]
pub fn receive<P: Packet>(packet: P) -> Verdict {
    match packet.ether_type() {
        ether_type::ARP => arp::receive(packet),
        ether_type::IPV6 => solicitation::receive(packet),
        _ => UNTOUCHED,
    }
}

/// The MAC address with which this node answers for an address, v4-mapped for IPv4, on the packet's device.
#[inline(always)]
fn announced_mac<P: Packet>(packet: &P, address: [u32; 4]) -> Option<Mac> {
    let key = AnnouncedKey { address, device: packet.device() };
    // SAFETY: copied at once, as one word.
    unsafe { maps::ANNOUNCED.get(&key).copied() }.map(ethernet::mac_of)
}
