//! [`Packet`] over a socket buffer, from the stack or a pod as well as off the wire.
//!
//! Checksums may be left to the hardware (`CHECKSUM_PARTIAL`), and a frame may be a chain of segments (GSO).

use core::ffi::c_void;
use core::mem::offset_of;

use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_ADJ_ROOM_DECAP_L3_IPV4, BPF_F_ADJ_ROOM_DECAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
    BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L4_UDP, BPF_F_ADJ_ROOM_FIXED_GSO,
    BPF_F_ADJ_ROOM_NO_CSUM_RESET, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR,
};
use aya_ebpf::helpers::generated::{
    bpf_csum_update, bpf_l4_csum_replace, bpf_skb_adjust_room, bpf_skb_change_head, bpf_skb_change_proto,
    bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_pull_data, bpf_skb_store_bytes, bpf_skb_vlan_pop,
};
use aya_ebpf::programs::TcContext;
use proxy_common::checksum::{Difference, fold};
use proxy_common::config::HANDOVER_MAGIC;
use proxy_common::kernel_drop::{TOLD_ALREADY, TOLD_ALREADY_WORD};
use proxy_common::sctp::DATA;

use super::{Chunk, Packet, Parsed, Refused, Transport, chunk_length};
use crate::header::{self, ETHERNET, Ethernet, Ipv4, Ipv6, Ports, Sctp, SctpStart, Tcp, Udp};
use crate::maps::config::{MARK_MASK, MARK_VALUE, TC_DECAP_FLAGS};
use crate::maps::family::Family;
use crate::maps::{self, peers};
use crate::packet::Kind;
use crate::packet::gso::{self, GSO_BY_FRAGS};

/// The folded difference between equal values: minus zero.
const NO_DIFFERENCE: u16 = 0xffff;

/// Segments keep their size, and a checksum found correct stays so.
const KEEP: u32 = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;

/// [`TcPacket`]'s parameter for devices with Ethernet frames.
pub const FRAMED: usize = ETHERNET;
/// The same for devices whose frames are bare IP packets: tunnels, `WireGuard`.
pub const BARE: usize = 0;

/// The largest offset in a bare frame, for the verifier.
const MAX_PLACE: usize = 1023;
/// `pkt_type` of a frame for another MAC address (linux/if_packet.h).
const PACKET_OTHERHOST: u32 = 3;

/// A frame in `tc_ingress` or `tc_egress`, with a link-layer header of `LINK` bytes.
#[derive(Clone, Copy)]
pub struct TcPacket<const LINK: usize> {
    context: *mut __sk_buff,
    length: u32,
}

impl<const LINK: usize> TcPacket<LINK> {
    /// Wraps the program's context.
    #[inline(always)]
    pub fn new(context: &TcContext) -> Self {
        Self::of(context.skb.skb)
    }
    /// As [`TcPacket::new`], from the kernel's context.
    #[inline(always)]
    pub fn of(context: *mut __sk_buff) -> Self {
        // SAFETY: the context is valid for the program's run.
        Self { context, length: unsafe { (*context).len } }
    }

    /// Whether the frame belongs to a VLAN device above this one, which serves it.
    ///
    /// The kernel has taken the tag out of the frame by now. A frame with a priority only (VLAN 0) is this
    /// device's own (IEEE 802.1Q, section 6.8).
    #[inline(always)]
    pub fn is_tagged(&self) -> bool {
        const VLAN: u32 = 0xfff;
        // SAFETY: the context is valid for the program's run.
        unsafe { (*self.context).vlan_present != 0 && (*self.context).vlan_tci & VLAN != 0 }
    }

    /// Removes a priority: it was for the link by which the frame came, not for the one by which it leaves.
    #[inline(always)]
    pub fn drop_priority(&self) {
        // SAFETY: the context is the kernel's; no code looks into the packet afterwards.
        unsafe {
            if (*self.context).vlan_present != 0 {
                bpf_skb_vlan_pop(self.context);
            }
        }
    }

    /// Lets `millrace monitor --kernel` know that the drop of this packet is told already.
    #[inline(always)]
    pub fn set_told(&self) {
        // SAFETY: the context is the kernel's.
        unsafe { (*self.context).cb[TOLD_ALREADY_WORD] = TOLD_ALREADY };
    }

    /// Whether XDP has translated this frame already; if so, sets its mark.
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

    /// Whether the frame carries our mark: another device below this one served it.
    #[inline(always)]
    pub fn is_marked(&self) -> bool {
        let (value, mask) = (MARK_VALUE.load(), MARK_MASK.load());
        // SAFETY: the context is valid for the program's run.
        value & mask != 0 && unsafe { (*self.context).mark } & mask == value
    }

