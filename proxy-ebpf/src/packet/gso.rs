//! Frames that are cut up into segments later (GSO).

use crate::header::{Tcp, Udp, protocol};

/// Segments that are buffers of their own (SCTP's), behind one that holds the headers. What is pulled out of them is missing
/// when the frame is cut up, and the kernel stops with a bug (6.12, `skb_segment`).
pub const GSO_BY_FRAGS: u32 = 0xffff;

/// Bytes of the largest packet that a frame will leave as: of `length` bytes, or cut up into segments, behind `headers` bytes and
/// `outer` bytes more.
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
        // The segments give up what the outer header takes.
        (_, TCP) => segment.wrapping_add(headers).wrapping_add(size_of::<Tcp>() as u32),
        // Each as large as its sender found fit for its own path; programs can't see how large.
        (GSO_BY_FRAGS, _) => headers.wrapping_add(outer),
        (_, _) => segment.wrapping_add(headers).wrapping_add(size_of::<Udp>() as u32).wrapping_add(outer),
    }
}
