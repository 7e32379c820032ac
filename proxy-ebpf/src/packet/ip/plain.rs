//! Packets of one IP header without options or extensions, read with less work than parsing.

use proxy_common::flow::FlowKey;

use crate::header::IcmpHeader;
use crate::packet::ip::{Header, Plain};
use crate::packet::{Packet, Parsed};

/// Reads an IP header without options or extension headers that carries `protocol`, and at least eight bytes
/// of it.
///
/// It looks at less than [`parse`](crate::parse::parse), of which the verifier counts every path.
#[inline(always)]
pub fn parse_plain<P: Packet, F: Header>(
    packet: &P,
    network: usize,
    protocol: u8,
) -> Option<Parsed<F::Address>> {
    let Plain { length, traffic_class, hop_limit } = F::read_plain(packet, network, protocol)?;
    let payload = network + F::HEADER;
    if (length as usize) < F::HEADER + size_of::<IcmpHeader>() || !packet.has_bytes(network as u32 + length) {
        return None;
    }
    let (source, destination) = F::read_addresses(packet, network)?;
    let key = FlowKey { source, destination, protocol, ..FlowKey::default() };
    let (network, payload) = (network as u32, payload as u32);
    Some(Parsed { key, network, payload, length, tcp_flags: 0, traffic_class, hop_limit, later: 0 })
}
