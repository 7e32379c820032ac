//! Fragments: only the first one of a packet can be judged, and the others follow it.

use aya_ebpf::bindings::BPF_ANY;
use proxy_common::addr::Address;
use proxy_common::fragment::FRAGMENT_SECONDS;
use proxy_common::policy::{PolicyDrop, PolicyFragmentKey};

use crate::policy::family::Family;
use crate::policy::scene::{Scene, direction};
use crate::policy::shape::Packet;
use crate::policy::skb::Skb;

/// Enters the first fragment of a packet, or forgets an older packet of its name.
#[inline(never)]
pub fn note<F: Family, const FROM_POD: bool>(
    packet: &Packet<F::Address>,
    device: u32,
    now: u32,
    is_allowed: bool,
) {
    let key = key::<F, FROM_POD>(packet, device);
    // If the map refuses, the other fragments will be unknown.
    let _ = if is_allowed {
        F::fragments().insert(&key, &now, BPF_ANY.into())
    } else {
        F::fragments().remove(&key)
    };
}

/// Decides about another fragment than the first.
#[inline(always)]
pub fn follow<F: Family, const FROM_POD: bool>(
    skb: Skb,
    packet: &Packet<F::Address>,
    scene: &Scene,
) -> Result<(), PolicyDrop> {
    let key = key::<F, FROM_POD>(packet, skb.device());
    // SAFETY: one word, read at once.
    match unsafe { F::fragments().get(&key).copied() } {
        Some(second) if scene.is_recent(second, FRAGMENT_SECONDS) => Ok(()),
        _ => Err(PolicyDrop::Unreadable),
    }
}

/// IPv6 tells packets apart without the protocol (RFC 8200, section 4.5).
#[inline(always)]
fn key<F: Family, const FROM_POD: bool>(
    packet: &Packet<F::Address>,
    device: u32,
) -> PolicyFragmentKey<F::Address> {
    let (source, destination) =
        if FROM_POD { (packet.key.pod, packet.key.peer) } else { (packet.key.peer, packet.key.pod) };
    PolicyFragmentKey {
        source,
        destination,
        id: packet.id,
        protocol: if F::Address::WORDS == 1 { packet.key.protocol } else { 0 },
        device,
        direction: direction(FROM_POD) as u32,
    }
}
