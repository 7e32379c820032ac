//! The clocks: CPU time, on which other work on the machine has little effect, and elapsed time
//! where there is no other way.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Returns the CPU time of this thread, including the kernel's part.
pub fn thread_cpu() -> Duration {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of all threads of this process, including the kernel's part.
pub fn process_cpu() -> Duration {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Runs a piece of work. Returns its result and its CPU time on this thread.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = thread_cpu();
    let result = work();
    (result, thread_cpu().saturating_sub(before))
}

/// Returns the value below which `share` of the values lie, or zero without values.
pub fn quantile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    #[allow(
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a length is never negative, and rounding is meant"
    )]
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn read(clock: ClockId) -> Duration {
    // Both clocks always exist.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}
