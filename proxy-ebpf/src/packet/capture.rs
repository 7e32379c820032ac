//! The recorder's copy of a packet that is dropped, and the drop's count for its Service.
//!
//! The Service is looked up anew: the stages that drop have no room for it on the stack. Decapsulation
//! remembers it. The drop of a fragment, or of a packet with options, counts for no Service.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::helpers::generated::{bpf_skb_load_bytes, bpf_xdp_get_buff_len, bpf_xdp_load_bytes};
use proxy_common::event::CAPTURED_BYTES;
use proxy_common::frontend::{FrontendKey, SCOPE_EXTERNAL, SCOPE_INTERNAL};
use proxy_common::verdict::{Program, Reason};

use crate::header::ETHERNET;
use crate::maps::recorder;
use crate::packet::ip::Header;
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::packet::{Kind, Packet, by_ether_type};

/// Records that a packet is dropped. Of a packet's drops only the first one counts; `is_last` tells that no
/// other one can follow.
#[inline(always)]
pub fn record_drop<P: Packet>(packet: &P, program: Program, reason: Reason, is_last: bool) {
    let about = About::new(program, reason, P::KIND == Kind::Bare, is_last).0;
    match P::KIND {
        Kind::Xdp => record_xdp_drop(packet.context().cast(), about),
        Kind::Framed | Kind::Bare => record_skb_drop(packet.context().cast(), about),
    };
}

/// A drop in one argument: the reason, the program, whether the frame is bare, and whether it is the last drop,
/// from the lowest byte on.
#[derive(Clone, Copy)]
struct About(u32);

impl About {
    #[inline(always)]
    const fn new(program: Program, reason: Reason, is_bare: bool, is_last: bool) -> Self {
        Self(reason as u32 | (program as u32) << 8 | (is_bare as u32) << 16 | (is_last as u32) << 24)
    }
    #[inline(always)]
    const fn is_of_pod(self) -> bool {
        (self.0 >> 8) as u8 == Program::TcPodIn as u8
    }
    #[inline(always)]
    const fn is_bare(self) -> bool {
        self.0 >> 16 & 1 != 0
    }
}

/// The Service of a client's packet; zero if there is none, or the packet is not plain.
#[inline(always)]
fn service_of<P: Packet>(packet: P, about: About) -> u32 {
    by_ether_type!(packet, service_of_family(&packet, about) else 0)
}

#[inline(always)]
fn service_of_family<P: Packet, F: Header>(packet: &P, about: About) -> u32 {
    let Some((protocol, ports)) = F::peek_ports(packet, ETHERNET) else {
        return 0;
    };
    let Some((_, address)) = F::read_addresses(packet, ETHERNET) else {
        return 0;
    };
    let scope = if about.is_of_pod() { SCOPE_INTERNAL } else { SCOPE_EXTERNAL };
    let key = FrontendKey { address, port: ports.destination, protocol, scope };
    F::frontend(&key).map_or(0, |frontend| frontend.service)
}

// Global functions: each is verified once, and called where a walk has no stack left.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn record_xdp_drop(context: *mut xdp_md, about: u32) -> u32 {
    // SAFETY: the context is valid for the program's run.
    let (length, device) = unsafe { (bpf_xdp_get_buff_len(context) as u32, (*context).ingress_ifindex) };
    let about = About(about);
    if recorder::lacks_service() {
        recorder::remember_service(service_of(XdpPacket::of(context), about));
    }
    record(about, length, device, context, |context, frame, bytes| {
        // SAFETY: the context is the kernel's, and there is room for so many bytes.
        unsafe { bpf_xdp_load_bytes(context, 0, frame.cast(), bytes) }
    })
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn record_skb_drop(context: *mut __sk_buff, about: u32) -> u32 {
    // SAFETY: the context is valid for the program's run.
    let (length, device) = unsafe { ((*context).len, (*context).ifindex) };
    let about = About(about);
    if recorder::lacks_service() {
        let service = if about.is_bare() {
            service_of(TcPacket::<BARE>::of(context), about)
        } else {
            service_of(TcPacket::<FRAMED>::of(context), about)
        };
        recorder::remember_service(service);
    }
    record(about, length, device, context, |context, frame, bytes| {
        // SAFETY: as above.
        unsafe { bpf_skb_load_bytes(context.cast(), 0, frame.cast(), bytes) }
    })
}

/// `load` captures nothing: BTF has no name for what a closure captures, and libbpf refuses that.
#[inline(always)]
fn record<C>(
    about: About,
    length: u32,
    device: u32,
    context: *mut C,
    load: impl Fn(*mut C, *mut u64, u32) -> i64,
) -> u32 {
    let [reason, program, is_bare, is_last] = about.0.to_le_bytes();
    let Some(place) = recorder::begin_drop(reason.into(), is_last != 0) else {
        return 0;
    };
    let event = &mut *place.event;
    (event.length, event.device, event.program) = (length, device, program);
    (event.source, event.destination) = ([0; 4], [0; 4]);
    (event.source_port, event.destination_port, event.protocol) = (0, 0, 0);
    event.is_bare = is_bare.into();
    let last =
        if length < CAPTURED_BYTES as u32 { length.wrapping_sub(1) } else { CAPTURED_BYTES as u32 - 1 };
    // The compiler must not merge this with the bound it knows, which the verifier has lost.
    let bytes = (core::hint::black_box(last) & (CAPTURED_BYTES as u32 - 1)) + 1;
    event.captured = if load(context, event.frame.as_mut_ptr(), bytes) == 0 { bytes as u16 } else { 0 };
    place.publish();
    0
}
