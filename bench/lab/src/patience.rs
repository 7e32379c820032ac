//! How long is waited: on emulated machines everything takes many times longer.

use std::sync::LazyLock;
use std::time::Duration;

/// The limit, multiplied by `MILLRACE_PATIENCE` where that is set.
#[must_use]
pub fn patience(limit: Duration) -> Duration {
    static FACTOR: LazyLock<u32> = LazyLock::new(|| {
        std::env::var("MILLRACE_PATIENCE").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
    });
    limit * *FACTOR
}
