//! ANNOUNCED: the addresses of Services that this node announces on a link. The programs answer ARP requests and
//! Neighbour Solicitations for them.

use crate::layout::shared;

/// The number of entries in ANNOUNCED.
pub const ANNOUNCED_ENTRIES: u32 = 1 << 12;

shared! {
    /// Key of ANNOUNCED. The value is the MAC address for the answers, as
    /// [`mac_number`](crate::device_mac::mac_number) returns it.
    pub struct AnnouncedKey {
        /// The address, v4-mapped for IPv4.
        pub address: [u32; 4],
        /// Index of the device by which the question comes in.
        pub device: u32,
    }
}
