//! Copies of frames in TC, or of parts of them, in memory beside the stack: BUFFER, or an entry of a map.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes};

/// Copies bytes of the frame to a place of `MOST` bytes, a power of two.
#[inline(always)]
pub fn load<const MOST: usize>(context: *mut __sk_buff, offset: u32, to: *mut u8, bytes: u32) -> Option<()> {
    let bytes = bounded::<MOST>(bytes)?;
    // SAFETY: the context is the kernel's, and there is room for that many bytes.
    (unsafe { bpf_skb_load_bytes(context.cast(), offset, to.cast(), bytes) } == 0).then_some(())
}

/// Writes bytes from a place of `MOST` bytes, a power of two, into the frame. All pointers die.
#[inline(always)]
pub fn store<const MOST: usize>(
    context: *mut __sk_buff,
    offset: u32,
    from: *const u8,
    bytes: u32,
    flags: u32,
) -> Option<()> {
    let bytes = bounded::<MOST>(bytes)?;
    // SAFETY: the context is the kernel's, and that many bytes can be read.
    let result = unsafe { bpf_skb_store_bytes(context, offset, from.cast(), bytes, flags.into()) };
    (result == 0).then_some(())
}

/// Gives the frame another length. All pointers die.
#[inline(always)]
pub fn resize(context: *mut __sk_buff, bytes: u32) -> Option<()> {
    // SAFETY: the context is the kernel's; all packet pointers are looked up again afterwards.
    (unsafe { bpf_skb_change_tail(context, bytes, 0) } == 0).then_some(())
}

/// A length of 1 to `MOST` bytes, a power of two, in a form that the verifier can bound.
#[inline(always)]
fn bounded<const MOST: usize>(bytes: u32) -> Option<u32> {
    let last = bytes.wrapping_sub(1);
    if last as usize >= MOST {
        return None;
    }
    // The compiler must not merge this with the bound it knows, which the verifier has lost.
    Some((core::hint::black_box(last) & (MOST as u32 - 1)) + 1)
}
