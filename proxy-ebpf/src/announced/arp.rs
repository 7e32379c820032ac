//! ARP requests (RFC 826).

use proxy_common::Addr4;
use proxy_common::verdict::Reason;

use super::announced_mac;
use crate::header::{Arp, ETHERNET};
use crate::maps::family::Family;
use crate::maps::v4::V4;
use crate::packet::{Packet, ethernet};
use crate::verdict::{UNTOUCHED, Verdict};

/// Answers a request for an announced address in place.
#[inline(always)]
pub fn receive<P: Packet>(packet: P) -> Verdict {
    answer(&packet).map_or(UNTOUCHED, |()| Verdict::Bounce(Reason::Announced))
}

/// Answers a request, or returns `None` and leaves the frame as it is.
///
/// A request for the sender's own address is no question, but an announcement (RFC 5227, section 3). A request from
/// 0.0.0.0 asks whether the address is in use (section 2.1.1).
#[inline(always)]
fn answer<P: Packet>(packet: &P) -> Option<()> {
    packet.pull(ETHERNET + size_of::<Arp>());
    let Arp { form, operation, sender_mac, sender, target, .. } = packet.read::<Arp>(ETHERNET)?;
    let is_question = form == Arp::IPV4_ON_ETHERNET && operation == Arp::REQUEST && sender != target;
    if !is_question || ethernet::is_group(sender_mac) {
        return None;
    }
    let mac = announced_mac(packet, V4::map(&Addr4([target])))?;
    let (destination, _) = ethernet::read_macs(packet)?;
    // A switch may flood frames for other nodes.
    if destination != ethernet::BROADCAST && destination != mac {
        return None;
    }
    ethernet::write_macs(packet, sender_mac, mac)?;
    let (operation, sender, target) = (Arp::REPLY, target, sender);
    packet.write(ETHERNET, Arp { form, operation, sender_mac: mac, sender, target_mac: sender_mac, target })
}
