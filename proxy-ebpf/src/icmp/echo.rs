//! Echo requests to a Service's address.

use proxy_common::checksum::Difference;
use proxy_common::fragment::Side;
use proxy_common::verdict::Reason;

use super::family::{self, Icmp};
use crate::header::{ETHERNET, IcmpHeader};
use crate::packet::ip::plain::parse_plain;
use crate::packet::{Packet, Parsed, ethernet};
use crate::select::vip;
use crate::verdict::{NO_ROOM, UNTOUCHED, Verdict};

/// Answers an echo request to a Service's address in place, if its sender may ask there.
///
/// As with any host, the answer is as large as the request, so a forged request gains nothing. As with Linux'
/// own answers, no limit applies.
#[inline(never)]
pub fn receive<P: Packet, F: Icmp, const SIDE: u32>(packet: P) -> Verdict {
    let Some(parsed) = parse_plain::<P, F>(&packet, ETHERNET, F::PROTOCOL) else {
        return UNTOUCHED;
    };
    let address = &parsed.key.destination;
    let is_ours = vip::may_be_vip::<F>(address) && vip::kinds::<F>(address) != 0;
    if !is_ours || !family::may_answer::<P, F>(&packet, &parsed) {
        return UNTOUCHED;
    }
    if SIDE == Side::Uplink as u32 && vip::is_closed::<F>(&parsed.key) {
        return Verdict::Drop(Reason::SourceRefused);
    }
    reflect::<P, F>(&packet, &parsed).map_or(NO_ROOM, |()| Verdict::Bounce(Reason::Echo))
}

#[inline(always)]
fn reflect<P: Packet, F: Icmp>(packet: &P, parsed: &Parsed<F::Address>) -> Option<()> {
    ethernet::swap_ethernet(packet)?;
    let (source, destination) = (&parsed.key.source, &parsed.key.destination);
    F::write_addresses(packet, ETHERNET, destination, source, Difference::default())?;
    F::renew_hop_limit(packet)?;
    packet.update::<IcmpHeader>(ETHERNET + F::HEADER, |header| {
        let change = Difference::default()
            .half(u16::from_ne_bytes([F::ECHO_REQUEST, 0]), u16::from_ne_bytes([F::ECHO_REPLY, 0]));
        header.kind = F::ECHO_REPLY;
        header.checksum = change.apply(header.checksum);
    })
}
