//! Waits for a condition, with a bound.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::patience::patience;

const INTERVAL: Duration = Duration::from_millis(200);

/// Calls `check` until it succeeds. After `limit`, fails with its last error.
pub fn wait<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let limit = patience(limit);
    let end = Instant::now() + limit;
    loop {
        match check() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > end => {
                return Err(error).with_context(|| format!("{what}: not within {} s", limit.as_secs()));
            }
            Err(_) => thread::sleep(INTERVAL),
        }
    }
}