    #[inline(always)]
    fn mark(&self) {
        let (value, mask) = (MARK_VALUE.load(), MARK_MASK.load());
        // SAFETY: the context is valid for the program's run.
        unsafe { (*self.context).mark = (*self.context).mark & !mask | value & mask };
    }

    /// Makes the kernel forget a checksum that hardware was to complete, by pulling so many bytes out from
    /// behind the Ethernet header.
    ///
    /// The content of those bytes is undefined afterwards.
    #[inline(always)]
    pub fn forget_checksum(&mut self, pulled: i32) -> Result<(), Refused> {
        self.adjust_room(-pulled, 0)?;
        self.adjust_room(pulled, 0)
    }

    /// Writes the EtherType of a bare frame to the place where the hooks read it.
    #[inline(always)]
    pub fn prepare(&self) -> Option<()> {
        if LINK != BARE {
            return Some(());
        }
        self.pull(ETHERNET + size_of::<Ipv4>());
        // Reads more than the first byte: LLVM would compare that bound in a form from which the verifier
        // learns nothing.
        let header = self.read::<Ipv4>(ETHERNET)?;
        let ether_type = match header.version_and_length >> 4 {
            4 => header::ether_type::IPV4,
            6 => header::ether_type::IPV6,
            _ => return None,
        };
        let ethernet = self.ethernet()?;
        // SAFETY: this CPU's own, and no other program of ours runs on it before this packet is done with.
        unsafe { *ethernet = Ethernet { addresses: [0; 3], ether_type } };
        Some(())
    }

    /// Gives a bare frame an Ethernet header, which `bpf_redirect_neigh` replaces.
    #[inline(always)]
    pub fn frame(&self) -> Result<(), Refused> {
        // SAFETY: the context is the kernel's; no code looks at the packet afterwards.
        if LINK == BARE && unsafe { bpf_skb_change_head(self.context, ETHERNET as u32, 0) } != 0 {
            return Err(Refused);
        }
        Ok(())
    }

    #[inline(always)]
    fn segment_size(&self) -> u32 {
        // SAFETY: the context is valid for the program's run. Zero = not a GSO frame.
        unsafe { (*self.context).gso_size }
    }

