//! The outer headers that a director writes.

use proxy_common::hash::flow_hash;
use proxy_common::way::{WAY_IPV4, Way};

use crate::forward::route::NextHop;
use crate::header::{ETHERNET, Ethernet, protocol};
use crate::maps::config::OUTER_SPREAD;
use crate::maps::family::{Family, KeyOf};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::ip::{Header, Outer};
use crate::packet::{Packet, Parsed, encap};
use crate::verdict::{NO_ROOM, Verdict};

/// Bit of the outer header's hint: this packet has had its second chance and is never sent on again.
pub const ONWARD: u32 = 1 << 14;

pub const HINT_MASK: u32 = ONWARD - 1;

/// Writes Ethernet and outer headers in front of an inner packet of family `F`; `between` is the UDP header's
/// bytes, or zero.
#[inline(always)]
pub fn write_outer<P: Packet, F: Family>(
    packet: &P,
    parsed: &Parsed<F::Address>,
    way: &Way,
    next: &NextHop,
    hint: u32,
    between: usize,
) -> Result<(), Verdict> {
    let ether_type = if way.flags & WAY_IPV4 != 0 { V4::ETHER_TYPE } else { V6::ETHER_TYPE };
    packet.write_ethernet(Ethernet { addresses: next.addresses, ether_type }).ok_or(NO_ROOM)?;
    packet.mark_tunnel();
    let written = if way.flags & WAY_IPV4 != 0 {
        V4::write_outer(packet, ETHERNET, &outer::<F, V4>(parsed, way, hint, between))
    } else {
        V6::write_outer(packet, ETHERNET, &outer::<F, V6>(parsed, way, hint, between))
    };
    written.ok_or(NO_ROOM)?;
    if OUTER_SPREAD.load() != 0 {
        let spread = if way.flags & WAY_IPV4 != 0 {
            spread::<P, F, V4>(*packet, &parsed.key)
        } else {
            spread::<P, F, V6>(*packet, &parsed.key)
        };
        spread.ok_or(NO_ROOM)?;
    }
    if between != 0 {
        encap::write_header::<P, F>(packet, ETHERNET + header_of(way), parsed).ok_or(NO_ROOM)?;
    }
    Ok(())
}

#[inline(always)]
fn outer<F: Family, O: Family>(
    parsed: &Parsed<F::Address>,
    way: &Way,
    hint: u32,
    between: usize,
) -> Outer<O::Address> {
    Outer {
        source: O::unmap(&way.source),
        destination: O::unmap(&way.target),
        protocol: if between == 0 { F::ENCAPSULATED } else { protocol::UDP },
        // Without the ECN bits: a mark set on the way would be lost with the outer header (RFC 6040).
        traffic_class: parsed.traffic_class & !3,
        inner_length: parsed.length + between as u32,
        hint,
    }
}

/// Replaces this node's source address in the outer header by one of the flow's own.
///
/// Receive queues are chosen by addresses, and one queue would get all packets of a director to a node. Not
/// inlined: the walk's stack has no room for another address.
#[inline(never)]
fn spread<P: Packet, F: Family, O: Header>(packet: P, key: &KeyOf<F>) -> Option<()> {
    O::spread_source(&packet, ETHERNET, flow_hash(key))
}

/// Bytes of the outer IP header that a way needs.
#[inline(always)]
pub const fn header_of(way: &Way) -> usize {
    if way.flags & WAY_IPV4 != 0 { V4::HEADER } else { V6::HEADER }
}
