//! HOPS4/6 and DEVICES: how SNAT packets leave for backends on other nodes.
//!
//! WAYS has the routes to nodes. A translated packet goes to the backend's own address instead. The
//! route to that address may differ, for example on an overlay or a pod network. The programs ask
//! the FIB for it and keep the answer for a second (decision 52).

use crate::layout::shared;

/// Flag of [`Hop`]: the next hop's MAC address is known.
pub const HOP_NEIGHBOUR: u16 = 1 << 0;
/// Flag of [`Hop`]: the device has native XDP, so XDP may send a frame there.
pub const HOP_XDP: u16 = 1 << 1;

/// Seconds for which the programs believe a hop.
pub const HOP_SECONDS: u32 = 1;

shared! {
    /// Value of HOPS4/6, by backend id. The programs write it.
    ///
    /// They clear `backend` first and set it last. A hop that is being changed therefore belongs to
    /// no backend.
    pub struct Hop<A> {
        /// Source address of translated packets.
        pub source: A,
        /// [`BackendRef`](crate::selection::BackendRef) of the backend that the hop leads to,
        /// because ids are used again.
        pub backend: u32,
        /// Monotonic second at which a program asked the FIB.
        pub asked: u32,
        /// The device that sends the frame.
        pub device: u32,
        /// Largest IP packet in bytes.
        pub mtu: u16,
        /// `HOP_*` bits.
        pub flags: u16,
        /// MAC address of the next hop.
        pub destination_mac: [u8; 6],
        /// MAC address of the device.
        pub source_mac: [u8; 6],
    }
}

/// Flag of [`Device`]: the device has native XDP, so XDP may transmit a frame or redirect one to
/// it.
pub const DEVICE_XDP: u32 = 1 << 0;

shared! {
    /// Value of DEVICES, by interface index: the devices whose incoming packets the programs see.
    /// The agent writes it.
    pub struct Device {
        /// IPv4 source of translated packets that leave by this device, if the FIB does not tell
        /// it. Zero = none.
        pub source4: [u32; 1],
        /// IPv6 source of translated packets, if the FIB does not tell it. Zero = none.
        pub source6: [u32; 4],
        /// `DEVICE_*` bits.
        pub flags: u32,
    }
}
