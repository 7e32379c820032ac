//! Packets that the kernel drops: what the program on its tracepoint is told, and what it tells.
//!
//! The program is no part of the data plane. `millrace monitor --kernel` loads it and takes it away again.

use crate::layout::shared;

/// 64-bit words of a captured packet.
pub const CAPTURED_WORDS: usize = 16;
/// 64-bit words of the name of a function, with its ending zero.
pub const FUNCTION_WORDS: usize = 8;
/// The least number of entries of PLACES.
pub const PLACES: usize = 1 << 16;
/// Bytes of the ring of drops, a power of two.
pub const RING_BYTES: usize = 1 << 20;
/// What our programs leave in the last word of a packet's `cb` (control buffer) that they let TC drop. They have
/// told of it already.
pub const TOLD_ALREADY: u32 = 0x4d69_6c6c;
/// The place of that word among those of `cb` that TC programs write.
pub const TOLD_ALREADY_WORD: usize = 4;

shared! {
    /// Read-only settings of the program. An offset is in bytes, from the description of the kernel's types (BTF).
    pub struct KernelDropSettings {
        /// Of `sk_buff.head`.
        pub head: u32,
        /// Of `sk_buff.network_header`.
        pub network_header: u32,
        /// Of `sk_buff.tail`.
        pub tail: u32,
        /// Of `sk_buff.mark`.
        pub mark: u32,
        /// Of `sk_buff.skb_iif`.
        pub arrived_by: u32,
        /// Of `sk_buff.dev`.
        pub device: u32,
        /// Of the word of `sk_buff.cb` that has TOLD_ALREADY in a packet that our own programs dropped.
        pub told_already: u32,
        /// Of `net_device.ifindex`.
        pub index: u32,
        /// Of `net_device.nd_net`.
        pub namespace: u32,
        /// Of `net.ns.inum`.
        pub inode: u32,
        /// The mark of packets that the programs pass to the stack.
        pub mark_value: u32,
        /// The bits of the mark that count; 0 = no packet is told for its mark.
        pub mark_mask: u32,
        /// Reasons below this number are no drops.
        pub first_reason: u32,
        /// Drops a second that each CPU tells at most.
        pub rate: u32,
    }

    /// Key of PLACES: a frontend or a backend.
    #[derive(PartialOrd, Ord)]
    pub struct Place {
        /// The address, v4-mapped; zeros for a node port, which each address of the node has.
        pub address: [u32; 4],
        /// The port, network byte order; 0 for packets without ports.
        pub port: u16,
        /// Protocol number; 0 for packets without ports.
        pub protocol: u16,
    }

    /// A packet that the kernel dropped.
    pub struct KernelDrop {
        /// Monotonic nanoseconds (CLOCK_MONOTONIC).
        pub at: u64,
        /// Number in the kernel's `enum skb_drop_reason`.
        pub reason: u32,
        /// The value in PLACES; 0 if only the mark is ours.
        pub place: u32,
        /// Index of the device that the packet came in by, or else leaves by; 0 if it has none.
        pub device: u32,
        /// Inode of the network namespace of the device; 0 if it has none.
        pub namespace: u32,
        /// Bytes in `packet`.
        pub captured: u32,
        /// Zero.
        pub reserved: u32,
        /// Name of the function that dropped it, ending in a zero.
        pub function: [u64; FUNCTION_WORDS],
        /// The beginning of the packet, from its IP header on.
        pub packet: [u64; CAPTURED_WORDS],
    }

    /// Value of TOLD, one for each CPU.
    pub struct Told {
        /// Drops left out: more than the rate, or than the ring has room for.
        pub lost: u64,
        /// The second that `used` belongs to.
        pub second: u32,
        /// Drops told in that second.
        pub used: u32,
    }
}
