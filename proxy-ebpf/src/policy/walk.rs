//! The way of a frame through the programs.

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use proxy_common::addr::Address;
use proxy_common::policy::{OPENED_BY_PEER, PEER_NODE, PolicyDrop, PolicyFlowKey, TUNNEL_PORTS};
use proxy_common::sctp::INIT;

use crate::header::{ETHERNET, Ports, SctpStart, Wire, ether_type, protocol};
use crate::policy::family::{Family, V4, V6};
use crate::policy::follow::{self, Role};
use crate::policy::icmp::{self, set_ports};
use crate::policy::record::{Ends, record_drop};
use crate::policy::scene::Scene;
use crate::policy::shape::{Packet, Piece, TcpStart, Unread};
use crate::policy::skb::{Skb, Tag};
use crate::policy::{fragments, short, sources};

/// VLAN tags inside a frame: the kernel has taken out one already.
const TAGS: [u16; 2] = [0x8100_u16.to_be(), 0x88a8_u16.to_be()];

/// Protocol number of GRE.
const GRE: u8 = 47;

/// Judges a frame and returns the action. `TC_ACT_UNSPEC` lets programs behind ours run.
#[inline(always)]
pub fn run<const FROM_POD: bool>(skb: Skb) -> i32 {
    // What comes back to the device that it came from is the pod's own: a Service of its own pod sends it so.
    if !FROM_POD && skb.came_in_by() == skb.device() {
        return TC_ACT_UNSPEC;
    }
    if short::passes::<FROM_POD>(skb) {
        return TC_ACT_UNSPEC;
    }
    let Some(scene) = Scene::of::<FROM_POD>(skb.device()) else { return TC_ACT_UNSPEC };
    // Nothing but the pull changes the frame, and all that follows looks it up again.
    skb.pull((ETHERNET + size_of::<u32>()) as u32);
    // SAFETY: `at` checked the bound.
    let ether_type = skb.at::<u16>(ETHERNET - size_of::<u16>()).map_or(0, |place| unsafe { *place });
    let is_judged = match skb.tag() {
        Tag::Absent => true,
        // The node's stack takes the frame as one without a tag.
        Tag::Priority => FROM_POD && !scene.is_isolated(),
        Tag::Vlan => false,
    };
    let passes = match ether_type {
        ether_type::IPV4 if is_judged => walk::<V4, FROM_POD>(skb, &scene),
        ether_type::IPV6 if is_judged => walk::<V6, FROM_POD>(skb, &scene),
        other => {
            let verdict = judge_other::<FROM_POD>(skb, &scene, if is_judged { other } else { 0 });
            if let Err(reason) = verdict {
                record_drop::<FROM_POD>(skb, reason, &Ends::default());
            }
            verdict.is_ok()
        }
    };
    if passes { TC_ACT_UNSPEC } else { TC_ACT_SHOT }
}

/// Judges a frame that holds no packet of either family, or one behind a tag; then the type is 0.
#[inline(always)]
fn judge_other<const FROM_POD: bool>(skb: Skb, scene: &Scene, ether_type: u16) -> Result<(), PolicyDrop> {
    if ether_type == ether_type::ARP {
        return match scene.pod {
            Some(pod) if FROM_POD => sources::check_arp(skb, pod),
            _ => Ok(()),
        };
    }
    // Linux takes a frame with two tags of priority for one without, so the source could be any.
    if scene.is_isolated() || FROM_POD && TAGS.contains(&ether_type) {
        return Err(PolicyDrop::Unreadable);
    }
    Ok(())
}

/// Judges a packet, and records its drop.
#[inline(always)]
fn walk<F: Family, const FROM_POD: bool>(skb: Skb, scene: &Scene) -> bool {
    let mut packet = Packet {
        key: PolicyFlowKey { device: scene.device, ..PolicyFlowKey::default() },
        transport: 0,
        end: 0,
        id: 0,
        hops: 0,
        piece: Piece::Whole,
    };
    let Err(reason) = judge::<F, FROM_POD>(skb, &mut packet, scene) else { return true };
    let reason = match reason {
        PolicyDrop::Denied if scene.pod.is_none() => PolicyDrop::UnknownPod,
        other => other,
    };
    let key = &packet.key;
    let (pod, peer) = (F::map(&key.pod), F::map(&key.peer));
    let (source, destination, ports) = if FROM_POD {
        (pod, peer, [key.pod_port, key.peer_port])
    } else {
        (peer, pod, [key.peer_port, key.pod_port])
    };
    record_drop::<FROM_POD>(skb, reason, &Ends { source, destination, ports, protocol: key.protocol });
    false
}

