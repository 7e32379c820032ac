//! Programs for the packet bench only: each restores the frame, then tail-calls the measured program.
//!
//! `BPF_PROG_TEST_RUN` with a repeat count gives every round the frame as the round before left it, so an
//! encapsulating program would be timed on its own output. The wrapper gives it the same frame each time. It
//! may rotate the source over many flows and the destination over many frontends.
#![no_std]
#![no_main]
#![expect(
    clippy::needless_pass_by_value,
    missing_docs,
    reason = "the macros of aya-ebpf want it so, and drop the docs"
)]

use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT, xdp_action};
use aya_ebpf::btf_maps::{Array, ProgramArray};
use aya_ebpf::helpers::generated::{bpf_xdp_adjust_head, bpf_xdp_adjust_meta};
use aya_ebpf::macros::{btf_map, classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

/// 64-bit words of the frame that are written anew each round: all headers.
const WORDS: usize = 12;
/// Bytes of a frame.
const FRAME: usize = 128;
/// Ports of one source address before the next address is taken, as a power of two.
const PORT_BITS: u32 = 15;
const FIRST_PORT: u32 = 1024;

/// The template and the state of the rotation. Written by the bench, which knows this layout, too.
#[repr(C)]
pub struct Rounds {
    /// The frame's headers, as they lie in memory.
    pub template: [u64; WORDS],
    /// The flow of the next round; counts from `first_flow` to `last_flow`, then starts again.
    pub flow: u32,
    pub first_flow: u32,
    pub last_flow: u32,
    /// The frontend of the next round; counts from 0 to `last_frontend`.
    pub frontend: u32,
    pub last_frontend: u32,
    /// 0 for IPv4, else IPv6.
    pub is_v6: u32,
}

/// Entry 0 is the only one.
#[btf_map]
static ROUNDS: Array<Rounds, 1> = Array::new();
/// The program that is measured, if it is an XDP program.
#[btf_map]
static XDP_TARGET: ProgramArray<1> = ProgramArray::new();
/// The program that is measured, if it is a TC program.
#[btf_map]
static TC_TARGET: ProgramArray<1> = ProgramArray::new();

/// Restores the frame for an XDP program.
#[xdp(frags)]
pub fn wrap_xdp(context: XdpContext) -> u32 {
    let raw = context.ctx;
    // SAFETY: the context is valid for the program's run; packet pointers are read again after each helper.
    // Both helpers run in every round, so that the baseline includes their cost.
    unsafe {
        let metadata = (*raw).data.wrapping_sub((*raw).data_meta);
        bpf_xdp_adjust_meta(raw, metadata as i32);
        let length = (*raw).data_end.wrapping_sub((*raw).data);
        bpf_xdp_adjust_head(raw, length.wrapping_sub(FRAME as u32) as i32);
        if restore((*raw).data as usize, (*raw).data_end as usize).is_some() {
            XDP_TARGET.tail_call(&context, 0);
        }
    }
    xdp_action::XDP_ABORTED
}

/// Restores the frame for a TC program that does not change its length.
///
/// One that encapsulates can't be repeated at all: the kernel remembers in the skb that it was encapsulated
/// and refuses a second time.
#[classifier]
pub fn wrap_tc(context: TcContext) -> i32 {
    let raw = context.skb.skb;
    // SAFETY: the context is valid for the program's run.
    unsafe {
        (*raw).mark = 0;
        if restore((*raw).data as usize, (*raw).data_end as usize).is_some() {
            TC_TARGET.tail_call(&context, 0);
        }
    }
    TC_ACT_SHOT
}

/// The baseline for XDP programs.
#[xdp(frags)]
pub fn empty_xdp(_context: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// The baseline for TC programs.
#[classifier]
pub fn empty_tc(_context: TcContext) -> i32 {
    TC_ACT_OK
}

/// Writes the template, then this round's flow and frontend.
#[inline(always)]
fn restore(start: usize, end: usize) -> Option<()> {
    if start + FRAME > end {
        return None;
    }
    let rounds = ROUNDS.get_ptr_mut(0)?;
    // SAFETY: the map look-up and the comparison above checked the bounds; one bench runs at a time.
    unsafe {
        let template = &(*rounds).template;
        for (word, content) in template.iter().enumerate() {
            ((start + word * 8) as *mut u64).write_unaligned(*content);
        }
        let (flow, frontend) = ((*rounds).flow, (*rounds).frontend);
        (*rounds).flow = if flow >= (*rounds).last_flow { (*rounds).first_flow } else { flow + 1 };
        (*rounds).frontend = if frontend >= (*rounds).last_frontend { 0 } else { frontend + 1 };
        // The last word of the source and of the destination, and the source port.
        let (source, destination, port) =
            if (*rounds).is_v6 == 0 { (14 + 12, 14 + 16, 14 + 20) } else { (14 + 20, 14 + 36, 14 + 40) };
        add(start + source, flow >> PORT_BITS);
        add(start + destination, frontend);
        let number = (FIRST_PORT + (flow & ((1 << PORT_BITS) - 1))) as u16;
        ((start + port) as *mut u16).write_unaligned(number.to_be());
    }
    Some(())
}

/// Adds to a word in network byte order.
///
/// # Safety
/// The four bytes must lie inside the frame.
#[inline(always)]
unsafe fn add(at: usize, number: u32) {
    let word = at as *mut u32;
    // SAFETY: the caller checked the bound.
    unsafe { word.write_unaligned(u32::from_be(word.read_unaligned()).wrapping_add(number).to_be()) };
}

/// Never reached: nothing here can panic.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
