//! A packet as XDP and TC see it: one trait, so that balancing and translation exist once.

pub mod buffer;
pub mod capture;
pub mod encap;
pub mod ethernet;
pub mod findings;
pub mod gso;
pub mod ip;
pub mod parsed;
pub mod sctp;
pub mod shape;
pub mod tc;
pub mod xdp;

use core::ffi::c_void;

use proxy_common::checksum::Difference;

use crate::header::{Ethernet, Ports, Wire};
use crate::maps::family::Family;
pub use parsed::{Parsed, Transport};

/// Bytes that hold all headers that the programs look at: Ethernet, two IP headers with options, TCP.
pub const MOST_HEADERS: usize = 192;

/// Words that one call copies in and out of a frame.
pub const CHUNK_WORDS: usize = 32;
/// Room for [`Packet::load`] and [`Packet::store`].
pub type Chunk = [u32; CHUNK_WORDS];

/// A length of 1 to 128 bytes, in a form that the verifier can bound.
#[inline(always)]
fn chunk_length(bytes: usize) -> u32 {
    const LAST: usize = CHUNK_WORDS * size_of::<u32>() - 1;
    // The compiler must not merge this with the bounds it knows, which the verifier has lost.
    (core::hint::black_box(bytes.wrapping_sub(1)) & LAST) as u32 + 1
}

/// The kernel refused to change the frame.
pub struct Refused;

/// Calls `FUNCTION::<P, FAMILY>` by the EtherType of a packet; gives `OTHERWISE` for any that is not IP.
macro_rules! by_ether_type {
    ($packet:ident, $function:ident($($argument:expr),*) else $otherwise:expr) => {
        match $packet.ether_type() {
            $crate::header::ether_type::IPV4 => $function::<P, $crate::maps::v4::V4>($($argument),*),
            $crate::header::ether_type::IPV6 => $function::<P, $crate::maps::v6::V6>($($argument),*),
            _ => $otherwise,
        }
    };
}
pub(crate) use by_ether_type;

/// The carrier of a packet. Code that differs by more than an access matches on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An XDP buffer.
    Xdp,
    /// A socket buffer that begins with an Ethernet header.
    Framed,
    /// A socket buffer that begins with an IP header.
    Bare,
}

/// Access to a frame, and to the few operations in which XDP and TC differ.
///
/// Pointers die whenever the frame changes its size or is pulled. The programs therefore hold headers as
/// offsets and look them up again with [`Packet::at`], the only pointer arithmetic. [`Packet::read`] and its
/// neighbours read and write headers.
///
/// Offsets are those in a frame with an Ethernet header, also if the frame has none.
pub trait Packet: Copy {
    /// The carrier of the packet.
    const KIND: Kind;

    /// Address of the first byte.
    fn start(&self) -> usize;
    /// Address behind the last byte that can be accessed directly.
    fn end(&self) -> usize;
    /// Bytes of the frame as it came in; of a multi-buffer frame in XDP, of its first buffer.
    fn length(&self) -> u32;
    /// The program's context, for helpers that take it.
    fn context(&self) -> *mut c_void;
    /// Index of the device the frame came in or leaves by.
    fn device(&self) -> u32;
    /// Index of the device a forwarded frame came in by; zero for one of this node's own, and in XDP.
    fn came_in_by(&self) -> u32;

