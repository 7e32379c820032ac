//! ICMP errors that tell the sender of a dropped packet the reason.

use core::ptr;

use aya_ebpf::helpers::generated::bpf_csum_diff;
use proxy_common::addr::Address;
use proxy_common::checksum::fold;
use proxy_common::fragment::Side;
use proxy_common::icmp::SourcePrefix;
use proxy_common::selection::BackendRef;
use proxy_common::verdict::{Program, Reason};
use proxy_common::way::{WAY_IPV4, WAY_VALID};

use super::family::{self, Icmp, Message};
use super::limit;
use crate::header::{ETHERNET, Ethernet, IcmpHeader};
use crate::maps::{self, Buffer};
use crate::packet::ip::Outer;
use crate::packet::{CHUNK_WORDS, Chunk, Kind, Packet, Parsed, capture, ethernet};
use crate::parse::parse;
use crate::select::vip;
use crate::verdict::{BY_HOP, UNTOUCHED, Verdict};

/// Bytes that a quote may have: an IP header with all its options, or with 48 bytes of extension headers, and
/// eight bytes.
pub(super) const MOST_QUOTED: usize = 96;
/// Bytes of the transport header in a quote: the ports, and the number by which TCP finds its segment (RFC
/// 792).
pub(super) const QUOTED_TRANSPORT: usize = 8;
/// Internetwork control (RFC 1812, section 4.3.2.5).
const TRAFFIC_CLASS: u8 = 0xc0;

