//! Names that a pod may use: its own addresses, and those of the link.

use proxy_common::addr::Address;
use proxy_common::policy::{PEER_NODE, PEER_OWN_NODE, PolicyDrop, PolicyPod};

use crate::header::{Arp, ETHERNET};
use crate::policy::family::Family;
use crate::policy::scene::Scene;
use crate::policy::shape::Packet;
use crate::policy::skb::Skb;

/// Checks the source of a packet from a known pod. What policies allow others is not the pod's to use.
///
/// A packet without a source (`::`) looks for other owners of an address (RFC 4862, section 5.4), by ICMPv6.
#[inline(always)]
pub fn check<F: Family>(
    packet: &Packet<F::Address>,
    pod: &PolicyPod,
    is_readable: bool,
) -> Result<(), PolicyDrop> {
    let (source, own) = (&packet.key.pod, F::address_of(pod));
    if is_set(&own) && source.difference(&own) == 0 {
        return Ok(());
    }
    let is_nameless =
        F::Address::WORDS == 4 && !is_set(source) && is_readable && packet.key.protocol as u8 == F::ICMP;
    let is_of_link = is_link_local(source) && F::peer(source) & PEER_NODE == 0;
    if is_of_link || is_nameless { Ok(()) } else { Err(PolicyDrop::ForeignSource) }
}

/// Whether a packet goes from a known pod to itself. A link-local address need not be the pod's own.
#[inline(always)]
pub fn is_to_itself<F: Family>(packet: &Packet<F::Address>, pod: &PolicyPod) -> bool {
    let own = F::address_of(pod);
    is_set(&own) && packet.key.pod.difference(&own) == 0 && packet.key.peer.difference(&own) == 0
}

/// Whether a message may name this address as the pod's.
#[inline(always)]
pub fn may_claim<F: Family>(address: &F::Address, pod: &PolicyPod) -> bool {
    is_link_local(address) && F::peer(address) & PEER_NODE == 0
        || address.difference(&F::address_of(pod)) == 0
}

/// Whether a pod's neighbour has the address, so that messages to it don't leave the node.
///
/// Else a pod that may reach nothing would reach any address, in messages of the kinds that always pass.
#[inline(always)]
pub fn is_neighbour<F: Family>(address: &F::Address, scene: &Scene) -> bool {
    if is_link_local(address) || is_link_multicast(address) || F::peer(address) & PEER_OWN_NODE != 0 {
        return true;
    }
    // A bridge's pods. Each node has a prefix of its own, and none is longer than that of a link.
    let Some(pod) = scene.pod else { return false };
    let own = F::address_of(pod);
    match (address.words(), own.words()) {
        ([first, second, ..], [own_first, own_second, ..]) => first == own_first && second == own_second,
        _ => false,
    }
}

/// Checks an ARP packet from a known pod. A sender without an address asks for other owners (RFC 5227).
#[inline(always)]
pub fn check_arp(skb: Skb, pod: &PolicyPod) -> Result<(), PolicyDrop> {
    let arp = skb.load::<Arp>(ETHERNET as u32).ok_or(PolicyDrop::ForeignSource)?;
    let [own] = pod.address4;
    if arp.form == Arp::IPV4_ON_ETHERNET && (arp.sender == 0 || arp.sender == own) {
        return Ok(());
    }
    Err(PolicyDrop::ForeignSource)
}

#[inline(always)]
fn is_set<A: Address>(address: &A) -> bool {
    address.difference(&A::default()) != 0
}

/// `fe80::/10`; IPv4 has none that a pod would use.
#[inline(always)]
fn is_link_local<A: Address>(address: &A) -> bool {
    matches!(address.words(), [first, _, _, _] if u32::from_be(*first) >> 22 == 0xfe80 >> 6)
}

/// `ff01::/16` and `ff02::/16`, whatever the flags (RFC 4291, section 2.7).
#[inline(always)]
fn is_link_multicast<A: Address>(address: &A) -> bool {
    matches!(address.words(), [first, _, _, _] if matches!(u32::from_be(*first) >> 16 & 0xff0f, 0xff01 | 0xff02))
}
