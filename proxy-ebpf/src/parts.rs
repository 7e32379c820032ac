//! Entry points of the [parts](proxy_common::part) of programs, and the tail call to one.

use core::arch::asm;
use core::ffi::c_void;

use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use proxy_common::part::Part;
use proxy_common::verdict::Program;

use crate::hooks::{pod, tunnel, uplink};
use crate::icmp;
use crate::maps::Parts;
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::{finish, finish_ingress, finish_xdp};

macro_rules! uplink_parts {
    ($($xdp:ident $tc:ident $l3:ident = $walk:expr;)+) => {$(
        #[xdp(frags)]
        pub fn $xdp(context: XdpContext) -> u32 {
            let packet = XdpPacket::new(&context);
            finish_xdp(&packet, $walk(packet))
        }

        #[classifier]
        pub fn $tc(context: TcContext) -> i32 {
            let packet = TcPacket::<FRAMED>::new(&context);
            finish_ingress(&packet, $walk(packet))
        }

        #[classifier]
        pub fn $l3(context: TcContext) -> i32 {
            let packet = TcPacket::<BARE>::new(&context);
            finish_ingress(&packet, $walk(packet))
        }
    )+};
}

uplink_parts! {
    xdp_ipv6 tc_ipv6 l3_ipv6 = uplink::walk_client::<_, V6>;
    xdp_icmp4 tc_icmp4 l3_icmp4 = icmp::receive::<_, V4>;
    xdp_icmp6 tc_icmp6 l3_icmp6 = icmp::receive::<_, V6>;
    xdp_tunnel4 tc_tunnel4 l3_tunnel4 = tunnel::receive::<_, V4>;
    xdp_tunnel6 tc_tunnel6 l3_tunnel6 = tunnel::receive::<_, V6>;
    xdp_tun_icmp4 tc_tun_icmp4 l3_tun_icmp4 = tunnel::receive_icmp::<_, V4>;
    xdp_tun_icmp6 tc_tun_icmp6 l3_tun_icmp6 = tunnel::receive_icmp::<_, V6>;
    xdp_snat4 tc_snat4 l3_snat4 = uplink::walk_snat::<_, V4>;
    xdp_snat6 tc_snat6 l3_snat6 = uplink::walk_snat::<_, V6>;
    xdp_snat_reply4 tc_snat_reply4 l3_snat_reply4 = uplink::walk_snat_reply::<_, V4>;
    xdp_snat_reply6 tc_snat_reply6 l3_snat_reply6 = uplink::walk_snat_reply::<_, V6>;
}

macro_rules! pod_parts {
    ($($name:ident = $walk:expr;)+) => {$(
        #[classifier]
        pub fn $name(context: TcContext) -> i32 {
            let packet = TcPacket::<FRAMED>::new(&context);
            finish(Program::TcPodIn, $walk(packet), &packet)
        }
    )+};
}

pod_parts! {
    pod_ipv6 = pod::walk_client::<_, V6>;
    pod_icmp4 = icmp::receive_of_pod::<_, V4>;
    pod_icmp6 = icmp::receive_of_pod::<_, V6>;
    pod_snat4 = pod::walk_hairpin::<_, V4>;
    pod_snat6 = pod::walk_hairpin::<_, V6>;
    pod_snat_reply4 = pod::walk_hairpin_reply::<_, V4>;
    pod_snat_reply6 = pod::walk_hairpin_reply::<_, V6>;
}

/// Ends the program in a part. Returns only if the array lacks it.
///
/// The kernel makes a jump of a call with a constant index, and a slower look-up of any other. LLVM would
/// merge the calls into one with a variable, but leaves assembler alone.
#[inline(always)]
pub fn continue_in(context: *mut c_void, parts: &'static Parts, part: Part) {
    match part {
        Part::Ipv6 => tail_call::<{ Part::Ipv6 as u32 }>(context, parts),
        Part::Icmp4 => tail_call::<{ Part::Icmp4 as u32 }>(context, parts),
        Part::Icmp6 => tail_call::<{ Part::Icmp6 as u32 }>(context, parts),
        Part::Tunnel4 => tail_call::<{ Part::Tunnel4 as u32 }>(context, parts),
        Part::Tunnel6 => tail_call::<{ Part::Tunnel6 as u32 }>(context, parts),
        Part::TunnelIcmp4 => tail_call::<{ Part::TunnelIcmp4 as u32 }>(context, parts),
        Part::TunnelIcmp6 => tail_call::<{ Part::TunnelIcmp6 as u32 }>(context, parts),
        Part::Snat4 => tail_call::<{ Part::Snat4 as u32 }>(context, parts),
        Part::Snat6 => tail_call::<{ Part::Snat6 as u32 }>(context, parts),
        Part::SnatReply4 => tail_call::<{ Part::SnatReply4 as u32 }>(context, parts),
        Part::SnatReply6 => tail_call::<{ Part::SnatReply6 as u32 }>(context, parts),
    }
}

#[inline(always)]
fn tail_call<const INDEX: u32>(context: *mut c_void, parts: &'static Parts) {
    // SAFETY: the helper `bpf_tail_call` (12) takes the context, the map and the index. It changes the
    // registers of a call, and does not come back if it succeeds: nothing of ours waits to be dropped.
    unsafe {
        asm!(
            "r3 = {index}",
            "call 12",
            index = const INDEX,
            inout("r1") context => _,
            inout("r2") core::ptr::from_ref(parts) => _,
            out("r0") _,
            out("r3") _,
            out("r4") _,
            out("r5") _,
        );
    }
}
