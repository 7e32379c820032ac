//! [`Packet`] over a socket buffer: from the stack or a pod as well as off the wire, so checksums may be left to
//! the hardware (`CHECKSUM_PARTIAL`) and a frame may be a chain of segments (GSO).

use core::ffi::c_void;
use core::mem::offset_of;

use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_ADJ_ROOM_DECAP_L3_IPV4, BPF_F_ADJ_ROOM_DECAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
    BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR,
};
use aya_ebpf::helpers::generated::{bpf_l4_csum_replace, bpf_skb_adjust_room, bpf_skb_pull_data};
use aya_ebpf::programs::TcContext;
use proxy_common::checksum::{Difference, fold};
use proxy_common::config::HANDOVER_MAGIC;

use super::header::{self, Ethernet, Ipv4, Tcp, Udp};
use super::{Packet, Refused, Transport};
use crate::config::{MARK_MASK, MARK_VALUE};

/// Bytes that hold any headers we look at: Ethernet, two IPv6 headers with some extensions, TCP.
const LINEAR: u32 = 192;

/// A frame in `tc_ingress` or `tc_egress`.
#[derive(Clone, Copy)]
pub struct TcPacket {
    context: *mut __sk_buff,
    length: u32,
}

impl TcPacket {
    /// Wraps the program's context and makes the headers directly accessible.
    #[inline(always)]
    pub fn new(context: &TcContext) -> Self {
        let length = context.len();
        let packet = Self { context: context.skb.skb, length };
        let wanted = if length < LINEAR { length } else { LINEAR };
        if packet.start() + wanted as usize > packet.end() {
            // A failure leaves less to look at, which `at` finds out.
            // SAFETY: the context is the kernel's; no packet pointer was taken yet.
            unsafe { bpf_skb_pull_data(packet.context, wanted) };
        }
        packet
    }

    /// Whether XDP has translated this frame already; its mark is then set.
    #[inline(always)]
    pub fn take_handover(&mut self) -> bool {
        // SAFETY: the context is valid for the program's run.
        let (meta, data) = unsafe { ((*self.context).data_meta as usize, (*self.context).data as usize) };
        if meta + size_of::<u32>() > data {
            return false;
        }
        // SAFETY: the line above checked that the word lies inside the metadata.
        if unsafe { *(meta as *const u32) } != HANDOVER_MAGIC {
            return false;
        }
        self.mark();
        true
    }

    /// Whether the frame carries our mark: it was served on another device below this one.
    #[inline(always)]
    pub fn is_marked(&self) -> bool {
        let mask = MARK_MASK.load();
        // SAFETY: the context is valid for the program's run.
        mask != 0 && unsafe { (*self.context).mark } & mask == MARK_VALUE.load()
    }

    #[inline(always)]
    fn mark(&mut self) {
        // SAFETY: the context is valid for the program's run.
        unsafe { (*self.context).mark = (*self.context).mark & !MARK_MASK.load() | MARK_VALUE.load() };
    }

    #[inline(always)]
    fn adjust_room(&mut self, delta: i32, flags: u32) -> Result<(), Refused> {
        // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
        match unsafe { bpf_skb_adjust_room(self.context, delta, BPF_ADJ_ROOM_MAC, u64::from(flags)) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }

    /// Adds `difference` to the checksum at `offset`; the helper knows which part the hardware will add.
    #[inline(always)]
    fn replace_checksum(&mut self, offset: u32, difference: Difference, flags: u32) -> Result<(), Refused> {
        let sum = u64::from(fold(difference.0));
        // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
        match unsafe { bpf_l4_csum_replace(self.context, offset, 0, sum, u64::from(flags)) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }
}

impl Packet for TcPacket {
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
        unsafe { (*self.context).ifindex }
    }

    #[inline(always)]
    fn claim_delivery(&mut self) -> Result<(), Refused> {
        self.mark();
        Ok(())
    }
    #[inline(always)]
    fn needs_xdp_way(&self) -> bool {
        false
    }
    #[inline(always)]
    fn push_outer(&mut self, outer: usize) -> Result<(), Refused> {
        // Tells segmentation that what follows is an IP tunnel, and lowers the segments' size by the header's.
        let flags = if outer == size_of::<Ipv4>() {
            BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
        } else {
            BPF_F_ADJ_ROOM_ENCAP_L3_IPV6
        };
        self.adjust_room(outer as i32, flags)
    }
    #[inline(always)]
    fn largest_packet(&self, length: u32) -> u32 {
        // SAFETY: the context is valid for the program's run. Zero = not a GSO frame; where it is one, its segments
        // shrink by what `push_outer` adds.
        if unsafe { (*self.context).gso_size } == 0 { length } else { 0 }
    }
    #[inline(always)]
    fn pop_outer(&mut self, outer: usize, ether_type: u16) -> Result<(), Refused> {
        let flags = match ether_type {
            header::ether_type::IPV4 => BPF_F_ADJ_ROOM_DECAP_L3_IPV4,
            _ => BPF_F_ADJ_ROOM_DECAP_L3_IPV6,
        };
        self.adjust_room(-(outer as i32), flags)?;
        let ethernet = self.at::<Ethernet>(0).ok_or(Refused)?;
        // SAFETY: `at` checked the bound.
        unsafe { (*ethernet).ether_type = ether_type };
        Ok(())
    }
    #[inline(always)]
    fn update_transport_checksum(
        &mut self,
        transport: Transport,
        addresses: Difference,
        ports: Difference,
    ) -> Result<(), Refused> {
        let (offset, flags) = if transport.is_tcp() {
            (transport.offset() + offset_of!(Tcp, checksum), 0)
        } else {
            // A UDP checksum of zero means none and stays; one that becomes zero goes out as 0xffff.
            (transport.offset() + offset_of!(Udp, checksum), BPF_F_MARK_MANGLED_0)
        };
        self.replace_checksum(offset as u32, addresses, flags | BPF_F_PSEUDO_HDR)?;
        if ports.0 != 0 {
            self.replace_checksum(offset as u32, ports, flags)?;
        }
        Ok(())
    }
}
