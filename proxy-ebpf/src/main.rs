//! Entry points. Only here does a verdict become an action.
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

// The modules in a packet's order: each folder uses only those below it. Blank lines keep rustfmt from
// sorting them.
mod parts;

mod hooks;

mod icmp;

mod forward;

mod parse;

mod select;

mod flow;

mod packet;

mod maps;

mod header;
mod verdict;

use core::ptr;

use aya_ebpf::bindings::{BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action};
use aya_ebpf::helpers::generated::{bpf_redirect, bpf_redirect_neigh};
use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr, classifier, xdp};
use aya_ebpf::programs::{SockAddrContext, SockContext, TcContext, XdpContext};
use proxy_common::verdict::Program;

use crate::hooks::socket::{self, Call, Closing, Outcome, Plain4};
use crate::hooks::{capture, egress, pod, uplink};
use crate::maps::{Parts, observe};
use crate::packet::Packet;
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::verdict::{NO_ROOM, UNTOUCHED, Verdict};

/// Frames off the wire, on a device with XDP.
#[xdp(frags)]
pub fn xdp_ingress(context: XdpContext) -> u32 {
    let packet = XdpPacket::new(&context);
    finish_xdp(&packet, uplink::walk(packet))
}

#[inline(always)]
fn finish_xdp(packet: &XdpPacket, verdict: Verdict) -> u32 {
    if let Verdict::Continue(part) = verdict {
        parts::continue_in(packet.context(), &maps::XDP_PARTS, part);
    }
    observe::count(Program::XdpIngress, verdict.reason(), packet.length());
    if verdict.reason().is_drop() {
        capture::record_drop(packet, Program::XdpIngress, verdict.reason(), true);
    }
    match verdict {
        Verdict::Pass(_) | Verdict::Deliver(_) | Verdict::Reinject(_) => xdp_action::XDP_PASS,
        Verdict::Drop(_) | Verdict::Refuse(..) | Verdict::Continue(_) => xdp_action::XDP_DROP,
        Verdict::Bounce(_) => xdp_action::XDP_TX,
        Verdict::Send(_, next) | Verdict::Transmit(_, next) if next == packet.device() => xdp_action::XDP_TX,
        // SAFETY: no pointers; the kernel drops the frame if the device is gone.
        Verdict::Send(_, next) | Verdict::Transmit(_, next) => unsafe {
            bpf_redirect(next, 0).unsigned_abs() as u32
        },
    }
}

/// Frames off the wire, if there is no XDP or XDP passed the frame.
#[classifier]
pub fn tc_ingress(context: TcContext) -> i32 {
    run_ingress(TcPacket::<FRAMED>::new(&context))
}

/// The same on a device without Ethernet frames.
#[classifier]
pub fn tc_ingress_l3(context: TcContext) -> i32 {
    run_ingress(TcPacket::<BARE>::new(&context))
}

/// Packets that leave, on every device a reply can leave by.
#[classifier]
pub fn tc_egress(context: TcContext) -> i32 {
    run_egress(Program::TcEgress, TcPacket::<FRAMED>::new(&context))
}

/// The same on a device without Ethernet frames.
#[classifier]
pub fn tc_egress_l3(context: TcContext) -> i32 {
    run_egress(Program::TcEgress, TcPacket::<BARE>::new(&context))
}

/// Packets from a pod, unless a device below has served them.
#[classifier]
pub fn tc_pod_in(context: TcContext) -> i32 {
    let packet = TcPacket::<FRAMED>::new(&context);
    if packet.is_marked() {
        return TC_ACT_UNSPEC;
    }
    let verdict = if packet.is_tagged() { UNTOUCHED } else { pod::walk(packet) };
    finish(Program::TcPodIn, verdict, &packet)
}

/// Packets to a pod.
#[classifier]
pub fn tc_pod_out(context: TcContext) -> i32 {
    run_egress(Program::TcPodOut, TcPacket::<FRAMED>::new(&context))
}

#[inline(always)]
fn run_ingress<const LINK: usize>(mut packet: TcPacket<LINK>) -> i32 {
    if packet.take_handover() || packet.is_marked() {
        return TC_ACT_UNSPEC;
    }
    let is_ours = !packet.is_tagged() && packet.prepare().is_some();
    let verdict = if is_ours { uplink::walk(packet) } else { UNTOUCHED };
    finish_ingress(&packet, verdict)
}

#[inline(always)]
fn finish_ingress<const LINK: usize>(packet: &TcPacket<LINK>, verdict: Verdict) -> i32 {
    let verdict = match verdict {
        Verdict::Send(..) | Verdict::Transmit(..) if packet.frame().is_err() => NO_ROOM,
        verdict => verdict,
    };
    finish(Program::TcIngress, verdict, packet)
}

#[inline(always)]
fn run_egress<const LINK: usize>(program: Program, packet: TcPacket<LINK>) -> i32 {
    let came_in_by = if program == Program::TcEgress { packet.came_in_by() } else { 0 };
    let verdict = if packet.prepare().is_some() { egress::walk(packet, came_in_by) } else { UNTOUCHED };
    finish(program, verdict, &packet)
}

/// An IPv4 socket is connected.
#[cgroup_sock_addr(connect4)]
pub fn cg_connect4(context: SockAddrContext) -> i32 {
    conclude(Program::CgConnect4, socket::connect::<Plain4>(&Call::new(&context)))
}

