//! Changes to Ethernet headers.

use crate::packet::Packet;

/// Sends the frame back to the neighbour it came from.
#[inline(always)]
pub fn swap_ethernet<P: Packet>(packet: &P) -> Option<()> {
    let ethernet = packet.ethernet()?;
    // SAFETY: `at` checked the bound.
    unsafe {
        let [to0, to1, to2, from0, from1, from2] = (*ethernet).addresses;
        (*ethernet).addresses = [from0, from1, from2, to0, to1, to2];
    }
    Some(())
}
