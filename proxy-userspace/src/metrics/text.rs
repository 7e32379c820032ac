//! The two text formats of Prometheus.

use std::fmt;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// The format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus' own, 0.0.4: for clients that do not ask for the other.
    Prometheus,
}

impl Format {
    /// Returns the format that a client accepts.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    pub fn write(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, registry)?;
        Ok(match self {
            Self::OpenMetrics => text,
            Self::Prometheus => with_counters_named_as_their_samples(&text),
        })
    }
}

/// In the older format a counter's name in HELP and TYPE is that of its samples, with `_total`, and there is
/// no EOF.
fn with_counters_named_as_their_samples(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            continue;
        }
        // HELP comes right before TYPE.
        let type_line = if line.starts_with("# HELP ") { lines.peek().copied() } else { Some(line) };
        let counter = type_line.and_then(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"));
        match counter {
            Some(name) => result.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
            None => result.push_str(line),
        }
        result.push('\n');
    }
    result
}
