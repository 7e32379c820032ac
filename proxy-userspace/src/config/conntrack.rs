//! The settings of the kernel's connection tracking, as kube-proxy sets them.

use std::time::Duration;

use super::file::GoDuration;
use super::{AgentArgs, ConfigError, parse};
use crate::node::Conntrack;

/// Returns the settings of the flags, or else those of the file.
pub(super) fn settings(args: &AgentArgs, file: Conntrack) -> Result<Conntrack, ConfigError> {
    let liberal = parse::switch("--conntrack-tcp-be-liberal", args.conntrack_tcp_be_liberal.as_deref())?;
    Ok(Conntrack {
        max_per_core: entries(
            "--conntrack-max-per-core",
            args.conntrack_max_per_core.as_deref(),
            file.max_per_core,
        )?,
        min: entries("--conntrack-min", args.conntrack_min.as_deref(), file.min)?,
        established: seconds(
            "--conntrack-tcp-timeout-established",
            args.conntrack_tcp_timeout_established.as_deref(),
            file.established,
        )?,
        close_wait: seconds(
            "--conntrack-tcp-timeout-close-wait",
            args.conntrack_tcp_timeout_close_wait.as_deref(),
            file.close_wait,
        )?,
        be_liberal: liberal.unwrap_or(file.be_liberal),
        ..file
    })
}

fn entries(flag: &str, text: Option<&str>, default: u32) -> Result<u32, ConfigError> {
    parse::number(flag, text, default, 0..=i32::MAX.unsigned_abs(), "entries")
}

fn seconds(flag: &str, text: Option<&str>, default: u32) -> Result<u32, ConfigError> {
    let Some(text) = text else { return Ok(default) };
    let seconds = text.parse().ok().and_then(|GoDuration(time)| in_seconds(time));
    let takes = "a duration such as 1h0m0s, up to a year; 0 leaves the kernel's";
    seconds.ok_or_else(|| parse::wrong(flag, text, takes))
}

/// Returns whole seconds, cut as in kube-proxy; `None` for more than a year.
pub(super) fn in_seconds(time: Duration) -> Option<u32> {
    u32::try_from(time.as_secs()).ok().filter(|seconds| *seconds <= parse::LONGEST_TIMEOUT)
}
