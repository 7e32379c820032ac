//! The monotonic clock.

use aya_ebpf::helpers::generated::bpf_ktime_get_coarse_ns;
use proxy_common::config::seconds;

/// Monotonic seconds.
#[inline(always)]
pub fn now() -> u32 {
    seconds(nanoseconds())
}

/// Nanoseconds of the coarse monotonic clock: a tick's precision, a third of the price.
#[inline(always)]
pub fn nanoseconds() -> u64 {
    // SAFETY: no arguments, no preconditions.
    unsafe { bpf_ktime_get_coarse_ns() }
}
