//! Units, and how people read their values.

use serde::{Deserialize, Serialize};

/// The unit of a group's figures. JSON has values in this unit, without a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Nanoseconds, of a packet.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Packets a second.
    #[serde(rename = "packets/s")]
    PacketsPerSecond,
    /// Anything else a second, such as connections.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Instructions of a program.
    #[serde(rename = "instructions")]
    Instructions,
    /// A number, such as of connections that were cut.
    #[serde(rename = "count")]
    Count,
    /// One rate or time over another.
    #[serde(rename = "ratio")]
    Ratio,
    /// A share in percent.
    #[serde(rename = "%")]
    Percent,
}

/// The direction of an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Less is better: a cost.
    Lower,
    /// More is better: a rate.
    Higher,
    /// Neither.
    Neither,
}

impl Unit {
    /// Returns the symbol behind a value.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "µs",
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
            Self::PacketsPerSecond => "pps",
            Self::PerSecond => "/s",
            Self::Bytes => "B",
            Self::Instructions | Self::Count => "",
            Self::Ratio => "×",
            Self::Percent => "%",
        }
    }

    /// Returns the usual direction of an improvement.
    pub const fn better(self) -> Better {
        match self {
            Self::PacketsPerSecond | Self::PerSecond | Self::Ratio => Better::Higher,
            _ => Better::Lower,
        }
    }

    /// Returns a value as people read it: `87 ns`, `3.21 Mpps`, `260 kB`.
    pub fn show(self, value: f64) -> String {
        let (number, prefix) = match self {
            Self::PacketsPerSecond | Self::PerSecond | Self::Bytes | Self::Instructions | Self::Count => {
                scaled(value)
            }
            _ => (value, ""),
        };
        let text = digits(number);
        let gap = if self.symbol().starts_with('/') || self.symbol().is_empty() && prefix.is_empty() {
            ""
        } else {
            " "
        };
        format!("{text}{gap}{prefix}{}", self.symbol()).trim_end().to_owned()
    }

    /// Returns a value with all its digits: `389,584`, `87.5 ns`.
    pub fn exact(self, value: f64) -> String {
        let has_prefix = value.abs() >= 1e4 && value.fract() == 0.0;
        if !has_prefix {
            return self.show(value);
        }
        let digits = format!("{:.0}", value.abs());
        let groups: Vec<&str> = digits
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|group| std::str::from_utf8(group).unwrap_or_default())
            .collect();
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{} {}", groups.join(","), self.symbol()).trim_end().to_owned()
    }
}

fn scaled(value: f64) -> (f64, &'static str) {
    match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    }
}

/// Returns three significant digits, or all digits in front of the point.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_a_prefix() {
        for (unit, value, text) in [
            (Unit::Nanoseconds, 87.0, "87 ns"),
            (Unit::Nanoseconds, 1300.4, "1300 ns"),
            (Unit::PacketsPerSecond, 3_210_000.0, "3.21 Mpps"),
            (Unit::Bytes, 260_100.0, "260 kB"),
            (Unit::Instructions, 58_124.0, "58.1 k"),
            (Unit::Count, 12.0, "12"),
            (Unit::Ratio, 0.984, "0.98 ×"),
            (Unit::PerSecond, 22_000.0, "22k/s"),
        ] {
            assert_eq!(unit.show(value), text);
        }
    }

    #[test]
    fn exact_values_have_all_digits_in_groups() {
        for (unit, value, text) in [
            (Unit::Instructions, 389_584.0, "389,584"),
            (Unit::Bytes, 1_267_104.0, "1,267,104 B"),
            (Unit::Instructions, -20_001.0, "-20,001"),
            (Unit::Nanoseconds, 87.5, "87.5 ns"),
            (Unit::Count, 57.0, "57"),
        ] {
            assert_eq!(unit.exact(value), text);
        }
    }
}
