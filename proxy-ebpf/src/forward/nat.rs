//! Address translation: one function writes any addresses and ports over any others.

use proxy_common::addr::Address;
use proxy_common::checksum::Difference;
use proxy_common::verdict::Reason;

use crate::header::Ports;
use crate::maps::family::Endpoint;
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed, sctp};
use crate::verdict::{Decision, NO_ROOM, Verdict};

/// Sends a client's packet to a backend on this node. The client's address stays, and nearly always its port.
#[inline(always)]
pub fn deliver<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    client_port: u16,
    backend: &Endpoint<F>,
    reason: Reason,
) -> Decision {
    let client = (parsed.key.source, client_port);
    write::<P, F>(*packet, parsed, &client, backend).ok_or(NO_ROOM)?;
    Ok(Verdict::Deliver(reason))
}

/// Rewrites the source of a backend's reply to the frontend.
#[inline(always)]
pub fn restore<P: Packet, F: Header>(
    packet: &mut P,
    parsed: &Parsed<F::Address>,
    frontend: &Endpoint<F>,
    client_port: u16,
) -> Decision {
    let client = (parsed.key.destination, client_port);
    write::<P, F>(*packet, parsed, frontend, &client).ok_or(NO_ROOM)?;
    Ok(Verdict::Deliver(Reason::Reply))
}

/// Writes both ends of a packet, and its checksums.
///
/// For IPv6 it is not inlined: its words would crowd the walks' stacks.
#[inline(always)]
pub fn write<P: Packet, F: Header>(
    packet: P,
    parsed: &Parsed<F::Address>,
    source: &Endpoint<F>,
    destination: &Endpoint<F>,
) -> Option<()> {
    if F::Address::WORDS == 1 {
        write_inline::<P, F>(packet, parsed, source, destination)
    } else {
        write_out_of_line::<P, F>(packet, parsed, source, destination)
    }
}

#[inline(never)]
fn write_out_of_line<P: Packet, F: Header>(
    packet: P,
    parsed: &Parsed<F::Address>,
    source: &Endpoint<F>,
    destination: &Endpoint<F>,
) -> Option<()> {
    write_inline::<P, F>(packet, parsed, source, destination)
}

#[inline(always)]
fn write_inline<P: Packet, F: Header>(
    mut packet: P,
    parsed: &Parsed<F::Address>,
    source: &Endpoint<F>,
    destination: &Endpoint<F>,
) -> Option<()> {
    let old = &parsed.key;
    let addresses = Difference::default();
    let addresses = difference(addresses, &old.source, &source.0);
    let addresses = difference(addresses, &old.destination, &destination.0);
    let ports =
        Difference::default().half(old.source_port, source.1).half(old.destination_port, destination.1);

    F::write_addresses(&packet, parsed.network_offset(), &source.0, &destination.0, addresses)?;
    if parsed.is_later() {
        packet.adjust_for_addresses::<F>(addresses);
        return Some(());
    }
    let transport = parsed.transport();
    let new = Ports { source: source.1, destination: destination.1 };
    packet.write(transport.offset(), new)?;
    if transport.is_sctp() {
        return sctp::update_checksum::<P, F>(&packet, parsed, addresses, new);
    }
    packet.update_transport_checksum::<F>(transport, addresses, ports).ok()
}

/// Adds the change of an address.
#[inline(always)]
pub fn difference<A: Address>(mut sum: Difference, old: &A, new: &A) -> Difference {
    for (old, new) in old.words().iter().zip(new.words()) {
        sum = sum.word(*old, *new);
    }
    sum
}
