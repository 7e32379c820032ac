//! A pod that reaches itself through its Service.
//!
//! The pod refuses packets from its own address off a wire, so the program hides that address behind the
//! frontend's, with a port as in [`snat`]. Both directions go back out of the device they came in by: the
//! stack would take such packets for martians.

use proxy_common::fragment::Side;
use proxy_common::verdict::Reason;

use crate::flow::{self, Sender, handoff, snat_ports};
use crate::forward::{nat, snat};
use crate::maps::family::Endpoint;
use crate::maps::observe;
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed, ethernet};
use crate::parse::parse_then;
use crate::verdict::{Decision, NO_ROOM, UNTOUCHED, Verdict};

/// Gives a pod its own packet back, for the stored backend.
#[inline(never)]
pub fn translate<P: Packet, F: Header>(mut packet: P) -> Verdict {
    parse_then::<P, F>(&mut packet, Side::Pod, |packet, parsed| translate_parsed::<P, F>(packet, parsed))
}

#[inline(always)]
fn translate_parsed<P: Packet, F: Header>(packet: &P, parsed: &Parsed<F::Address>) -> Decision {
    let noted = handoff::load::<F>()?;
    let source = if noted.check == 0 {
        let frontend = parsed.key.destination;
        (frontend, snat_ports::create::<F>(parsed, noted, &frontend)?)
    } else {
        (noted.source, noted.source_port)
    };
    let destination = (noted.destination, noted.destination_port);
    write_and_reflect::<P, F>(packet, parsed, &source, &destination).ok_or(NO_ROOM)?;
    observe::count_service(noted.service, packet.length());
    Ok(Verdict::Bounce(Reason::Hairpin))
}

/// Gives a pod its own reply back, from the frontend. Other packets are not ours.
#[inline(never)]
pub fn restore<P: Packet, F: Header>(mut packet: P) -> Verdict {
    parse_then::<P, F>(&mut packet, Side::Pod, |packet, parsed| restore_parsed::<P, F>(packet, parsed))
}

#[inline(always)]
fn restore_parsed<P: Packet, F: Header>(packet: &P, parsed: &Parsed<F::Address>) -> Decision {
    let (found, entry) = snat::store_reply::<F>(&parsed.key)?;
    let (frontend, client) = ((entry.source, entry.source_port), (entry.destination, entry.destination_port));
    if client.0 != parsed.key.source {
        return Err(UNTOUCHED);
    }
    flow::track::<P, F>(packet, parsed, found, Sender::Backend);
    write_and_reflect::<P, F>(packet, parsed, &frontend, &client).ok_or(NO_ROOM)?;
    Ok(Verdict::Bounce(Reason::Reply))
}

#[inline(always)]
fn write_and_reflect<P: Packet, F: Header>(
    packet: &P,
    parsed: &Parsed<F::Address>,
    source: &Endpoint<F>,
    destination: &Endpoint<F>,
) -> Option<()> {
    nat::write::<P, F>(*packet, parsed, source, destination)?;
    ethernet::swap_ethernet(packet)
}