/// An IPv6 socket is connected, perhaps over IPv4.
#[cgroup_sock_addr(connect6)]
pub fn cg_connect6(context: SockAddrContext) -> i32 {
    conclude(Program::CgConnect6, socket::connect_either(&Call::new(&context)))
}

/// A datagram is sent over IPv4 by a socket that is not connected.
#[cgroup_sock_addr(sendmsg4)]
pub fn cg_sendmsg4(context: SockAddrContext) -> i32 {
    conclude(Program::CgSendmsg4, socket::send::<Plain4>(&Call::new(&context)))
}

/// The same over IPv6.
#[cgroup_sock_addr(sendmsg6)]
pub fn cg_sendmsg6(context: SockAddrContext) -> i32 {
    conclude(Program::CgSendmsg6, socket::send_either(&Call::new(&context)))
}

/// An IPv4 socket receives a datagram and learns its sender.
#[cgroup_sock_addr(recvmsg4)]
pub fn cg_recvmsg4(context: SockAddrContext) -> i32 {
    socket::restore::<Plain4>(&Call::new(&context));
    PROCEED
}

/// An IPv6 socket receives a datagram, perhaps over IPv4, and learns its sender.
#[cgroup_sock_addr(recvmsg6)]
pub fn cg_recvmsg6(context: SockAddrContext) -> i32 {
    socket::restore_either(&Call::new(&context));
    PROCEED
}

/// An IPv4 socket asks for its peer.
#[cgroup_sock_addr(getpeername4)]
pub fn cg_getpeername4(context: SockAddrContext) -> i32 {
    socket::restore::<Plain4>(&Call::new(&context));
    PROCEED
}

/// An IPv6 socket asks for its peer.
#[cgroup_sock_addr(getpeername6)]
pub fn cg_getpeername6(context: SockAddrContext) -> i32 {
    socket::restore_either(&Call::new(&context));
    PROCEED
}

/// A socket is closed.
#[cgroup_sock(sock_release)]
pub fn cg_sock_release(context: SockContext) -> i32 {
    socket::forget(&Closing::new(&context));
    PROCEED
}

/// An IPv4 socket takes a port.
#[cgroup_sock_addr(bind4)]
pub fn cg_bind4(context: SockAddrContext) -> i32 {
    permit(socket::bind::<Plain4>(&Call::new(&context)))
}

/// An IPv6 socket takes a port.
#[cgroup_sock_addr(bind6)]
pub fn cg_bind6(context: SockAddrContext) -> i32 {
    permit(socket::bind_either(&Call::new(&context)))
}

/// The result of a socket hook if the call goes on; [`FAIL`] if it fails.
const PROCEED: i32 = 1;
const FAIL: i32 = 0;

#[inline(always)]
fn conclude(program: Program, outcome: Outcome) -> i32 {
    observe::count(program, outcome.reason(), 0);
    match outcome {
        Outcome::Proceed(_) => PROCEED,
        Outcome::Fail(_, error) => permit(Err(error)),
    }
}

#[inline(always)]
fn permit(verdict: Result<(), i32>) -> i32 {
    match verdict {
        Ok(()) => PROCEED,
        Err(error) => {
            socket::fail_with(error);
            FAIL
        }
    }
}

/// `TC_ACT_UNSPEC` lets other software's programs behind ours run.
#[inline(always)]
fn finish<const LINK: usize>(program: Program, verdict: Verdict, packet: &TcPacket<LINK>) -> i32 {
    if let Verdict::Continue(part) = verdict {
        parts::continue_in(packet.context(), parts_of::<LINK>(program), part);
    }
    observe::count(program, verdict.reason(), packet.length());
    if verdict.reason().is_drop() {
        capture::record_drop(packet, program, verdict.reason(), true);
    }
    match verdict {
        Verdict::Pass(_) | Verdict::Deliver(_) => TC_ACT_UNSPEC,
        Verdict::Drop(_) | Verdict::Refuse(..) | Verdict::Continue(_) => TC_ACT_SHOT,
        Verdict::Bounce(_) => {
            packet.drop_priority();
            // SAFETY: no pointers; the kernel drops the frame if the device is gone.
            unsafe { bpf_redirect(packet.device(), 0) as i32 }
        }
        // SAFETY: as above; the frame waits behind those that this CPU has already.
        Verdict::Reinject(_) => unsafe { bpf_redirect(packet.device(), BPF_F_INGRESS.into()) as i32 },
        // The kernel's own look-up of the neighbour costs more than all that the program does.
        Verdict::Transmit(_, device) if LINK == FRAMED => {
            packet.drop_priority();
            // SAFETY: as above.
            unsafe { bpf_redirect(device, 0) as i32 }
        }
        Verdict::Send(_, device) | Verdict::Transmit(_, device) => {
            packet.drop_priority();
            // SAFETY: a null next hop of size zero makes the helper look the neighbour up itself.
            unsafe { bpf_redirect_neigh(device, ptr::null_mut(), 0, 0) as i32 }
        }
    }
}

#[inline(always)]
fn parts_of<const LINK: usize>(program: Program) -> &'static Parts {
    match program {
        Program::TcPodIn => &maps::POD_PARTS,
        _ if LINK == BARE => &maps::L3_PARTS,
        _ => &maps::TC_PARTS,
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
