//! SCTP's own: chunks instead of TCP's flags, and a CRC as its checksum.

use proxy_common::checksum::Difference;
use proxy_common::sctp::{self, ABORT, INIT, INIT_ACK, SHUTDOWN_ACK, SHUTDOWN_COMPLETE};

use crate::header::{Ports, Sctp, tcp_flag};
use crate::maps::family::Family;
use crate::packet::{Packet, Parsed};

/// The flags by chunk type.
///
/// INIT, INIT ACK and SHUTDOWN COMPLETE are alone in their packets (RFC 9260, section 6.10). An ABORT behind
/// other chunks is not seen: such an association ends by its time-out.
#[expect(
    clippy::indexing_slicing,
    reason = "chunk types are bytes, each an index into a table of 256 entries"
)]
static FLAGS: [u8; 256] = {
    let mut flags = [tcp_flag::ACK; 256];
    flags[INIT as usize] = tcp_flag::SYN;
    flags[INIT_ACK as usize] = tcp_flag::SYN | tcp_flag::ACK;
    flags[ABORT as usize] = tcp_flag::RST;
    // Not an end, since it is still to be answered. A director sees nothing after it of a client whose
    // backend began to shut down.
    flags[SHUTDOWN_ACK as usize] = tcp_flag::FIN | tcp_flag::ACK;
    flags[SHUTDOWN_COMPLETE as usize] = tcp_flag::RST;
    flags
};

/// The TCP flags with the meaning of a packet's first chunk.
///
/// They come from a table: the verifier would otherwise follow each value through the whole walk.
#[expect(clippy::indexing_slicing, reason = "a byte is an index into a table of 256 entries")]
#[inline(always)]
pub fn tcp_flags(chunk: u8) -> u8 {
    FLAGS[chunk as usize]
}

/// Updates the checksum after a change of ports. It covers no address.
///
/// A checksum of zero stays. Hardware or the kernel fills it in later (`CHECKSUM_PARTIAL`, which no program
/// can see, but which begins with zero), or there is none (RFC 9653). One in four billion was computed as
/// zero; its packet is lost.
#[inline(always)]
pub fn update_checksum<P: Packet, F: Family>(
    packet: &P,
    parsed: &Parsed<F::Address>,
    addresses: Difference,
    new: Ports,
) -> Option<()> {
    let old = Ports { source: parsed.key.source_port, destination: parsed.key.destination_port };
    let difference = new.as_word() ^ old.as_word();
    let covered = if F::HAS_HEADER_CHECKSUM { Difference::default() } else { addresses };
    let header = packet.at::<Sctp>(parsed.transport().offset())?;
    let bytes = parsed.length.wrapping_sub(parsed.payload.wrapping_sub(parsed.network));
    // SAFETY: `at` checked the bound.
    let checksum = unsafe { (*header).checksum };
    let patched = sctp_checksum(checksum, difference, bytes);
    // SAFETY: as above.
    unsafe { (*header).checksum = patched };
    packet.adjust_whole_checksum(covered.word(old.as_word(), new.as_word()).word(checksum, patched));
    Some(())
}

/// The checksum of an SCTP packet of `bytes` bytes after its ports have changed by `difference` (XOR); see
/// [`update_checksum`].
#[inline(always)]
pub fn sctp_checksum(old: u32, difference: u32, bytes: u32) -> u32 {
    patch_crc(old, difference, bytes)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn patch_crc(old: u32, difference: u32, bytes: u32) -> u32 {
    if old == 0 || difference == 0 { old } else { old ^ sctp::checksum_difference(difference, bytes) }
}
