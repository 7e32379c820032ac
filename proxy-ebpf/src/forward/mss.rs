//! The largest segment a client may send to a backend it reaches through a tunnel.

use proxy_common::checksum::Difference;

use crate::header::{DATA_OFFSET_MASK, Tcp};
use crate::maps::family::Family;
use crate::packet::{Packet, Transport};

/// The maximum segment size option (RFC 9293, section 3.2), in the first place, where every stack writes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct MaximumSegmentSize {
    kind: u8,
    length: u8,
    size: u16,
}

const KIND: u8 = 2;
const LENGTH: u8 = 4;
/// The size that every host accepts (RFC 9293, section 3.7.1). Smaller sizes stay.
const SMALLEST: u16 = 536;

/// Lowers the segment size in a backend's SYN-ACK by the outer header's bytes: the client's segments come to
/// it encapsulated.
///
/// Returns `None` if the option is missing or the kernel refused.
#[inline(always)]
pub fn clamp<P: Packet, F: Family>(packet: &mut P, transport: Transport, outer: u16) -> Option<()> {
    rewrite::<P, F>(packet, transport, |offered| offered.saturating_sub(outer))
}

/// Lowers the segment size in a backend's SYN-ACK to one that fits IP packets of `mtu` bytes.
///
/// The client's segments take another way than the backend's. Returns `None` as above.
#[inline(always)]
pub fn limit<P: Packet, F: Family>(packet: &mut P, transport: Transport, mtu: u16) -> Option<()> {
    let fitting = mtu.saturating_sub((F::HEADER + size_of::<Tcp>()) as u16);
    rewrite::<P, F>(packet, transport, |offered| if offered < fitting { offered } else { fitting })
}

#[inline(always)]
fn rewrite<P: Packet, F: Family>(
    packet: &mut P,
    transport: Transport,
    change: impl Fn(u16) -> u16,
) -> Option<()> {
    let tcp = packet.read::<Tcp>(transport.offset())?;
    let has_options = tcp.data_offset & DATA_OFFSET_MASK > (size_of::<Tcp>() as u8) << 2;
    let offset = transport.offset() + size_of::<Tcp>();
    packet.pull(offset + size_of::<MaximumSegmentSize>());
    let option = packet.at::<MaximumSegmentSize>(offset)?;
    // SAFETY: `at` checked the bound.
    let old = unsafe { *option };
    let new = change(u16::from_be(old.size)).to_be();
    if !has_options
        || old.kind != KIND
        || old.length != LENGTH
        || u16::from_be(new) < SMALLEST
        || new == old.size
    {
        return None;
    }
    // SAFETY: as above.
    unsafe { (*option).size = new };
    let difference = Difference::default().half(old.size, new);
    packet.update_transport_checksum::<F>(transport, Difference::default(), difference).ok()
}
