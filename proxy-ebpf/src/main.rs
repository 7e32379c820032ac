//! Entry points. `action` turns their verdicts into actions.
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

mod action;

mod hooks;

mod announced;

mod icmp;

mod forward;

mod parse;

mod select;

mod flow;

mod packet;

mod trace;

mod maps;

mod header;
mod required;
mod verdict;

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr, classifier, xdp};
use aya_ebpf::programs::{SockAddrContext, SockContext, TcContext, XdpContext};
use proxy_common::verdict::Program;

use crate::action::{finish, finish_ingress, finish_xdp};
use crate::hooks::socket::{self, Call, Closing, Outcome, Plain4};
use crate::hooks::{egress, pod, uplink};
use crate::maps::observe;
use crate::packet::Packet;
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::verdict::UNTOUCHED;

/// Frames off the wire, on a device with XDP.
#[xdp(frags)]
pub fn xdp_ingress(context: XdpContext) -> u32 {
    let packet = XdpPacket::new(&context);
    finish_xdp(&packet, uplink::walk(packet))
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
