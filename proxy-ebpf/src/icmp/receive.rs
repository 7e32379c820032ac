//! Incoming ICMP messages, by kind.

use proxy_common::fragment::Side;
use proxy_common::part::Part;

use crate::header::{ETHERNET, IcmpHeader};
use crate::icmp::family::Icmp;
use crate::icmp::{echo, relay};
use crate::packet::{self, Packet};
use crate::verdict::{UNTOUCHED, Verdict};

/// Receives an ICMP message over an uplink. Messages behind options or extension headers are the stack's.
#[inline(always)]
pub fn receive<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match read_kind::<P, F>(&packet) {
        Kind::EchoRequest => echo::receive::<P, F, { Side::Uplink as u32 }>(packet),
        Kind::Error => relay::receive::<P, F>(packet),
        Kind::Solicitation if P::KIND != packet::Kind::Bare => Verdict::Continue(Part::Announced),
        Kind::Solicitation | Kind::Other => UNTOUCHED,
    }
}

/// Receives an ICMP message of a pod of this node.
#[inline(always)]
pub fn receive_of_pod<P: Packet, F: Icmp>(packet: P) -> Verdict {
    match read_kind::<P, F>(&packet) {
        Kind::EchoRequest => echo::receive::<P, F, { Side::Pod as u32 }>(packet),
        Kind::Error => relay::receive_of_pod::<P, F>(packet),
        Kind::Solicitation | Kind::Other => UNTOUCHED,
    }
}

/// Kinds of messages with different treatment.
enum Kind {
    EchoRequest,
    Error,
    /// A question for a MAC address.
    Solicitation,
    Other,
}

#[inline(always)]
fn read_kind<P: Packet, F: Icmp>(packet: &P) -> Kind {
    packet.pull(ETHERNET + F::HEADER + size_of::<IcmpHeader>());
    let Some(header) = packet.read::<IcmpHeader>(ETHERNET + F::HEADER) else {
        return Kind::Other;
    };
    let (kind, code) = (header.kind, header.code);
    if kind == F::ECHO_REQUEST && code == 0 {
        Kind::EchoRequest
    } else if F::is_error(kind) {
        Kind::Error
    } else if F::SOLICITATION == Some(kind) {
        Kind::Solicitation
    } else {
        Kind::Other
    }
}
