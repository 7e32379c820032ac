//! Changes to Ethernet headers.

use crate::packet::Packet;

/// Sends the frame back to the neighbour it came from.
#[inline(always)]
pub fn swap_ethernet<P: Packet>(packet: &P) -> Option<()> {
    let addresses = packet.ethernet()?.cast::<[u16; 6]>();
    // SAFETY: `at` checked the bound, and the addresses come first in the header.
    unsafe {
        let [to0, to1, to2, from0, from1, from2] = *addresses;
        *addresses = [from0, from1, from2, to0, to1, to2];
    }
    Some(())
}
