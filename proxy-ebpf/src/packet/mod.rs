//! A packet as XDP and TC see it: one trait, so that balancing and translation exist once.

pub mod header;
pub mod parse;
mod tc;
mod xdp;

use core::ffi::c_void;

use proxy_common::checksum::Difference;

pub use parse::{Parsed, Transport};
pub use tc::TcPacket;
pub use xdp::XdpPacket;

/// The kernel refused to change the frame.
pub struct Refused;

/// Access to a frame and to the few operations in which XDP and TC differ.
///
/// Pointers die whenever the frame changes its size or is pulled, so headers are held as offsets and looked up
/// again with [`Packet::at`], the only pointer arithmetic there is.
pub trait Packet: Copy {
    /// Address of the first byte.
    fn start(&self) -> usize;
    /// Address behind the last byte that can be accessed directly.
    fn end(&self) -> usize;
    /// Bytes of the whole frame as it came in.
    fn length(&self) -> u32;
    /// The program's context, for helpers that take it.
    fn context(&self) -> *mut c_void;
    /// Index of the device the frame came in or leaves by.
    fn device(&self) -> u32;

    /// Gets ready to pass the frame up translated, or says that this program can't. Nothing was changed then.
    fn claim_delivery(&mut self) -> Result<(), Refused>;
    /// Whether a frame can be sent through `WAY_XDP` ways only, without the kernel's help for the neighbour.
    fn needs_xdp_way(&self) -> bool;
    /// Makes room for an outer IP header of `OUTER` bytes behind the Ethernet header, which keeps its place at the
    /// front; its content is undefined in XDP.
    fn push_outer(&mut self, outer: usize) -> Result<(), Refused>;
    /// Bytes of the largest IP packet that will leave, for a packet of `length` bytes: a GSO frame is cut up later.
    fn largest_packet(&self, length: u32) -> u32;
    /// Takes the outer IP header away; the Ethernet header stays in front, with the type `ether_type`.
    fn pop_outer(&mut self, outer: usize, ether_type: u16) -> Result<(), Refused>;
    /// Adjusts a TCP or UDP checksum for changed addresses (pseudo-header) and ports.
    fn update_transport_checksum(
        &mut self,
        transport: Transport,
        addresses: Difference,
        ports: Difference,
    ) -> Result<(), Refused>;

    /// The bytes at `offset` as a `T`, if all of them are there. `offset` must be below 65536 for the verifier.
    #[inline(always)]
    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let start = self.start();
        if start + offset + size_of::<T>() > self.end() {
            return None;
        }
        Some((start + offset) as *mut T)
    }
}
