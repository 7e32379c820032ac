//! What is measured: CPU time, so that others on the machine count little, and where it must be, time.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CPU time of this thread, in the kernel included.
pub fn thread_cpu() -> Duration {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of this process, in the kernel included.
pub fn process_cpu() -> Duration {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// What a piece of work costs this thread.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = thread_cpu();
    let result = work();
    (result, thread_cpu().saturating_sub(before))
}

/// The value below which `share` of them lie; zero of none.
pub fn quantile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    // A share of a length is never negative, and rounding is what is meant.
    #[allow(clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// The middle one.
pub fn median(values: &[Duration]) -> Duration {
    quantile(values, 0.5)
}

fn read(clock: ClockId) -> Duration {
    // Both clocks always exist.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}
