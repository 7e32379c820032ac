//! The monotonic clock.

use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns};
use proxy_common::config::seconds;

/// The clock's second at a tick: the tick's number (jiffies) in the upper half, the second in the lower one.
///
/// No map of its own, but a word of the object: an access costs one load, and no key on the stack.
static mut SECOND_AT_TICK: u64 = 0;

/// Monotonic seconds.
///
/// The coarse clock moves only at a tick, so a program asks for it once a tick, and remembers the answer.
/// Jiffies cost one load, the clock a call.
#[inline(always)]
pub fn now() -> u32 {
    // SAFETY: no arguments, no preconditions.
    let tick = unsafe { bpf_jiffies64() } as u32;
    let word = &raw mut SECOND_AT_TICK;
    // SAFETY: a whole word; every CPU writes the same one at a tick.
    let stored = unsafe { word.read_volatile() };
    if (stored >> u32::BITS) as u32 == tick {
        return stored as u32;
    }
    let now = seconds(nanoseconds());
    // SAFETY: as above.
    unsafe { word.write_volatile(u64::from(tick) << u32::BITS | u64::from(now)) };
    now
}

/// Nanoseconds of the coarse monotonic clock: a tick's precision, a third of the price.
#[inline(always)]
pub fn nanoseconds() -> u64 {
    // SAFETY: no arguments, no preconditions.
    unsafe { bpf_ktime_get_coarse_ns() }
}
