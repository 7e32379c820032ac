//! What the kernel's own connection tracking is to have, as kube-proxy sets it.

use std::time::Duration;

use super::file::GoDuration;
use super::{AgentArgs, ConfigError, parse};

/// Settings of the kernel's connection tracking. 0 leaves what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections to have room for, for each processor.
    pub max_per_core: u32,
    /// The least room, where `max_per_core` is not 0.
    pub min: u32,
    /// Seconds that an idle established TCP connection is kept.
    pub established: u32,
    /// Seconds that a TCP connection in CLOSE_WAIT is kept.
    pub close_wait: u32,
    /// TCP segments outside the window are not invalid.
    pub be_liberal: bool,
    /// Seconds that a UDP flow without a reply is kept.
    pub udp: u32,
    /// Seconds that a UDP flow with replies is kept.
    pub udp_stream: u32,
}

impl Default for Conntrack {
    /// kube-proxy's.
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            established: 86_400,
            close_wait: 3_600,
            be_liberal: false,
            udp: 0,
            udp_stream: 0,
        }
    }
}

impl Conntrack {
    /// Connections to have room for on so many processors; `None` leaves the limit as it is.
    #[must_use]
    pub fn max(&self, processors: usize) -> Option<u32> {
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        (self.max_per_core > 0).then(|| self.max_per_core.saturating_mul(processors).max(self.min))
    }
}

/// What the flags say, and where they say nothing the file.
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

/// Whole seconds, as kube-proxy cuts them; `None` for more than a year.
pub(super) fn in_seconds(time: Duration) -> Option<u32> {
    u32::try_from(time.as_secs()).ok().filter(|seconds| *seconds <= parse::LONGEST_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grows_with_the_processors_and_has_a_least_one() {
        let wanted = Conntrack::default();
        assert_eq!(wanted.max(2), Some(131_072));
        assert_eq!(wanted.max(16), Some(524_288));
        assert_eq!(Conntrack { max_per_core: 0, ..wanted }.max(16), None, "min alone asks for nothing");
        assert_eq!(Conntrack { max_per_core: u32::MAX, ..wanted }.max(3), Some(u32::MAX));
    }
}
