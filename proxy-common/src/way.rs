//! WAYS, PEERS and NARROWED: the routes to other nodes, the nodes that may send encapsulated
//! packets, and lowered MTUs.

use crate::layout::shared;

/// Flag of [`Way`]: device, MAC addresses and MTU are known, so a packet needs no FIB look-up.
pub const WAY_RESOLVED: u16 = 1 << 0;
/// Flag of [`Way`]: the device has native XDP, so XDP may transmit a frame or redirect one to it.
pub const WAY_XDP: u16 = 1 << 1;
/// Flag of [`Way`]: target and source are IPv4, and so is the outer header. Clear = IPv6.
pub const WAY_IPV4: u16 = 1 << 2;
/// Flag of [`Way`]: the entry is in use. An entry without this flag is none.
pub const WAY_VALID: u16 = 1 << 3;

/// UDP destination port of packets encapsulated in UDP (FoU).
pub const FOU_PORT: u16 = 5555;

shared! {
    /// Value of WAYS: the route to a node.
    ///
    /// The agent first clears `WAY_RESOLVED`, then writes the entry, then sets the flag. A program
    /// that reads in between may send a frame to the old next hop's MAC address on the new device.
    pub struct Way {
        /// Outer destination: the address of the backend's node, v4-mapped for IPv4.
        pub target: [u32; 4],
        /// Preferred source address of the route, v4-mapped for IPv4. It is the outer source, and
        /// the source of SNAT.
        pub source: [u32; 4],
        /// The device that sends the frame.
        pub device: u32,
        /// Largest IP packet in bytes, outer header included. 0 = there is no route.
        pub mtu: u16,
        /// `WAY_*` bits.
        pub flags: u16,
        /// MAC address of the next hop.
        pub destination_mac: [u8; 6],
        /// MAC address of the device.
        pub source_mac: [u8; 6],
    }
}

/// Bit of a PEERS value: the address of a node of the cluster, which may send encapsulated packets.
pub const PEER_NODE: u32 = 1 << 0;
/// Bit of a PEERS value: an address of this node, which receives encapsulated packets.
pub const PEER_SELF: u32 = 1 << 1;

/// The lowest bit of the entry of WAYS that leads to the address. 0 = none.
pub const PEER_WAY_SHIFT: u32 = 8;

/// Seconds for which an MTU stays lowered after a router's message, as Linux' own `mtu_expires`
/// (decision 72).
pub const NARROWED_SECONDS: u32 = 600;
/// The same if the router quoted too little of the packet to show that this node sent it (decision
/// 125).
pub const DOUBTED_SECONDS: u32 = 60;

/// Value of NARROWED: the MTU from a router's message, in one word. 0 = there was no message.
///
/// | Bits | Meaning |
/// |---|---|
/// | 0..16 | the former MTU |
/// | 16..32 | the lowered MTU |
/// | 32..64 | the monotonic second until which it holds |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Narrowing(pub u64);

impl Narrowing {
    /// Packs an MTU that holds until a monotonic second, and the `former` one that returns
    /// afterwards.
    #[must_use]
    pub const fn new(until: u32, mtu: u16, former: u16) -> Self {
        Self((until as u64) << 32 | (mtu as u64) << 16 | former as u64)
    }

    /// Returns whether there was no message.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the monotonic second until which the lowered MTU holds.
    #[must_use]
    pub const fn until(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the lowered MTU.
    #[must_use]
    pub const fn mtu(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Returns the former MTU.
    #[must_use]
    pub const fn former(self) -> u16 {
        self.0 as u16
    }
}

shared! {
    /// Key of PEERS; the value is a set of `PEER_*` bits, and above them an index into WAYS.
    pub struct PeerKey {
        /// The address of a node, v4-mapped for IPv4.
        pub address: [u32; 4],
    }
}
