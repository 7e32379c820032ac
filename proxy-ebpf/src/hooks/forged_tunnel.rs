//! Only nodes may encapsulate: the programs drop tunnel packets that a pod or a process of this node forges.
//! See SECURITY.md.
//!
//! The receiving node knows the sender by its address. A masqueraded pod's packet has the node's own address,
//! so only the sending node can tell the two apart.

use proxy_common::frontend::{FRONTEND_MAY_HAVE_DSR, FrontendKey, SCOPE_ENCAPSULATED, SCOPE_EXTERNAL};
use proxy_common::vip::VipKey;
use proxy_common::way::{FOU_PORT, PEER_NODE};
use proxy_common::{Addr4, Addr6};

use crate::header::{FRAGMENT_MASK, IcmpHeader, Ipv4, Ipv6, Ports, Udp, has_ports, is_extension, protocol};
use crate::icmp::Icmp;
use crate::maps::config::{takes_fou, takes_pod_packets};
use crate::maps::family::{Family, KeyOf};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::maps::{self, peers};
use crate::packet::Packet;

/// The highest offset read, which bounds it for the verifier.
const MAX_OFFSET: u32 = 511;

/// Whether a packet that leaves may hold an inner packet that a node would decapsulate.
///
/// Nearly all packets end here.
#[inline(always)]
pub fn may_be_tunnel<F: Family>(key: &KeyOf<F>) -> bool {
    match key.protocol {
        protocol::UDP => key.destination_port == FOU_PORT.to_be(),
        protocol => protocol == protocol::IPV4 || protocol == protocol::IPV6,
    }
}

/// Whether a tunnel packet that leaves is forged.
///
/// It is forged if it is neither ours nor forwarded for another node, and its receiver would take the inner
/// packet for a client's. The outer header ends at `payload`. Foreign overlays carry no packets for a
/// frontend: pods' packets are translated before they get there.
#[inline(never)]
pub fn is_forged<P: Packet, O: Family>(packet: P, payload: u32, key: &KeyOf<O>) -> bool {
    if packet.is_trusted::<O>(&key.source) {
        return false;
    }
    if key.protocol != protocol::UDP {
        return is_for_kernel_of_node::<P, O>(&packet, &key.destination)
            || carries_clients::<P>(packet, payload, key.protocol);
    }
    // Each segment behind the one header may hold another packet. Without FoU this may be an overlay on the
    // same port, such as kube-router's, so its segmented frames may leave.
    if packet.has_segments() {
        return takes_fou() && peers::peer::<O>(&key.destination) & PEER_NODE != 0;
    }
    let inner = payload + size_of::<Udp>() as u32;
    packet.pull((inner & MAX_OFFSET) as usize + size_of::<Ipv4>());
    let Some(header) = packet.read::<Ipv4>((inner & MAX_OFFSET) as usize) else {
        return false;
    };
    let family = if header.version_and_length >> 4 == 4 { protocol::IPV4 } else { protocol::IPV6 };
    carries_clients::<P>(packet, inner, family)
}

/// Whether a node's kernel would decapsulate a pod's packet, whatever is in it, and believe that another node sent it. This
/// node's own tunnels came in by no device.
#[inline(always)]
fn is_for_kernel_of_node<P: Packet, O: Family>(packet: &P, destination: &O::Address) -> bool {
    takes_pod_packets() && packet.came_in_by() != 0 && peers::peer::<O>(destination) & PEER_NODE != 0
}

#[inline(always)]
fn carries_clients<P: Packet>(packet: P, inner: u32, family: u8) -> bool {
    let inner = inner & MAX_OFFSET;
    packet.pull(inner as usize + size_of::<Ipv6>() + size_of::<IcmpHeader>());
    if family == protocol::IPV4 { carries_clients4(packet, inner) } else { carries_clients6(packet, inner) }
}