    /// Whether the kernel may take the frame for another node's. XDP sees it before the kernel has looked.
    fn may_be_for_another_mac(&self) -> bool;
    /// Prepares to pass the frame up translated, or refuses. A refusal leaves the frame unchanged.
    fn claim_delivery(&mut self) -> Result<(), Refused>;
    /// Whether a frame can be sent through `WAY_XDP` ways only, without the kernel's help for the neighbour.
    fn needs_xdp_way(&self) -> bool;
    /// Marks a frame that was encapsulated here, for `tc_egress`; XDP's does not pass it.
    fn mark_tunnel(&self);
    /// Whether a frame that leaves was encapsulated here, or forwarded for another node.
    ///
    /// It came in by an uplink, and carries our mark, or its `source` may send us tunnels. The mark alone
    /// proves nothing: sockets and macvlan devices can set it.
    fn is_trusted<F: Family>(&self, source: &F::Address) -> bool;
    /// Whether the frame is cut up into segments later, whose data behind a UDP header may differ.
    fn has_segments(&self) -> bool;
    /// Whether the whole frame has so many bytes.
    fn has_bytes(&self, bytes: u32) -> bool;
    /// Makes the first `bytes` bytes accessible, as far as the frame has them. All pointers die.
    fn pull(&self, bytes: usize);
    /// The ports of an SCTP header, and the type of the chunk behind it.
    fn read_sctp(&self, offset: usize) -> Option<(Ports, u8)>;
    /// Bytes of an IP packet whose header says `claimed`, which is zero for one of more than 65535.
    fn network_length(&self, claimed: u32, network: usize) -> u32;
    /// Makes room for an outer IP header, or one and UDP's, of `outer` bytes.
    ///
    /// The room is behind the Ethernet header, which keeps its place at the front. Its content is undefined.
    fn push_outer(&mut self, transport: Transport, outer: usize) -> Result<(), Refused>;
    /// Takes the outer IP header away; the Ethernet header stays in front, with the type `inner_type`.
    fn pop_outer(&mut self, outer: usize, outer_type: u16, inner_type: u16) -> Result<(), Refused>;
    /// Copies 1 to 128 bytes out of the frame.
    fn load(&self, offset: usize, to: &mut Chunk, bytes: usize) -> Result<(), Refused>;
    /// Copies 1 to 128 bytes into the frame. All pointers die.
    fn store(&self, offset: usize, from: &Chunk, bytes: usize) -> Result<(), Refused>;
    /// Gives the frame another length, or the same.
    ///
    /// Its content is undefined afterwards. The kernel forgets a checksum over the whole frame, but not one that
    /// hardware is to complete.
    fn set_length(&mut self, bytes: usize) -> Result<(), Refused>;
    /// Gives the frame another length.
    ///
    /// Its content is undefined afterwards, and the kernel's knowledge of checksums and segments is lost.
    /// `transport` is the place of the transport header now.
    fn resize(&mut self, bytes: usize, transport: Transport) -> Result<(), Refused>;
    /// Bytes of the largest packet that leaves after an outer header of `outer` bytes is pushed: a GSO frame
    /// is cut up later.
    fn largest_packet<A>(&self, parsed: &Parsed<A>, outer: usize) -> u32;
    /// Adjusts for changed bytes for which none of the packet's checksums makes up.
    fn adjust_whole_checksum(&self, difference: Difference);
    /// Adjusts for changed addresses in a packet without a transport header, whose checksum would make up for
    /// them. An IPv4 header's own does.
    #[inline(always)]
    fn adjust_for_addresses<F: Family>(&self, addresses: Difference) {
        if !F::HAS_HEADER_CHECKSUM {
            self.adjust_whole_checksum(addresses);
        }
    }
    /// Adjusts a TCP or UDP checksum for changed addresses (pseudo-header) and ports. `sctp` patches SCTP's.
    fn update_transport_checksum<F: Family>(
        &mut self,
        transport: Transport,
        addresses: Difference,
        ports: Difference,
    ) -> Result<(), Refused>;

    /// The place in this frame of an `offset` in a frame with an Ethernet header. A frame without one begins
    /// behind it.
    #[inline(always)]
    fn place(offset: usize) -> usize {
        offset
    }
    /// The Ethernet header. A frame without one has one beside it, for the walks to write to.
    #[inline(always)]
    fn ethernet(&self) -> Option<*mut Ethernet> {
        self.at(0)
    }

    /// The Ethernet addresses, destination first; zeros in a frame without an Ethernet header.
    #[inline(always)]
    fn ethernet_addresses(&self) -> Option<[u32; 3]> {
        // SAFETY: `at` checks the bound.
        self.ethernet().map(|ethernet| unsafe { (*ethernet).addresses })
    }
    /// Writes the Ethernet addresses, destination first.
    #[inline(always)]
    fn write_ethernet_addresses(&self, addresses: [u32; 3]) -> Option<()> {
        let ethernet = self.ethernet()?;
        // SAFETY: `ethernet` checked the bound.
        unsafe { (*ethernet).addresses = addresses };
        Some(())
    }
    /// Writes the Ethernet header.
    #[inline(always)]
    fn write_ethernet(&self, header: Ethernet) -> Option<()> {
        let ethernet = self.ethernet()?;
        // SAFETY: `ethernet` checked the bound.
        unsafe { *ethernet = header };
        Some(())
    }
    /// The EtherType of the frame, zero if it is too short for an Ethernet header.
    #[inline(always)]
    fn ether_type(&self) -> u16 {
        // SAFETY: `at` checks the bound.
        self.ethernet().map_or(0, |ethernet| unsafe { (*ethernet).ether_type })
    }

    /// Reads a `T`, if all of it is there. As for [`Packet::at`], `offset` must be below 65536.
    #[inline(always)]
    fn read<T: Wire>(&self, offset: usize) -> Option<T> {
        // SAFETY: `at` checked the bound, and any bytes are a `T`.
        self.at::<T>(offset).map(|place| unsafe { *place })
    }
    /// Writes a `T`, if there is room for all of it.
    #[inline(always)]
    fn write<T: Wire>(&self, offset: usize, value: T) -> Option<()> {
        let place = self.at::<T>(offset)?;
        // SAFETY: `at` checked the bound.
        unsafe { *place = value };
        Some(())
    }
    /// Changes a `T` in place, if all of it is there. `change` must leave the frame's size alone.
    #[inline(always)]
    fn update<T: Wire>(&self, offset: usize, change: impl FnOnce(&mut T)) -> Option<()> {
        let place = self.at::<T>(offset)?;
        // SAFETY: `at` checked the bound, any bytes are a `T`, and no other code writes the frame meanwhile.
        change(unsafe { &mut *place });
        Some(())
    }

    /// The bytes at `offset` as a `T`, if all of them are there. For the verifier, `offset` must be below
    /// 65536.
    #[inline(always)]
    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let (start, offset) = (self.start(), Self::place(offset));
        if start + offset + size_of::<T>() > self.end() {
            return None;
        }
        Some((start + offset) as *mut T)
    }
}
