//! Entry points: the one place where a verdict becomes an action.
#![no_std]
#![no_main]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "a map key passed by value is one more copy on a stack of 512 bytes"
)]
#![expect(
    clippy::needless_pass_by_value,
    missing_docs,
    reason = "the macros of aya-ebpf want it so, and drop the docs"
)]

mod affinity;
mod apart;
mod balance;
mod config;
mod dsr;
mod egress;
mod family;
mod flow;
mod fou;
mod icmp;
mod ingress;
mod maps;
mod mss;
mod nat;
mod observe;
mod packet;
mod path;
mod route;
mod sctp;
mod snat;
mod source;
mod verdict;
mod vip;

use core::ptr;

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action};
use aya_ebpf::helpers::generated::{bpf_redirect, bpf_redirect_neigh};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use proxy_common::verdict::Program;

use crate::packet::{Packet, TcPacket, XdpPacket};
use crate::verdict::{UNTOUCHED, Verdict};

/// Off the wire, on a device with XDP.
#[xdp(frags)]
pub fn xdp_ingress(context: XdpContext) -> u32 {
    let packet = XdpPacket::new(&context);
    let (length, device) = (packet.length(), packet.device());
    let verdict = ingress::walk(packet);
    observe::count(Program::XdpIngress, verdict.reason(), length);
    match verdict {
        Verdict::Pass(_) | Verdict::Deliver(_) => xdp_action::XDP_PASS,
        Verdict::Drop(_) | Verdict::Refuse(..) => xdp_action::XDP_DROP,
        Verdict::Bounce(_) => xdp_action::XDP_TX,
        Verdict::Send(_, next) if next == device => xdp_action::XDP_TX,
        // SAFETY: no pointers; the kernel drops the frame if the device is gone.
        Verdict::Send(_, next) => unsafe { bpf_redirect(next, 0).unsigned_abs() as u32 },
    }
}

/// Off the wire, where there is no XDP or XDP passed the frame.
#[classifier]
pub fn tc_ingress(context: TcContext) -> i32 {
    let mut packet = TcPacket::new(&context);
    if packet.take_handover() || packet.is_marked() {
        return TC_ACT_UNSPEC;
    }
    let (length, device) = (packet.length(), packet.device());
    let verdict = if packet.is_tagged() { UNTOUCHED } else { ingress::walk(packet) };
    finish(Program::TcIngress, verdict, length, device)
}

/// On every device a reply can leave by.
#[classifier]
pub fn tc_egress(context: TcContext) -> i32 {
    let packet = TcPacket::new(&context);
    let (length, device) = (packet.length(), packet.device());
    let verdict = egress::walk(packet);
    finish(Program::TcEgress, verdict, length, device)
}

/// `TC_ACT_UNSPEC` lets programs of others behind ours run.
#[inline(always)]
fn finish(program: Program, verdict: Verdict, length: u32, device: u32) -> i32 {
    observe::count(program, verdict.reason(), length);
    match verdict {
        Verdict::Pass(_) | Verdict::Deliver(_) => TC_ACT_UNSPEC,
        Verdict::Drop(_) | Verdict::Refuse(..) => TC_ACT_SHOT,
        // SAFETY: no pointers; the kernel drops the frame if the device is gone.
        Verdict::Bounce(_) => unsafe { bpf_redirect(device, 0) as i32 },
        // SAFETY: a null next hop of size zero makes the helper look the neighbour up itself.
        Verdict::Send(_, device) => unsafe { bpf_redirect_neigh(device, ptr::null_mut(), 0, 0) as i32 },
    }
}

/// Never reached: the build fails if the object holds a panic.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