/// Turns a packet dropped for `reason` into an ICMP error for its sender, which leaves by the device the
/// packet came in by.
///
/// A packet that must not be answered (RFC 1122, section 3.2.2, RFC 4443, section 2.4) is just dropped. The
/// error quotes the IP header and eight bytes. It has 56 bytes with IPv4 and 96 with IPv6, never more than 28
/// or 48 beyond the cause's own headers. It is larger than its cause only if that had less payload: a bare
/// SYN of 40 or 60 bytes.
#[inline(never)]
pub fn answer<P: Packet, F: Icmp, const SIDE: u32>(packet: P, reason: Reason, detail: u32) -> Verdict {
    let Ok(parsed) = parse::<P, F>(&packet, ETHERNET, Side::from_bits(SIDE)) else {
        return Verdict::Drop(reason);
    };
    let is_unknown = matches!(reason, Reason::UnknownPort | Reason::UnknownProtocol);
    if is_unknown && !vip::is_rejecting::<F>(&parsed.key.destination) {
        return UNTOUCHED;
    }
    if is_unknown && SIDE == Side::Uplink as u32 && vip::is_closed::<F>(&parsed.key) {
        return Verdict::Drop(Reason::SourceRefused);
    }
    if parsed.is_later() {
        return Verdict::Drop(reason);
    }
    let program = match (Side::from_bits(SIDE), P::KIND) {
        (Side::Pod, _) => Program::TcPodIn,
        (_, Kind::Xdp) => Program::XdpIngress,
        _ => Program::TcIngress,
    };
    // The answer overwrites the packet.
    capture::record_drop(&packet, program, reason, false);
    let sender = match Side::from_bits(SIDE) {
        Side::Pod => SourcePrefix::of_pod(packet.device()),
        Side::Uplink | Side::Tunnel | Side::Out | Side::Stranger => F::prefix(&parsed.key.source),
    };
    let sender = if matches!(reason, Reason::TooBig) { sender.about_size() } else { sender };
    match build::<P, F>(packet, &parsed, (reason, detail), &sender) {
        Some(()) => Verdict::Bounce(reason),
        None => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn build<P: Packet, F: Icmp>(
    mut packet: P,
    parsed: &Parsed<F::Address>,
    (reason, detail): (Reason, u32),
    sender: &SourcePrefix,
) -> Option<()> {
    let message = F::error(reason, detail)?;
    let key = &parsed.key;
    if !family::may_answer::<P, F>(&packet, parsed) || !limit::admit(sender) {
        return None;
    }
    ethernet::swap_ethernet(&packet)?;
    let addresses = packet.ethernet_addresses()?;
    let quoted = parsed.transport().offset() - ETHERNET + QUOTED_TRANSPORT;
    let quote = room()?;
    *quote = [0; CHUNK_WORDS];
    read(&packet, ETHERNET, quoted, quote)?;
    packet.resize(frame_length::<F>(quoted), parsed.transport()).ok()?;
    let source = if reason == Reason::HopLimit { own_address::<F>(detail) } else { None };
    let ends = (source.unwrap_or(key.destination), key.source);
    write::<P, F>(&packet, addresses, &ends, message, (quote, quoted))
}

/// Room for a quote. On the stack it would leave no room to follow fragments from here.
#[inline(always)]
fn room() -> Option<&'static mut Chunk> {
    const { assert!(size_of::<Chunk>() <= size_of::<Buffer>() && align_of::<Chunk>() <= align_of::<Buffer>()) };
    // SAFETY: this CPU's own, large enough, and used for nothing else until the answer is written.
    maps::BUFFER.get_ptr_mut(0).map(|room| unsafe { &mut *room.cast() })
}

/// The node's address on the way the packet would have taken.
///
/// If the way's family is another, the packet's destination address takes its place.
#[inline(always)]
fn own_address<F: Icmp>(way: u32) -> Option<F::Address> {
    if way & BY_HOP != 0 {
        // SAFETY: the map's memory; a hop that is being written names no backend.
        let hop = unsafe { &*F::hop(way & !BY_HOP)? };
        return (hop.backend != BackendRef::NONE.0).then_some(hop.source);
    }
    let way = maps::WAYS.get(way)?;
    let of_family = way.flags & (WAY_VALID | WAY_IPV4) == WAY_VALID | F::WAY_FLAG;
    of_family.then(|| F::unmap(&way.source))
}

/// Bytes of the frame of a message that quotes `quoted` bytes.
#[inline(always)]
pub(super) const fn frame_length<F: Icmp>(quoted: usize) -> usize {
    ETHERNET + F::HEADER + size_of::<IcmpHeader>() + quoted
}

/// Copies the bytes to quote, unless there are too many.
#[inline(always)]
pub(super) fn read<P: Packet>(packet: &P, from: usize, quoted: usize, quote: &mut Chunk) -> Option<()> {
    if quoted > MOST_QUOTED {
        return None;
    }
    packet.load(from, quote, quoted).ok()
}

/// Writes a frame with a message from the first of `ends` to the second. Words behind the quote are zero.
#[inline(always)]
pub(super) fn write<P: Packet, F: Icmp>(
    packet: &P,
    ethernet_addresses: [u32; 3],
    ends: &(F::Address, F::Address),
    message: Message,
    (quote, quoted): (&Chunk, usize),
) -> Option<()> {
    packet.write_ethernet(Ethernet { addresses: ethernet_addresses, ether_type: F::ETHER_TYPE })?;
    let outer = Outer {
        source: ends.0,
        destination: ends.1,
        protocol: F::PROTOCOL,
        traffic_class: TRAFFIC_CLASS,
        inner_length: (size_of::<IcmpHeader>() + quoted) as u32,
        hint: 0,
    };
    F::write_outer(packet, ETHERNET, &outer)?;
    let Message { kind, code, rest } = message;
    let sum = pseudo_header::<F>(&outer) + u64::from(u16::from_ne_bytes([kind, code])) + u64::from(rest);
    let words = quote.as_ptr().cast_mut();
    // SAFETY: nothing is subtracted, and the buffer is as large as said; the kernel only reads.
    let quote_sum = unsafe { bpf_csum_diff(ptr::null_mut(), 0, words, size_of::<Chunk>() as u32, 0) };
    let sum = sum + (quote_sum.cast_unsigned() & 0xffff_ffff);
    let offset = ETHERNET + F::HEADER;
    packet.store(offset + size_of::<IcmpHeader>(), quote, quoted).ok()?;
    packet.write(offset, IcmpHeader { kind, code, checksum: !fold(sum), rest })
}

#[inline(always)]
fn pseudo_header<F: Icmp>(outer: &Outer<F::Address>) -> u64 {
    if !F::HAS_PSEUDO_HEADER {
        return 0;
    }
    let words = |address: &F::Address| address.words().iter().fold(0, |sum, word| sum + u64::from(*word));
    let sum = words(&outer.source) + words(&outer.destination);
    sum + u64::from(outer.inner_length.to_be()) + u64::from(u32::from(F::PROTOCOL).to_be())
}
