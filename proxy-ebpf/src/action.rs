//! The ends of the programs of packets. Only here does a verdict become an action.

use core::ffi::c_void;
use core::ptr;

use aya_ebpf::bindings::{BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action};
use aya_ebpf::helpers::generated::{bpf_redirect, bpf_redirect_neigh};
use proxy_common::part::Part;
use proxy_common::trace::Step;
use proxy_common::verdict::Program;

use crate::maps::{self, Parts, observe};
use crate::packet::Packet;
use crate::packet::capture;
use crate::packet::tc::{BARE, FRAMED, TcPacket};
use crate::packet::xdp::XdpPacket;
use crate::trace;
use crate::verdict::{NO_ROOM, UNTOUCHED, Verdict};

/// Counts an XDP program's verdict and returns its action.
#[inline(always)]
pub fn finish_xdp(packet: &XdpPacket, mut verdict: Verdict) -> u32 {
    if let Verdict::Continue(part) = verdict {
        trace::step(Step::Part, part as u32);
        continue_in(packet.context(), &maps::XDP_PARTS, part);
        verdict = without(part);
    }
    trace::conclude(Program::XdpIngress, verdict.reason());
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

/// Counts the verdict of `tc_ingress` or of its part and returns its action.
#[inline(always)]
pub fn finish_ingress<const LINK: usize>(packet: &TcPacket<LINK>, verdict: Verdict) -> i32 {
    let verdict = match verdict {
        Verdict::Send(..) | Verdict::Transmit(..) if packet.frame().is_err() => NO_ROOM,
        verdict => verdict,
    };
    finish(Program::TcIngress, verdict, packet)
}

/// `TC_ACT_UNSPEC` lets other software's programs behind ours run.
#[inline(always)]
pub fn finish<const LINK: usize>(program: Program, mut verdict: Verdict, packet: &TcPacket<LINK>) -> i32 {
    if let Verdict::Continue(part) = verdict {
        trace::step(Step::Part, part as u32);
        continue_in(packet.context(), parts_of::<LINK>(program), part);
        verdict = without(part);
    }
    trace::conclude(program, verdict.reason());
    observe::count(program, verdict.reason(), packet.length());
    if verdict.reason().is_drop() {
        capture::record_drop(packet, program, verdict.reason(), true);
    }
    match verdict {
        Verdict::Pass(_) | Verdict::Deliver(_) => TC_ACT_UNSPEC,
        Verdict::Drop(_) | Verdict::Refuse(..) | Verdict::Continue(_) => {
            packet.set_told();
            TC_ACT_SHOT
        }
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

/// Ends the program in a part. Returns only if the array lacks it.
///
/// The kernel makes a jump of a call with a constant index, and a slower look-up of any other. LLVM would
/// merge the calls into one with a variable, but leaves assembler alone.
#[inline(always)]
fn continue_in(context: *mut c_void, parts: &'static Parts, part: Part) {
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
        Part::Refusal4 => tail_call::<{ Part::Refusal4 as u32 }>(context, parts),
        Part::Refusal6 => tail_call::<{ Part::Refusal6 as u32 }>(context, parts),
        Part::Announced => tail_call::<{ Part::Announced as u32 }>(context, parts),
    }
}

/// The verdict about a packet whose part is missing.
///
/// The questions for the node's own MAC address take the way of those for a Service's address. Without answers, the node
/// could not be reached.
#[inline(always)]
const fn without(part: Part) -> Verdict {
    if matches!(part, Part::Announced) { UNTOUCHED } else { NO_ROOM }
}

#[inline(always)]
fn tail_call<const INDEX: u32>(context: *mut c_void, parts: &'static Parts) {
    // The host only lints this.
    #[cfg(not(target_arch = "bpf"))]
    let _ = (context, parts);
    // SAFETY: the helper `bpf_tail_call` (12) takes the context, the map and the index. It changes the
    // registers of a call, and does not come back if it succeeds: nothing of ours waits to be dropped.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!(
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