    #[inline(always)]
    fn adjust_room(&mut self, delta: i32, flags: u32) -> Result<(), Refused> {
        // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
        match unsafe { bpf_skb_adjust_room(self.context, delta, BPF_ADJ_ROOM_MAC, u64::from(flags)) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }

    /// Takes away an outer header of the other family on kernels that lack the flags for it.
    ///
    /// A change of the family moves the bytes behind by the difference of the headers. A change of the room
    /// takes the rest.
    #[inline(always)]
    fn pop_other_family(&mut self, outer: usize, inner_type: u16) -> Result<(), Refused> {
        const DIFFERENCE: i32 = (size_of::<Ipv6>() - size_of::<Ipv4>()) as i32;
        if inner_type == header::ether_type::IPV4 {
            self.adjust_room(DIFFERENCE - outer as i32, KEEP)?;
            self.change_family(inner_type)?;
        } else {
            self.change_family(inner_type)?;
            self.adjust_room(-DIFFERENCE - outer as i32, KEEP)?;
        }
        self.set_ether_type(inner_type)
    }

    #[inline(always)]
    fn change_family(&mut self, ether_type: u16) -> Result<(), Refused> {
        // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
        match unsafe { bpf_skb_change_proto(self.context, ether_type, 0) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }

    #[inline(always)]
    fn set_ether_type(&self, ether_type: u16) -> Result<(), Refused> {
        if LINK == BARE {
            return Ok(());
        }
        let ethernet = self.ethernet().ok_or(Refused)?;
        // SAFETY: `at` checked the bound.
        unsafe { (*ethernet).ether_type = ether_type };
        Ok(())
    }

    /// Adds `difference` to the checksum at `offset`; the helper knows which part the hardware will add.
    #[inline(always)]
    fn replace_checksum(&mut self, offset: u32, difference: Difference, flags: u32) -> Result<(), Refused> {
        let (sum, place) = (u64::from(fold(difference.0)), Self::place(offset as usize) as u32);
        // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
        match unsafe { bpf_l4_csum_replace(self.context, place, 0, sum, u64::from(flags)) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }
}

/// Makes the first bytes of the frame linear.
///
/// Not inlined: Linux 6.1 would walk everything behind it once for each way through it.
#[inline(never)]
fn make_linear(context: *mut __sk_buff, bytes: u32) {
    // SAFETY: the context is valid for the program's run.
    let (start, end, length) =
        unsafe { ((*context).data as usize, (*context).data_end as usize, (*context).len) };
    let wanted = if bytes < length { bytes } else { length };
    // SAFETY: as above.
    if start + wanted as usize > end && unsafe { (*context).gso_size } != GSO_BY_FRAGS {
        // A failure leaves less to look at, which `at` finds out.
        // SAFETY: the context is the kernel's; packet pointers are looked up again afterwards.
        unsafe { bpf_skb_pull_data(context, wanted) };
    }
}

impl<const LINK: usize> Packet for TcPacket<LINK> {
    const KIND: Kind = if LINK == BARE { Kind::Bare } else { Kind::Framed };

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
    fn came_in_by(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.context).ingress_ifindex }
    }

    /// Masked: the verifier does not see that a variable offset is behind the missing header.
    #[inline(always)]
    fn place(offset: usize) -> usize {
        if LINK == BARE { offset.wrapping_sub(ETHERNET) & MAX_PLACE } else { offset }
    }
    #[inline(always)]
    fn ethernet(&self) -> Option<*mut Ethernet> {
        if LINK == BARE { maps::LINKS.get_ptr_mut(0) } else { self.at(0) }
    }
    /// Constant zeros, so that no unused bytes wait on the stack until the frame is built.
    #[inline(always)]
    fn ethernet_addresses(&self) -> Option<[u32; 3]> {
        if LINK == BARE {
            return Some([0; 3]);
        }
        // SAFETY: `at` checked the bound.
        self.ethernet().map(|ethernet| unsafe { (*ethernet).addresses })
    }
    #[inline(always)]
    fn may_be_for_another_mac(&self) -> bool {
        // SAFETY: the context is valid for the program's run.
        LINK != BARE && unsafe { (*self.context).pkt_type } == PACKET_OTHERHOST
    }
    #[inline(always)]
    fn claim_delivery(&mut self) -> Result<(), Refused> {
        self.mark();
        Ok(())
    }
    #[inline(always)]
    fn mark_tunnel(&self) {
        self.mark();
    }
    #[inline(always)]
    fn is_trusted<F: Family>(&self, source: &F::Address) -> bool {
        let from = self.came_in_by();
        // SAFETY: only the presence of the entry matters.
        from != 0
            && unsafe { maps::DEVICES.get(from) }.is_some()
            && (self.is_marked() || peers::is_forwarded::<F>(source))
    }
    #[inline(always)]
    fn has_segments(&self) -> bool {
        self.segment_size() != 0
    }
    #[inline(always)]
    fn needs_xdp_way(&self) -> bool {
        false
    }
    #[inline(always)]
    fn has_bytes(&self, bytes: u32) -> bool {
        bytes <= self.length + (ETHERNET - LINK) as u32
    }
    #[inline(always)]
    fn pull(&self, bytes: usize) {
        make_linear(self.context, bytes.saturating_sub(ETHERNET - LINK) as u32);
    }
    /// Reads the ports and the first chunk's header.
    ///
    /// A frame that is still to be cut up has its chunks elsewhere, all with data. The whole header of a
    /// chunk is read: LLVM would compare one byte's bound, at a variable offset, in a form from which the
    /// verifier learns nothing.
    #[inline(always)]
    fn read_sctp(&self, offset: usize) -> Option<(Ports, u8)> {
        let header = self.read::<Sctp>(offset)?;
        let ports = header.ports;
        let start = self.read::<SctpStart>(offset);
        Some((ports, start.map_or(DATA, |start| start.chunk)))
    }
    /// BIG TCP: a frame of more than 64 KiB, which is always a GSO frame, has zero in its length field.
    #[inline(always)]
    fn network_length(&self, claimed: u32, network: usize) -> u32 {
        if claimed != 0 || self.segment_size() == 0 {
            claimed
        } else {
            self.length.saturating_sub(Self::place(network) as u32)
        }
    }
    /// Tells segmentation that an IP tunnel follows, or one in UDP.
    ///
    /// TCP segments shrink by the headers. The sizes of UDP datagrams can't be changed, and the kernel
    /// refuses to without the flag.
    #[inline(always)]
    fn push_outer(&mut self, transport: Transport, outer: usize) -> Result<(), Refused> {
        const IPV4: usize = size_of::<Ipv4>();
        const IPV4_UDP: usize = IPV4 + size_of::<Udp>();
        const IPV6: usize = size_of::<Ipv6>();
        let flags = match outer {
            IPV4 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
            IPV4_UDP => BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
            IPV6 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV6,
            _ => BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
        };
        let fixed = if transport.is_tcp() { 0 } else { BPF_F_ADJ_ROOM_FIXED_GSO };
        self.adjust_room(outer as i32, flags | fixed)
    }
    #[inline(always)]
    fn load(&self, offset: usize, to: &mut Chunk, bytes: usize) -> Result<(), Refused> {
        let (context, bytes) = (self.context.cast_const().cast(), chunk_length(bytes));
        // SAFETY: the context is the kernel's, and the buffer has room for that many bytes.
        match unsafe {
            bpf_skb_load_bytes(context, Self::place(offset) as u32, to.as_mut_ptr().cast(), bytes)
        } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }
    #[inline(always)]
    fn store(&self, offset: usize, from: &Chunk, bytes: usize) -> Result<(), Refused> {
        let (place, bytes) = (Self::place(offset) as u32, chunk_length(bytes));
        // SAFETY: as above.
        match unsafe { bpf_skb_store_bytes(self.context, place, from.as_ptr().cast(), bytes, 0) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }
    /// Changes the length once more than necessary: only then does the kernel forget a checksum over the whole
    /// frame (`CHECKSUM_COMPLETE`).
    #[inline(always)]
    fn set_length(&mut self, bytes: usize) -> Result<(), Refused> {
        let bytes = bytes - (ETHERNET - LINK);
        for length in [bytes + 1, bytes] {
            // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
            if unsafe { bpf_skb_change_tail(self.context, length as u32, 0) } != 0 {
                return Err(Refused);
            }
        }
        Ok(())
    }
    /// Resizes the frame so that the kernel forgets its checksum.
    ///
    /// It forgets one that hardware was to complete (`CHECKSUM_PARTIAL`) only if its place is pulled out of
    /// the frame (`skb_postpull_rcsum`).
    #[inline(always)]
    fn resize(&mut self, bytes: usize, transport: Transport) -> Result<(), Refused> {
        self.set_length(bytes)?;
        self.forget_checksum(Self::place(transport.offset()) as i32 + 1)
    }
    #[inline(always)]
    fn largest_packet<A>(&self, parsed: &Parsed<A>, outer: usize) -> u32 {
        let headers = parsed.payload - parsed.network;
        gso::largest_packet(
            self.segment_size(),
            parsed.key.protocol.into(),
            parsed.length,
            headers,
            outer as u32,
        )
    }
    /// Segments keep their size, and a checksum found correct stays so: only the outer header goes.
    #[inline(always)]
    fn pop_outer(&mut self, outer: usize, outer_type: u16, inner_type: u16) -> Result<(), Refused> {
        let same = outer_type == inner_type;
        if !same && TC_DECAP_FLAGS.load() == 0 {
            return self.pop_other_family(outer, inner_type);
        }
        let family = match inner_type {
            // Kernels before 6.3 don't know these flags, and need them between families only.
            _ if TC_DECAP_FLAGS.load() == 0 => 0,
            header::ether_type::IPV4 => BPF_F_ADJ_ROOM_DECAP_L3_IPV4,
            _ => BPF_F_ADJ_ROOM_DECAP_L3_IPV6,
        };
        self.adjust_room(-(outer as i32), family | KEEP)?;
        self.set_ether_type(inner_type)
    }
    /// A `CHECKSUM_COMPLETE` sum is over the whole packet. An error means that the frame has no such sum.
    #[inline(always)]
    fn adjust_whole_checksum(&self, difference: Difference) {
        // SAFETY: the context is the kernel's.
        unsafe { bpf_csum_update(self.context, u32::from(fold(difference.0))) };
    }
    #[inline(always)]
    fn update_transport_checksum<F: Family>(
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
        // The helper subtracts the difference from a CHECKSUM_COMPLETE sum, as if a header checksum had added
        // it. IPv6 has no header checksum, so this call adds it.
        self.adjust_for_addresses::<F>(addresses);
        let before = self.read::<u16>(offset).ok_or(Refused)?;
        self.replace_checksum(offset as u32, addresses, flags | BPF_F_PSEUDO_HDR)?;
        if fold(ports.0) == NO_DIFFERENCE {
            return Ok(());
        }
        // A second call would cost as much as the rest of the translation. Only with a sum that hardware is to
        // complete (CHECKSUM_PARTIAL) must the ports stay out of it, and the first call has shown which kind
        // of sum this is: it adds the addresses to one kind, and subtracts them from the other.
        let change = |difference: Difference, sum| {
            if transport.is_tcp() { difference.apply(sum) } else { difference.apply_udp(sum) }
        };
        let is_distinct = !matches!(fold(addresses.0), 0 | NO_DIFFERENCE);
        let sum = self.at::<u16>(offset).ok_or(Refused)?;
        // SAFETY: `at` checked the bound.
        let after = unsafe { *sum };
        if is_distinct && after == change(addresses, before) {
            // SAFETY: as above.
            unsafe { *sum = change(ports, after) };
            return Ok(());
        }
        self.replace_checksum(offset as u32, ports, flags)?;
        Ok(())
    }
}
