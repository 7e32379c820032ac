//! HOPS4/6 and DEVICES: how packets leave for backends on other nodes (SNAT).
//!
//! WAYS lead to nodes. A translated packet goes to the backend's own address, whose route may be another one: an overlay's,
//! a pod network's. The programs ask the FIB and keep the answer for a second.

use crate::layout::shared;

/// Flag of [`Hop`]: the next hop's MAC address is known.
pub const HOP_NEIGHBOUR: u16 = 1 << 0;
/// Flag of [`Hop`]: the device has native XDP, so a frame may be sent there from XDP.
pub const HOP_XDP: u16 = 1 << 1;

/// Seconds for which a hop is believed.
pub const HOP_SECONDS: u32 = 1;

shared! {
    /// Value of HOPS4/6, by backend id. Written by the programs: `backend` is cleared first and set last, so that a hop
    /// that is being changed is nobody's.
    pub struct Hop<A> {
        /// Source address for what is translated.
        pub source: A,
        /// [`BackendRef`](crate::selection::BackendRef) of the backend it leads to: ids are used again.
        pub backend: u32,
        /// Monotonic seconds when the FIB was asked.
        pub asked: u32,
        /// Device the frame leaves through.
        pub device: u32,
        /// Bytes an IP packet may have.
        pub mtu: u16,
        /// `HOP_*` bits.
        pub flags: u16,
        /// MAC address of the next hop.
        pub destination_mac: [u8; 6],
        /// MAC address of the device.
        pub source_mac: [u8; 6],
    }
}

/// Flag of [`Device`]: it has native XDP, so a frame may be transmitted or redirected to it from XDP.
pub const DEVICE_XDP: u32 = 1 << 0;

shared! {
    /// Value of DEVICES, by interface index: the devices whose incoming packets our programs see. Written by the agent.
    pub struct Device {
        /// Source of what is translated and leaves here, where the kernel can't say: zero = none.
        pub source4: [u32; 1],
        /// The same for IPv6.
        pub source6: [u32; 4],
        /// `DEVICE_*` bits.
        pub flags: u32,
    }
}
