//! Durations in the notation of Kubernetes' configuration files.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const NANOSECOND: u64 = 1;
const MICROSECOND: u64 = 1000 * NANOSECOND;
const MILLISECOND: u64 = 1000 * MICROSECOND;
const SECOND: u64 = 1000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

const EXPECTED: &str = "a duration such as 30s or 1h15m";

/// A duration in Go's notation, such as `1h2m3.5s`, of at most 292 years, as in Go.
///
/// A negative duration has no meaning in Kubernetes' files, so it is refused. The crate kube has such a type,
/// but it panics on too large numbers, and prints text that Go can't read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// The error for text other than a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("takes {EXPECTED}")]
pub struct DurationError;

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        if rest == "0" {
            return Ok(Self::default());
        }
        if rest.is_empty() {
            return Err(DurationError);
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (part, left) = read_part(rest).ok_or(DurationError)?;
            total =
                total.checked_add(part).filter(|total| i64::try_from(*total).is_ok()).ok_or(DurationError)?;
            rest = left;
        }
        Ok(Self(Duration::from_nanos(total)))
    }
}

/// Returns the nanoseconds of a number with a unit, and the rest of the text.
fn read_part(text: &str) -> Option<(u64, &str)> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(unit_at);
    let next = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(next);
    let unit = match unit {
        "ns" => NANOSECOND,
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let mut nanoseconds = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.checked_mul(unit)? };
    let mut place = unit;
    for digit in fraction.chars().filter_map(|digit| digit.to_digit(10)) {
        // Fractions of a nanosecond are cut off.
        nanoseconds = nanoseconds.checked_add(u64::from(digit) * place / 10)?;
        place /= 10;
    }
    Some((nanoseconds, rest))
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanoseconds) = (self.0.as_secs(), u64::from(self.0.subsec_nanos()));
        if seconds == 0 && nanoseconds > 0 {
            return match nanoseconds {
                MILLISECOND.. => with_fraction(f, nanoseconds, MILLISECOND, "ms"),
                MICROSECOND.. => with_fraction(f, nanoseconds, MICROSECOND, "\u{b5}s"),
                _ => write!(f, "{nanoseconds}ns"),
            };
        }
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        with_fraction(f, seconds % 60 * SECOND + nanoseconds, SECOND, "s")
    }
}

/// Writes a number of units without trailing zeros in its fraction.
fn with_fraction(f: &mut fmt::Formatter<'_>, nanoseconds: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", nanoseconds / unit)?;
    let (mut rest, mut place) = (nanoseconds % unit, unit / 10);
    if rest > 0 {
        f.write_char('.')?;
    }
    while rest > 0 {
        write!(f, "{}", rest / place)?;
        rest %= place;
        place /= 10;
    }
    f.write_str(name)
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
                text.parse()
                    .map_err(|error: DurationError| E::custom(format!("{text:?} is not accepted; {error}")))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_as_in_go() {
        for (text, nanoseconds, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("5s", 5_000_000_000, "5s"),
            ("30s500ms", 30_500_000_000, "30.5s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("+24h0m0s", 86_400_000_000_000, "24h0m0s"),
            ("90s", 90_000_000_000, "1m30s"),
            ("250ms", 250_000_000, "250ms"),
            ("1.5us", 1500, "1.5\u{b5}s"),
            ("2\u{b5}s", 2000, "2\u{b5}s"),
            ("7ns", 7, "7ns"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("1.00000000099s", 1_000_000_000, "1s"),
        ] {
            let parsed: GoDuration = text.parse().unwrap();
            assert_eq!(parsed.0, Duration::from_nanos(nanoseconds), "{text}");
            assert_eq!(parsed.to_string(), printed, "{text}");
            assert_eq!(printed.parse(), Ok(parsed), "{text}");
        }
    }

    #[test]
    fn text_other_than_a_duration_is_refused() {
        for text in [
            "",
            "+",
            "5",
            "s",
            "-5s",
            "1.2.3s",
            ".s",
            "1d",
            "5 s",
            "1e3s",
            "99999999999999999999h",
            "9223372036855s",
            "inf",
            "1h5",
        ] {
            assert_eq!(text.parse::<GoDuration>(), Err(DurationError), "{text:?}");
        }
    }
}
