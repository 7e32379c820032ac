//! From bytes to the tuple of a look-up. Packets that are not understood go to the stack untouched.

use proxy_common::flow::FlowKey;
use proxy_common::fragment::Side;

use crate::header::{ETHERNET, Ports, SctpStart, Tcp, Udp, protocol};
use crate::packet::ip::{Header, Network};
use crate::packet::shape::opaque_byte;
use crate::packet::{Packet, Parsed, Transport, sctp};
use crate::parse::unusual::Fragments;
use crate::trace;
use crate::verdict::{Decision, UNTOUCHED, Verdict};

pub mod fragments;
pub mod held_fragments;
pub mod unusual;

/// Reads the IP header at `network` and, for TCP, UDP and SCTP, the ports and flags.
///
/// A later fragment gets those of its first one, if that was seen on the same side.
#[inline(always)]
pub fn parse<P: Packet, F: Header>(
    packet: &P,
    network: usize,
    side: Side,
) -> Result<Parsed<F::Address>, Verdict> {
    parse_with::<P, F>(packet, network, Fragments::Followed(side))
}

/// As [`parse`], with a choice about fragments.
#[inline(always)]
pub fn parse_with<P: Packet, F: Header>(
    packet: &P,
    network: usize,
    fragments: Fragments,
) -> Result<Parsed<F::Address>, Verdict> {
    packet.pull(network + F::HEADER + size_of::<Tcp>());
    let header = F::parse_network(packet, network, || unusual::look_at::<P, F>(packet, network, fragments))?;
    let transport = Transport::new(header.place.payload(), header.protocol);
    let (mut ports, mut tcp_flags) = (Ports::default(), header.place.no_flags());
    if transport.is_tcp() {
        let tcp = packet.read::<Tcp>(transport.offset()).ok_or(UNTOUCHED)?;
        header.contains(network, size_of::<Tcp>())?;
        (ports, tcp_flags) = (tcp.ports, tcp.flags);
    } else if header.protocol == protocol::UDP {
        let udp = packet.read::<Udp>(transport.offset()).ok_or(UNTOUCHED)?;
        header.contains(network, size_of::<Udp>())?;
        ports = udp.ports;
    } else if transport.is_sctp() {
        let chunk;
        (ports, chunk) = packet.read_sctp(transport.offset()).ok_or(UNTOUCHED)?;
        header.contains(network, size_of::<SctpStart>())?;
        tcp_flags = sctp::tcp_flags(chunk);
    }
    (ports, tcp_flags) = header.place.choose(ports, tcp_flags);
    let later = header.place.later();
    let Network { source, destination, place, length, traffic_class, hop_limit, .. } = header;
    let protocol = opaque_byte(header.protocol);
    let Ports { source: source_port, destination: destination_port } = ports;
    let key = FlowKey { source, destination, source_port, destination_port, protocol, ..FlowKey::default() };
    trace::packet::<F>(&key);
    let (network, payload) = (network as u32, place.payload());
    Ok(Parsed { key, network, payload, length, tcp_flags, traffic_class, hop_limit, later })
}

/// Parses a packet and runs the stage that goes on with it.
#[inline(always)]
pub fn parse_then<P: Packet, F: Header>(
    packet: &mut P,
    side: Side,
    stage: impl FnOnce(&mut P, &Parsed<F::Address>) -> Decision,
) -> Verdict {
    parse::<P, F>(packet, ETHERNET, side)
        .and_then(|parsed| stage(packet, &parsed))
        .unwrap_or_else(|verdict| verdict)
}