#[inline(always)]
fn judge<F: Family, const FROM_POD: bool>(
    skb: Skb,
    packet: &mut Packet<F::Address>,
    scene: &Scene,
) -> Result<(), PolicyDrop> {
    let read = F::read::<FROM_POD>(skb, packet);
    if FROM_POD && let Some(pod) = scene.pod {
        if read != Err(Unread::Addresses) {
            sources::check::<F>(packet, pod, read.is_ok())?;
        }
        // The name of another neighbour may stand behind the headers.
        if read == Err(Unread::Hidden) {
            return Err(PolicyDrop::Unreadable);
        }
    }
    if read.is_err() {
        return if scene.is_isolated() { Err(PolicyDrop::Unreadable) } else { Ok(()) };
    }
    if packet.piece == Piece::Later {
        return if scene.is_isolated() {
            fragments::follow::<F, FROM_POD>(skb, packet, scene)
        } else {
            Ok(())
        };
    }
    let verdict = judge_transport::<F, FROM_POD>(skb, packet, scene);
    if packet.piece == Piece::First && scene.is_isolated() {
        fragments::note::<F, FROM_POD>(packet, skb.device(), scene.now, verdict.is_ok());
    }
    verdict
}

/// Judges a packet whose transport header begins in this frame.
#[inline(always)]
fn judge_transport<F: Family, const FROM_POD: bool>(
    skb: Skb,
    packet: &mut Packet<F::Address>,
    scene: &Scene,
) -> Result<(), PolicyDrop> {
    let protocol = packet.key.protocol as u8;
    if FROM_POD && scene.pod.is_some() && is_tunnel_to_node::<F>(skb, packet, protocol) {
        return Err(PolicyDrop::ForeignSource);
    }
    let role = if protocol == F::ICMP && (F::Address::WORDS == 4 || scene.is_isolated()) {
        match icmp::look_at::<F, FROM_POD>(skb, packet, scene).role()? {
            Some(role) => role,
            None => return Ok(()),
        }
    } else if scene.is_isolated() {
        read_role::<F, FROM_POD>(skb, packet, protocol)?
    } else {
        return Ok(());
    };
    if !scene.is_isolated() {
        return Ok(());
    }
    if FROM_POD
        && let Some(pod) = scene.pod
        && sources::is_to_itself::<F>(packet, pod)
    {
        expect_itself::<F>(packet, scene);
        return Ok(());
    }
    let mut role = role;
    if !FROM_POD {
        // Only what the pod has sent comes from itself.
        if packet.key.pod.difference(&packet.key.peer) == 0 && role == Role::Opening {
            role = Role::Connected;
        }
        // No connection of the pod: an entry would let it answer in another's name.
        if scene.pod.is_some_and(|pod| packet.key.pod.difference(&F::address_of(pod)) != 0) {
            role = if matches!(role, Role::Alone | Role::Answer) { role } else { Role::Passing };
        }
    }
    follow::decide::<F, FROM_POD>(skb, &packet.key, scene, role)
}

/// Whether a packet is for a node, which would take off its outer headers and believe what is inside.
#[inline(always)]
fn is_tunnel_to_node<F: Family>(skb: Skb, packet: &Packet<F::Address>, protocol: u8) -> bool {
    let may_be_tunnel = match protocol {
        protocol::IPV4 | protocol::IPV6 | GRE => true,
        protocol::UDP => {
            read::<F, Ports>(skb, packet).is_some_and(|ports| TUNNEL_PORTS.contains(&ports.destination))
        }
        _ => false,
    };
    may_be_tunnel && F::peer(&packet.key.peer) & PEER_NODE != 0
}

/// Lets the packet in that a pod sends to itself. Whoever else uses the pod's address as source has no entry.
#[inline(always)]
fn expect_itself<F: Family>(packet: &Packet<F::Address>, scene: &Scene) {
    let (pod_port, peer_port) = (packet.key.peer_port, packet.key.pod_port);
    follow::put_allowed::<F>(&PolicyFlowKey { pod_port, peer_port, ..packet.key }, scene, OPENED_BY_PEER);
}

/// Reads the ports into the key.
#[inline(always)]
fn read_role<F: Family, const FROM_POD: bool>(
    skb: Skb,
    packet: &mut Packet<F::Address>,
    protocol: u8,
) -> Result<Role, PolicyDrop> {
    let (ports, role) = match protocol {
        protocol::TCP => {
            let start = read::<F, TcpStart>(skb, packet).ok_or(PolicyDrop::Unreadable)?;
            (start.ports, if start.opens() { Role::Opening } else { Role::Connected })
        }
        protocol::UDP => (read::<F, Ports>(skb, packet).ok_or(PolicyDrop::Unreadable)?, Role::Datagram),
        protocol::SCTP => {
            let start = read::<F, SctpStart>(skb, packet).ok_or(PolicyDrop::Unreadable)?;
            (start.header.ports, if start.chunk == INIT { Role::Opening } else { Role::Connected })
        }
        _ => return Ok(Role::Datagram),
    };
    set_ports::<_, FROM_POD>(&mut packet.key, ports);
    Ok(role)
}

/// The first bytes of the transport header, if the packet has them.
#[inline(always)]
fn read<F: Family, T: Wire>(skb: Skb, packet: &Packet<F::Address>) -> Option<T> {
    let plain = ETHERNET + size_of::<F::Header>();
    if packet.transport + size_of::<T>() as u32 > packet.end {
        return None;
    }
    if packet.transport == plain as u32
        && let Some(place) = skb.at::<T>(plain)
    {
        // SAFETY: `at` checked the bound, and any bytes are a `T`.
        return Some(unsafe { *place });
    }
    skb.load::<T>(packet.transport)
}
