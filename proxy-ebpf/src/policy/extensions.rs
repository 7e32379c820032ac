//! IPv6 extension headers.

use proxy_common::Addr6;

use crate::header::{
    Extension, FRAGMENT6_MASK, FragmentHeader, OFFSET6_MASK, RoutingHeader, is_extension, protocol,
};
use crate::policy::shape::{Packet, Piece, Unread};
use crate::policy::skb::Skb;

/// The most headers that the programs follow.
const MOST: usize = 6;
/// As [`SECOND4`](crate::policy::family), in [`FragmentHeader::offset`].
const SECOND6: u16 = (1_u16 << 3).to_be();

/// Steps over the headers in front of the transport header.
///
/// An authentication header counts as a protocol without ports: nothing shows whether the receiver believes it.
#[inline(never)]
pub fn step_over(skb: Skb, packet: &mut Packet<Addr6>) -> Result<(), Unread> {
    for _ in 0..MOST {
        if !is_extension(packet.key.protocol as u8) || packet.piece == Piece::Later {
            return Ok(());
        }
        step(skb, packet)?;
    }
    let is_done = !is_extension(packet.key.protocol as u8) || packet.piece == Piece::Later;
    if is_done { Ok(()) } else { Err(Unread::Hidden) }
}

#[inline(always)]
fn step(skb: Skb, packet: &mut Packet<Addr6>) -> Result<(), Unread> {
    let header = skb.load::<Extension>(packet.transport).ok_or(Unread::Transport)?;
    let length = match packet.key.protocol as u8 {
        protocol::FRAGMENT => read_fragment(skb, packet)?,
        protocol::ROUTING => {
            let routing = skb.load::<RoutingHeader>(packet.transport).ok_or(Unread::Transport)?;
            // The destination is only the next stop.
            if routing.segments_left != 0 {
                return Err(Unread::Transport);
            }
            (u32::from(header.length) + 1) << 3
        }
        _ => (u32::from(header.length) + 1) << 3,
    };
    packet.transport = packet.transport.wrapping_add(length);
    packet.key.protocol = header.next_header.into();
    if packet.transport <= packet.end { Ok(()) } else { Err(Unread::Transport) }
}

/// A fragment header around a whole packet (RFC 6946) adds nothing.
#[inline(always)]
fn read_fragment(skb: Skb, packet: &mut Packet<Addr6>) -> Result<u32, Unread> {
    let header = skb.load::<FragmentHeader>(packet.transport).ok_or(Unread::Transport)?;
    // A fragment of a fragment, which no sender makes.
    if packet.piece != Piece::Whole || header.offset & OFFSET6_MASK == SECOND6 {
        return Err(Unread::Transport);
    }
    packet.piece = if header.offset & FRAGMENT6_MASK == 0 {
        Piece::Whole
    } else if header.offset & OFFSET6_MASK == 0 {
        Piece::First
    } else {
        Piece::Later
    };
    packet.id = header.identification;
    Ok(size_of::<FragmentHeader>() as u32)
}
