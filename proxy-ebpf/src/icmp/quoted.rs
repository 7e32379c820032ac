//! Packets with extension headers that `ICMPv6` errors quote: fragments, above all.

use aya_ebpf::bindings::{__sk_buff, xdp_md};

use crate::header::IcmpHeader;
use crate::maps::v6::V6;
use crate::packet::ip::Header;
use crate::packet::shape::{Piece, Preface};
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::packet::{Kind, Packet};

/// Bits of [`read`]'s result that are the protocol; the bits above are the offset.
const PROTOCOL_BITS: u32 = 8;

/// The place and protocol of a quoted packet's transport header behind extension headers.
#[derive(Clone, Copy)]
pub struct Behind {
    pub protocol: u8,
    pub transport: u32,
}

impl Behind {
    /// Reads the headers of the packet at an offset. A later fragment has nothing readable behind them. All
    /// pointers die.
    #[inline(always)]
    pub fn headers_at<P: Packet>(packet: &P, offset: usize) -> Option<Self> {
        // LLVM knows more about the answer than the verifier: it would leave out masks.
        let found = core::hint::black_box(read_bits(packet, offset as u32));
        let behind = Self { protocol: found as u8, transport: found >> PROTOCOL_BITS };
        (behind.transport != 0).then_some(behind)
    }
}

/// The end of the headers of the IPv6 packet quoted at an offset, as a number. All pointers die.
#[inline(always)]
fn read_bits<P: Packet>(packet: &P, offset: u32) -> u32 {
    let context = packet.context();
    match P::KIND {
        Kind::Xdp => read_quoted_by_xdp(context.cast(), offset),
        Kind::Framed => read_quoted_by_tc(context.cast(), offset),
        Kind::Bare => read_quoted_by_bare(context.cast(), offset),
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_quoted_by_xdp(context: *mut xdp_md, offset: u32) -> u32 {
    read(&XdpPacket::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_quoted_by_tc(context: *mut __sk_buff, offset: u32) -> u32 {
    read(&TcPacket::<FRAMED>::of(context), offset)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_quoted_by_bare(context: *mut __sk_buff, offset: u32) -> u32 {
    read(&TcPacket::<BARE>::of(context), offset)
}

/// As [`read_bits`]; zero without a transport header.
#[inline(always)]
fn read<P: Packet>(packet: &P, offset: u32) -> u32 {
    match V6::read_preface(packet, (offset & MAX_OFFSET) as usize) {
        Some(Preface { protocol, payload, piece: Piece::Whole | Piece::First, .. })
            if payload <= MAX_OFFSET =>
        {
            payload << PROTOCOL_BITS | u32::from(protocol)
        }
        _ => 0,
    }
}

/// Offset of the quote in an ICMP message.
pub const QUOTE: usize = size_of::<IcmpHeader>();

/// Highest offset a quoted transport header can have, for the verifier.
pub const MAX_OFFSET: u32 = 255;
