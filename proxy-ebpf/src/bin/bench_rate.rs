//! Programs for the bench of rates only: one restores the frame and tail-calls the sending program, and one
//! counts frames where they arrive.
//!
//! A live frame of `BPF_PROG_TEST_RUN` (`BPF_F_TEST_XDP_LIVE_FRAMES`) is sent, and its page comes back as the
//! receiver left it. So the sender writes the headers anew each time. It rotates the source port over many
//! flows. A word of the payload balances the port, so that the checksum stays the same.
#![no_std]
#![no_main]
#![expect(
    clippy::needless_pass_by_value,
    missing_docs,
    reason = "the macros of aya-ebpf want it so, and drop the docs"
)]

#[path = "../required.rs"]
mod required;

use aya_ebpf::bindings::xdp_action;
use aya_ebpf::btf_maps::{PerCpuArray, ProgramArray};
use aya_ebpf::helpers::generated::{
    bpf_xdp_adjust_head, bpf_xdp_adjust_meta, bpf_xdp_get_buff_len, bpf_xdp_load_bytes,
};
use aya_ebpf::macros::{btf_map, xdp};
use aya_ebpf::programs::XdpContext;

/// 64-bit words of the frame that are written anew each time: all headers.
const WORDS: usize = 12;
/// Bytes of a frame.
const FRAME: usize = 128;
/// The most bytes of a frame that arrives, as a power of two.
const ROOM: usize = 256;
/// The source port of the template.
const FIRST_PORT: u16 = 2_048;
/// The last bytes of every frame of the bench. Other frames pass.
const MARK: u64 = u64::from_ne_bytes(*b"millrace");
/// One frame in this many is kept, as a power of two.
const KEPT: u64 = 1 << 12;

/// The template and the state of the rotation, on each processor. Written by the bench.
#[repr(C)]
pub struct Sender {
    /// The frame's headers, as they lie in memory.
    pub template: [u64; WORDS],
    /// The flow of the next frame; counts from 0 to `flows` - 1.
    pub flow: u32,
    pub flows: u32,
    /// The flow number of this processor's flow 0. Each processor has flows of its own.
    pub first_flow: u32,
    /// 0 for IPv4, else IPv6.
    pub is_v6: u32,
}

/// What arrived, on each processor.
#[repr(C)]
pub struct Arrivals {
    /// Frames of the bench.
    pub frames: u64,
    /// Bytes of the kept frame.
    pub length: u64,
    /// One of the frames.
    pub kept: [u8; ROOM],
}

/// Entry 0 is the only one.
#[btf_map]
static SENDER: PerCpuArray<Sender, 1> = PerCpuArray::new();
/// Entry 0 is the only one.
#[btf_map]
static ARRIVALS: PerCpuArray<Arrivals, 1> = PerCpuArray::new();
/// The program that sends: the measured one, or `transmit` or `pass`.
#[btf_map]
static TARGET: ProgramArray<1> = ProgramArray::new();

/// Restores the frame, then runs the target.
#[xdp(frags)]
pub fn send(context: XdpContext) -> u32 {
    let raw = context.ctx;
    // SAFETY: the context is valid for the program's run; packet pointers are read again after each helper.
    unsafe {
        let metadata = (*raw).data.wrapping_sub((*raw).data_meta);
        bpf_xdp_adjust_meta(raw, metadata as i32);
        let length = (*raw).data_end.wrapping_sub((*raw).data);
        bpf_xdp_adjust_head(raw, length.wrapping_sub(FRAME as u32) as i32);
        if restore((*raw).data as usize, (*raw).data_end as usize).is_some() {
            TARGET.tail_call(&context, 0);
        }
    }
    xdp_action::XDP_ABORTED
}

/// The bare loop: sends the frame back out of its device.
#[xdp(frags)]
pub fn transmit(_context: XdpContext) -> u32 {
    xdp_action::XDP_TX
}

/// Gives the frame to the stack and to the TC programs.
#[xdp(frags)]
pub fn pass(_context: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// Counts and drops the bench's frames, and passes all others.
#[xdp(frags)]
pub fn count(context: XdpContext) -> u32 {
    let raw = context.ctx;
    let mut mark = 0_u64;
    // SAFETY: the context is valid for the program's run, and the helpers check the bounds.
    unsafe {
        let length = bpf_xdp_get_buff_len(raw);
        let at = length.wrapping_sub(8) as u32;
        if bpf_xdp_load_bytes(raw, at, (&raw mut mark).cast(), 8) != 0 || mark != MARK {
            return xdp_action::XDP_PASS;
        }
        let Some(arrivals) = ARRIVALS.get_ptr_mut(0) else { return xdp_action::XDP_PASS };
        if (*arrivals).frames & (KEPT - 1) == 0 && length > 0 && length < ROOM as u64 {
            let kept = (&raw mut (*arrivals).kept).cast();
            bpf_xdp_load_bytes(raw, 0, kept, length as u32 & (ROOM as u32 - 1));
            (*arrivals).length = length;
        }
        (*arrivals).frames += 1;
    }
    xdp_action::XDP_DROP
}

/// Writes the template, then the flow of this frame.
#[inline(always)]
fn restore(start: usize, end: usize) -> Option<()> {
    if start + FRAME > end {
        return None;
    }
    let sender = SENDER.get_ptr_mut(0)?;
    // SAFETY: the map look-up and the comparison above checked the bounds; offsets are cut to the frame.
    unsafe {
        let template = &(*sender).template;
        for (word, content) in template.iter().enumerate() {
            ((start + word * 8) as *mut u64).write_unaligned(*content);
        }
        let (flow, number) = ((*sender).flow, (*sender).flow.wrapping_add((*sender).first_flow) as u16);
        (*sender).flow = if flow + 1 >= (*sender).flows { 0 } else { flow + 1 };
        let port = start + if (*sender).is_v6 == 0 { 14 + 20 } else { 14 + 40 };
        (port as *mut u16).write_unaligned(FIRST_PORT.wrapping_add(number).to_be());
        // The payload's first word is behind the UDP header. The sum of the two words is the same for all flows.
        ((port + 8) as *mut u16).write_unaligned((!number).to_be());
    }
    Some(())
}
