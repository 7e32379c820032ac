//! Packets that are cut in two. A run leaves the second part.

use crate::oracle::Done;
use crate::packet::{ETHERNET, Packet, residue};

const HEADER: usize = 20;

/// Returns whether the program may and can cut the packet: IPv4 without options and without DF.
pub fn is_divisible(done: &Done<'_>, packet: &Packet) -> bool {
    packet.is_plain && may_be_cut(done, packet)
}

/// Returns whether a router may cut the packet.
pub fn may_be_cut(done: &Done<'_>, packet: &Packet) -> bool {
    !packet.is_v6() && done.before[ETHERNET + 6] & 0x40 == 0
}

/// Returns whether the frame is the rest of the packet, behind a first part of at most `room`
/// bytes. Its header checksum is as right or wrong as before.
pub fn is_rest(done: &Done<'_>, packet: &Packet, room: usize) -> bool {
    let kept = room.saturating_sub(HEADER) / 8 * 8;
    let end = ETHERNET + packet.length;
    if !is_divisible(done, packet) || done.after.len() < ETHERNET + HEADER || HEADER + kept >= packet.length {
        return false;
    }
    let mut expected =
        [&done.before[..ETHERNET + HEADER], &done.before[ETHERNET + HEADER + kept..end]].concat();
    let (length, offset) = ((packet.length - kept) as u16, (kept / 8) as u16);
    expected[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&length.to_be_bytes());
    let field = u16::from_be_bytes([done.before[ETHERNET + 6], done.before[ETHERNET + 7]]);
    expected[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&field.wrapping_add(offset).to_be_bytes());
    let checksum = ETHERNET + 10..ETHERNET + 12;
    expected[checksum.clone()].copy_from_slice(&done.after[checksum]);
    let sum = |frame: &[u8]| residue(&frame[ETHERNET..ETHERNET + HEADER]);
    expected == done.after && sum(done.before) == sum(done.after)
}
