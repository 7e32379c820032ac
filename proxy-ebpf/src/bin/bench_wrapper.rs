//! Programs for the packet bench only: each restores the frame, then tail-calls the measured program.
//!
//! `BPF_PROG_TEST_RUN` with a repeat count gives every round the frame as the round before left it, so an
//! encapsulating program would be timed on its own output. The wrapper gives it the same frame each time. It
//! may rotate the source over many flows and the destination over many frontends. The checksums stay right.
#![no_std]
#![no_main]
#![expect(
    clippy::needless_pass_by_value,
    missing_docs,
    reason = "the macros of aya-ebpf want it so, and drop the docs"
)]

#[path = "../required.rs"]
mod required;

use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT, xdp_action};
use aya_ebpf::btf_maps::{Array, ProgramArray};
use aya_ebpf::helpers::generated::{bpf_xdp_adjust_head, bpf_xdp_adjust_meta};
use aya_ebpf::macros::{btf_map, classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

/// Bytes of a frame. All of them are written anew each round.
const FRAME: usize = 128;
const WORDS: usize = FRAME / 8;
/// Ports of one source address before the next address is taken, as a power of two.
const PORT_BITS: u32 = 15;

/// The template and the state of the rotation. Written by the bench, which knows this layout, too.
#[repr(C)]
pub struct Rounds {
    /// The frame of flow 0 and frontend 0, as it lies in memory.
    pub template: [u64; WORDS],
    /// The flow of the next round; counts from `first_flow` to `last_flow`, then starts again.
    pub flow: u32,
    pub first_flow: u32,
    pub last_flow: u32,
    /// The frontend of the next round; counts from 0 to `last_frontend`.
    pub frontend: u32,
    pub last_frontend: u32,
    /// Offset of the last word of the source address.
    pub source: u32,
    /// Offset of the last word of the destination address.
    pub destination: u32,
    /// Offset of the source port.
    pub port: u32,
    /// Offset of the IPv4 header's checksum; 0 = there is none.
    pub header_checksum: u32,
    /// Offset of the transport's checksum.
    pub checksum: u32,
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
    let (flow, frontend) = unsafe {
        for (word, content) in (*rounds).template.iter().enumerate() {
            ((start + word * 8) as *mut u64).write_unaligned(*content);
        }
        let (flow, frontend) = ((*rounds).flow, (*rounds).frontend);
        (*rounds).flow = if flow >= (*rounds).last_flow { (*rounds).first_flow } else { flow + 1 };
        (*rounds).frontend = if frontend >= (*rounds).last_frontend { 0 } else { frontend + 1 };
        (flow, frontend)
    };
    // SAFETY: the map look-up checked the entry.
    let rounds = unsafe { &*rounds };
    let addresses = add_word(start, end, rounds.source, flow >> PORT_BITS)?
        + add_word(start, end, rounds.destination, frontend)?;
    let port = add_half(start, end, rounds.port, flow & ((1 << PORT_BITS) - 1))?;
    if rounds.header_checksum != 0 {
        renew(start, end, rounds.header_checksum, addresses)?;
    }
    renew(start, end, rounds.checksum, addresses + port)
}

/// Returns a place in the frame with room for so many bytes.
#[inline(always)]
fn place(start: usize, end: usize, offset: u32, bytes: usize) -> Option<usize> {
    let at = start + (offset as usize & (FRAME - 1));
    if at + bytes > end { None } else { Some(at) }
}

/// Adds to a word in network byte order. Returns the change of a checksum over it (RFC 1624).
#[inline(always)]
fn add_word(start: usize, end: usize, offset: u32, number: u32) -> Option<u32> {
    let word = place(start, end, offset, 4)? as *mut u32;
    // SAFETY: `place` checked the bound.
    let old = u32::from_be(unsafe { word.read_unaligned() });
    let new = old.wrapping_add(number);
    // SAFETY: as above.
    unsafe { word.write_unaligned(new.to_be()) };
    Some((!old >> 16) + (!old & 0xffff) + (new >> 16) + (new & 0xffff))
}

/// Adds to two bytes in network byte order. Returns the change of a checksum over them.
#[inline(always)]
fn add_half(start: usize, end: usize, offset: u32, number: u32) -> Option<u32> {
    let half = place(start, end, offset, 2)? as *mut u16;
    // SAFETY: `place` checked the bound.
    let old = u16::from_be(unsafe { half.read_unaligned() });
    let new = old.wrapping_add(number as u16);
    // SAFETY: as above.
    unsafe { half.write_unaligned(new.to_be()) };
    Some(u32::from(!old) + u32::from(new))
}

/// Adds a change to a checksum. A sum of 0 becomes 0xffff, which is the same but for UDP, where 0 means none.
#[inline(always)]
fn renew(start: usize, end: usize, offset: u32, change: u32) -> Option<()> {
    let half = place(start, end, offset, 2)? as *mut u16;
    // SAFETY: `place` checked the bound.
    let old = u16::from_be(unsafe { half.read_unaligned() });
    let sum = u32::from(!old) + change;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = match !(sum as u16) {
        0 => u16::MAX,
        checksum => checksum,
    };
    // SAFETY: as above.
    unsafe { half.write_unaligned(checksum.to_be()) };
    Some(())
}