/// One function for each family: their headers store ports and fragments differently.
#[inline(never)]
fn carries_clients4<P: Packet>(packet: P, inner: u32) -> bool {
    let Some(header) = packet.read::<Ipv4>((inner & MAX_OFFSET) as usize) else {
        return false;
    };
    let length = u32::from(header.version_and_length & 0x0f) << 2;
    let has_transport = header.fragment & FRAGMENT_MASK == 0;
    let is_nested = may_be_nested(header.protocol) && is_of_node::<P, V4>(packet, &Addr4(header.source));
    is_for_frontend::<P, V4>(
        packet,
        &Addr4(header.destination),
        has_transport.then_some(inner + length),
        header.protocol,
        is_nested,
    )
}

#[inline(never)]
fn carries_clients6<P: Packet>(packet: P, inner: u32) -> bool {
    let Some(header) = packet.read::<Ipv6>((inner & MAX_OFFSET) as usize) else {
        return false;
    };
    let (next, source, destination) = (header.next_header, header.source, header.destination);
    let is_nested = may_be_nested(next) && is_of_node::<P, V6>(packet, &Addr6(source));
    let has_transport = !is_extension(next);
    let transport = inner + size_of::<Ipv6>() as u32;
    is_for_frontend::<P, V6>(packet, &Addr6(destination), has_transport.then_some(transport), next, is_nested)
}

/// Whether a node would take an inner packet for a client's, or for an ICMP error about one.
///
/// The port decides if it can be read at once, else the address.
#[inline(always)]
fn is_for_frontend<P: Packet, F: Icmp>(
    packet: P,
    address: &F::Address,
    transport: Option<u32>,
    number: u8,
    is_nested: bool,
) -> bool {
    let Some(transport) = transport.map(|offset| (offset & MAX_OFFSET) as usize) else {
        return is_known::<F>(address);
    };
    packet.pull(transport + size_of::<IcmpHeader>());
    if number == F::PROTOCOL {
        let header = packet.read::<IcmpHeader>(transport);
        return header.is_some_and(|header| F::is_error(header.kind)) && is_known::<F>(address);
    }
    if number == protocol::IPV4 || number == protocol::IPV6 {
        return is_nested;
    }
    let Some(ports) = packet.read::<Ports>(transport).filter(|_| has_ports(number)) else {
        return false;
    };
    let port = ports.destination;
    if is_nested && port == FOU_PORT.to_be() {
        return true;
    }
    is_direct::<F>(*address, port, number, SCOPE_EXTERNAL)
        || peers::peer::<F>(address) & PEER_NODE != 0
            && is_direct::<F>(F::Address::default(), port, number, SCOPE_ENCAPSULATED)
}

/// Whether an inner packet may be a tunnel itself.
#[inline(always)]
const fn may_be_nested(number: u8) -> bool {
    matches!(number, protocol::IPV4 | protocol::IPV6 | protocol::UDP)
}

/// Whether the inner packet of a forwarded tunnel claims to be a node's.
///
/// A node with a tunnel device takes off the outer header. Its programs then believe the inner packet by its
/// source, whether it goes to the node or to a pod. A node's own tunnel device may carry our tunnels to another
/// node: it forgets the device a packet came in by.
#[inline(always)]
fn is_of_node<P: Packet, F: Family>(packet: P, source: &F::Address) -> bool {
    let is_node = || F::is_outer_source(source) || peers::peer::<F>(source) & PEER_NODE != 0;
    packet.came_in_by() != 0 && is_node()
}

/// Whether the frontend exists and nodes send each other its packets.
#[inline(always)]
fn is_direct<F: Family>(address: F::Address, port: u16, protocol: u8, scope: u8) -> bool {
    let flags = F::frontend_flags(&FrontendKey { address, port, protocol, scope });
    flags & FRONTEND_MAY_HAVE_DSR != 0
}

/// Whether an address is a Service's, or that of a node, which may have NodePorts.
#[inline(always)]
fn is_known<F: Family>(address: &F::Address) -> bool {
    let key = VipKey { address: F::map(address) };
    // SAFETY: only the presence of the entry matters.
    unsafe { maps::VIPS.get(&key) }.is_some() || peers::peer::<F>(address) & PEER_NODE != 0
}
