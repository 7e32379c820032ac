//! The tuple of a packet: the key of a connection's entry, and the input of the hash that chooses a slot.

use crate::layout::shared;

shared! {
    /// Key of FLOWS4/6: the tuple in the packet when the program meets it.
    pub struct FlowKey<A> {
        /// Source address of the packet.
        pub source: A,
        /// Destination address of the packet.
        pub destination: A,
        /// Source port, network byte order.
        pub source_port: u16,
        /// Destination port, network byte order.
        pub destination_port: u16,
        /// IP protocol number.
        pub protocol: u8,
        /// Zero.
        pub reserved: u8,
        /// Zero.
        pub unused: u16,
    }
}

impl<A: Copy> FlowKey<A> {
    /// Returns the key of the same connection, seen from the other side.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
            reserved: 0,
            unused: 0,
        }
    }
}
