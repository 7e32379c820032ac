//! [`Packet`] over an XDP buffer: off the wire, checksums complete, headers linear.

use core::ffi::c_void;

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::{
    bpf_xdp_adjust_head, bpf_xdp_adjust_meta, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len, bpf_xdp_load_bytes,
    bpf_xdp_store_bytes,
};
use aya_ebpf::programs::XdpContext;
use proxy_common::checksum::Difference;
use proxy_common::config::HANDOVER_MAGIC;

use super::{Chunk, Packet, Parsed, Refused, Transport, chunk_length};
use crate::header::{Ethernet, Ports, SctpStart, Tcp, Udp};
use crate::maps::family::Family;
use crate::packet::Kind;

/// A frame in `xdp_ingress`.
#[derive(Clone, Copy)]
pub struct XdpPacket {
    context: *mut xdp_md,
    /// Bytes of the first buffer, as it came in.
    length: u32,
}

impl XdpPacket {
    /// Wraps the program's context.
    #[inline(always)]
    pub fn new(context: &XdpContext) -> Self {
        Self::of(context.ctx)
    }
    /// As [`XdpPacket::new`], from the kernel's context.
    #[inline(always)]
    pub fn of(context: *mut xdp_md) -> Self {
        // SAFETY: the context is valid for the program's run.
        Self { context, length: unsafe { (*context).data_end - (*context).data } }
    }

    #[inline(always)]
    fn adjust_head(&mut self, delta: i32) -> Result<(), Refused> {
        // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
        if unsafe { bpf_xdp_adjust_head(self.context, delta) } == 0 { Ok(()) } else { Err(Refused) }
    }
}

impl Packet for XdpPacket {
    const KIND: Kind = Kind::Xdp;

    #[inline(always)]
    fn start(&self) -> usize {
        // SAFETY: the context is valid for the program's run.
        unsafe { (*self.context).data as usize }
    }
    #[inline(always)]
    fn end(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.context).data_end as usize }
    }
    #[inline(always)]
    fn length(&self) -> u32 {
        self.length
    }
    #[inline(always)]
    fn context(&self) -> *mut c_void {
        self.context.cast()
    }
    #[inline(always)]
    fn device(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.context).ingress_ifindex }
    }
    #[inline(always)]
    fn came_in_by(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn may_be_for_another_mac(&self) -> bool {
        true
    }

    /// Puts a word in front of the frame that tells `tc_ingress` not to look it up again. Some drivers
    /// refuse.
    #[inline(always)]
    fn claim_delivery(&mut self) -> Result<(), Refused> {
        // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
        if unsafe { bpf_xdp_adjust_meta(self.context, -(size_of::<u32>() as i32)) } != 0 {
            return Err(Refused);
        }
        // SAFETY: as above.
        let (meta, data) = unsafe { ((*self.context).data_meta as usize, (*self.context).data as usize) };
        if meta + size_of::<u32>() > data {
            return Err(Refused);
        }
        // SAFETY: the line above checked that the word lies inside the metadata.
        unsafe { *(meta as *mut u32) = HANDOVER_MAGIC };
        Ok(())
    }
    #[inline(always)]
    fn mark_tunnel(&self) {}
    #[inline(always)]
    fn is_trusted<F: Family>(&self, _source: &F::Address) -> bool {
        false
    }
    #[inline(always)]
    fn has_segments(&self) -> bool {
        false
    }
    #[inline(always)]
    fn needs_xdp_way(&self) -> bool {
        true
    }
    #[inline(always)]
    fn has_bytes(&self, bytes: u32) -> bool {
        // A helper has to count the rest of a multi-buffer frame.
        // SAFETY: the context is valid for the program's run.
        bytes <= self.length || bytes <= unsafe { bpf_xdp_get_buff_len(self.context) as u32 }
    }
    /// Does nothing: a frame with non-linear headers is passed to TC, which can pull.
    #[inline(always)]
    fn pull(&self, _bytes: usize) {}
    #[inline(always)]
    fn read_sctp(&self, offset: usize) -> Option<(Ports, u8)> {
        let start = self.read::<SctpStart>(offset)?;
        Some((start.header.ports, start.chunk))
    }
    #[inline(always)]
    fn network_length(&self, claimed: u32, _network: usize) -> u32 {
        claimed
    }
    #[inline(always)]
    fn push_outer(&mut self, _transport: Transport, outer: usize) -> Result<(), Refused> {
        self.adjust_head(-(outer as i32))
    }
    #[inline(always)]
    fn load(&self, offset: usize, to: &mut Chunk, bytes: usize) -> Result<(), Refused> {
        let bytes = chunk_length(bytes);
        // SAFETY: the context is the kernel's, and the buffer has room for that many bytes.
        match unsafe { bpf_xdp_load_bytes(self.context, offset as u32, to.as_mut_ptr().cast(), bytes) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }
    #[inline(always)]
    fn store(&self, offset: usize, from: &Chunk, bytes: usize) -> Result<(), Refused> {
        let (bytes, from) = (chunk_length(bytes), from.as_ptr().cast_mut().cast());
        // SAFETY: as above; the kernel only reads.
        match unsafe { bpf_xdp_store_bytes(self.context, offset as u32, from, bytes) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }
    /// Shrinks the frame at its end, or lengthens it in front: drivers always have room there, but not
    /// always behind a frame.
    #[inline(always)]
    fn set_length(&mut self, bytes: usize) -> Result<(), Refused> {
        // SAFETY: the context is valid for the program's run.
        let missing = bytes as i32 - unsafe { bpf_xdp_get_buff_len(self.context) } as i32;
        if missing >= 0 {
            return self.adjust_head(-missing);
        }
        // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
        if unsafe { bpf_xdp_adjust_tail(self.context, missing) } == 0 { Ok(()) } else { Err(Refused) }
    }
    #[inline(always)]
    fn resize(&mut self, bytes: usize, _transport: Transport) -> Result<(), Refused> {
        self.set_length(bytes)
    }
    #[inline(always)]
    fn largest_packet<A>(&self, parsed: &Parsed<A>, outer: usize) -> u32 {
        parsed.length + outer as u32
    }
    #[inline(always)]
    fn pop_outer(&mut self, outer: usize, _outer_type: u16, ether_type: u16) -> Result<(), Refused> {
        let old = self.ethernet().ok_or(Refused)?;
        // SAFETY: `at` checked the bound.
        let addresses = unsafe { (*old).addresses };
        self.adjust_head(outer as i32)?;
        let new = self.ethernet().ok_or(Refused)?;
        // SAFETY: `at` checked the bound.
        unsafe { *new = Ethernet { addresses, ether_type } };
        Ok(())
    }
    #[inline(always)]
    fn adjust_whole_checksum(&self, _difference: Difference) {}
    #[inline(always)]
    fn update_transport_checksum<F: Family>(
        &mut self,
        transport: Transport,
        addresses: Difference,
        ports: Difference,
    ) -> Result<(), Refused> {
        let difference = Difference(addresses.0.wrapping_add(ports.0));
        if transport.is_tcp() {
            self.update::<Tcp>(transport.offset(), |tcp| tcp.checksum = difference.apply(tcp.checksum))
                .ok_or(Refused)?;
        } else {
            self.update::<Udp>(transport.offset(), |udp| udp.checksum = difference.apply_udp(udp.checksum))
                .ok_or(Refused)?;
        }
        Ok(())
    }
}
