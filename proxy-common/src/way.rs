//! WAYS and PEERS: how other nodes are reached, and who may send us encapsulated packets.

use crate::layout::shared;

/// Flag of [`Way`]: device, MAC addresses and MTU are known; the packet can be sent without a FIB lookup.
pub const WAY_RESOLVED: u16 = 1 << 0;
/// Flag of [`Way`]: the device has native XDP, so a frame may be transmitted or redirected from XDP.
pub const WAY_XDP: u16 = 1 << 1;
/// Flag of [`Way`]: target and source are IPv4 (outer header IPv4), else IPv6.
pub const WAY_IPV4: u16 = 1 << 2;
/// Flag of [`Way`]: the way is in use; an entry without it is no way at all.
pub const WAY_VALID: u16 = 1 << 3;

/// UDP destination port of packets that are encapsulated in UDP (FoU).
pub const FOU_PORT: u16 = 5555;

shared! {
    /// Value of WAYS. Written with `WAY_RESOLVED` clear first, then whole, then set; a program that reads in the
    /// middle of it may send a frame to the old next hop's address on the new device.
    pub struct Way {
        /// Outer destination: the backend's node, v4-mapped for IPv4.
        pub target: [u32; 4],
        /// Preferred source address of the route, v4-mapped for IPv4: outer source, and source of SNAT.
        pub source: [u32; 4],
        /// Device the frame leaves through.
        pub device: u32,
        /// Bytes an IP packet may have on this way, outer header included; 0 = there is no route.
        pub mtu: u16,
        /// `WAY_*` bits.
        pub flags: u16,
        /// MAC address of the next hop.
        pub destination_mac: [u8; 6],
        /// MAC address of the device.
        pub source_mac: [u8; 6],
    }
}

/// Bit of a PEERS value: a node of the cluster; may send us encapsulated packets.
pub const PEER_NODE: u32 = 1 << 0;
/// Bit of a PEERS value: an address of this node; encapsulated packets to it are for us.
pub const PEER_SELF: u32 = 1 << 1;

/// From this bit on, a PEERS value says which way leads to the address; 0 = none.
pub const PEER_WAY_SHIFT: u32 = 8;

/// Seconds for which a way's MTU stays lower once a router has said so: those of Linux' own `mtu_expires`.
pub const NARROWED_SECONDS: u32 = 600;
/// The same where the router quoted too little of the packet to tell that this node sent it.
pub const DOUBTED_SECONDS: u32 = 60;

/// Value of NARROWED, one word: what a router said of a way, until when, and what the MTU was before. 0 = nobody said anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Narrowing(pub u64);

impl Narrowing {
    /// `until` a monotonic second the MTU is this, and then its `former` again.
    #[must_use]
    pub const fn new(until: u32, mtu: u16, former: u16) -> Self {
        Self((until as u64) << 32 | (mtu as u64) << 16 | former as u64)
    }

    /// Whether nobody said anything.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The monotonic second until which it holds.
    #[must_use]
    pub const fn until(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The MTU while it holds.
    #[must_use]
    pub const fn mtu(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The MTU before.
    #[must_use]
    pub const fn former(self) -> u16 {
        self.0 as u16
    }
}

shared! {
    /// Key of PEERS; the value is a set of `PEER_*` bits, and above them the way's id.
    pub struct PeerKey {
        /// A node's address, v4-mapped for IPv4.
        pub address: [u32; 4],
    }
}
