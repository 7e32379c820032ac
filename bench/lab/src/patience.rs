//! The factor of all waits: emulated machines take many times longer.

use std::sync::LazyLock;
use std::time::Duration;

/// Returns the limit times `MILLRACE_PATIENCE`, if that is set.
#[must_use]
pub fn patience(limit: Duration) -> Duration {
    static FACTOR: LazyLock<u32> = LazyLock::new(|| {
        std::env::var("MILLRACE_PATIENCE").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
    });
    limit * *FACTOR
}
