//! Ethernet addresses.

use crate::header::Mac;
use crate::packet::Packet;

/// The address of all devices.
pub const BROADCAST: Mac = [0xffff; 3];

/// A MAC address from its number.
#[inline(always)]
pub const fn mac_of(number: u64) -> Mac {
    [(number as u16).to_le(), ((number >> 16) as u16).to_le(), ((number >> 32) as u16).to_le()]
}

/// Whether an address is for a group: broadcast, multicast.
#[inline(always)]
pub const fn is_group(mac: Mac) -> bool {
    let [start, ..] = mac;
    let [first, _] = start.to_ne_bytes();
    first & 1 != 0
}

/// Reads destination and source address.
#[inline(always)]
pub fn read_macs<P: Packet>(packet: &P) -> Option<(Mac, Mac)> {
    let addresses = packet.ethernet()?.cast::<[u16; 6]>();
    // SAFETY: `at` checked the bound, and the addresses come first in the header.
    let [to0, to1, to2, from0, from1, from2] = unsafe { *addresses };
    Some(([to0, to1, to2], [from0, from1, from2]))
}

/// Writes destination and source address.
#[inline(always)]
pub fn write_macs<P: Packet>(packet: &P, to: Mac, from: Mac) -> Option<()> {
    let addresses = packet.ethernet()?.cast::<[u16; 6]>();
    let ([to0, to1, to2], [from0, from1, from2]) = (to, from);
    // SAFETY: as above.
    unsafe { *addresses = [to0, to1, to2, from0, from1, from2] };
    Some(())
}

/// Writes a header.
#[inline(always)]
pub fn write_header<P: Packet>(packet: &P, to: Mac, from: Mac, ether_type: u16) -> Option<()> {
    write_macs(packet, to, from)?;
    let ethernet = packet.ethernet()?;
    // SAFETY: `at` checked the bound.
    unsafe { (*ethernet).ether_type = ether_type };
    Some(())
}

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
