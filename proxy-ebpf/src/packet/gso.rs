//! Frames that are cut up into segments later (GSO).

use crate::header::{Tcp, Udp, protocol};

/// Segments that are buffers of their own (SCTP's), behind one that holds the headers.
///
/// The bytes pulled out of them are missing when the frame is cut up, and the kernel stops with a bug (6.12,
/// `skb_segment`).
pub const GSO_BY_FRAGS: u32 = 0xffff;

/// Bytes of the largest packet that a frame leaves as: of `length` bytes, or cut up into segments, behind
/// `headers` bytes and `outer` bytes more.
#[inline(always)]
pub fn largest_packet(segment: u32, protocol: u32, length: u32, headers: u32, outer: u32) -> u32 {
    largest_segment(segment, protocol, length, headers, outer)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn largest_segment(segment: u32, protocol: u32, length: u32, headers: u32, outer: u32) -> u32 {
    const TCP: u32 = protocol::TCP as u32;
    match (segment, protocol) {
        (0, _) => length.wrapping_add(outer),
        // The segments shrink by the outer header.
        (_, TCP) => segment.wrapping_add(headers).wrapping_add(size_of::<Tcp>() as u32),
        // The sender sized each segment for its own path, and programs can't see that size.
        (GSO_BY_FRAGS, _) => headers.wrapping_add(outer),
        (_, _) => segment.wrapping_add(headers).wrapping_add(size_of::<Udp>() as u32).wrapping_add(outer),
    }
}
