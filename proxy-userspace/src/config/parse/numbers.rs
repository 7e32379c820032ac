//! Numbers, times, ports and marks.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::Refused;
use crate::config::file::GoDuration;
use crate::dataplane::Mark;
use crate::model::check_maglev_size;

const FLOW_TABLE_SIZES: RangeInclusive<u32> = 1024..=16_777_216;
/// A year: longer than any time-out that makes sense, and far from where 32-bit seconds wrap.
pub const LONGEST_TIMEOUT: u32 = 31_536_000;
/// The longest value of the shortest time between two syncs.
pub const LONGEST_MIN_SYNC: Duration = Duration::from_mins(1);
/// In seconds.
pub const LONGEST_MAX_SYNC: u32 = 3600;

fn number<T>(text: &str, range: RangeInclusive<T>, unit: &str) -> Result<T, Refused>
where
    T: FromStr + PartialOrd + Display,
{
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| Refused::new(text, format_args!("{} to {} {unit}", range.start(), range.end())))
}

pub fn seconds(text: &str) -> Result<u32, Refused> {
    number(text, 1..=LONGEST_TIMEOUT, "seconds")
}

pub fn drain(text: &str) -> Result<Duration, Refused> {
    seconds(text).map(|seconds| Duration::from_secs(seconds.into()))
}

pub fn min_sync_interval(text: &str) -> Result<Duration, Refused> {
    let milliseconds = number(text, 0..=LONGEST_MIN_SYNC.as_millis(), "milliseconds")?;
    Ok(Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default()))
}

pub fn max_sync_interval(text: &str) -> Result<Duration, Refused> {
    number(text, 1..=LONGEST_MAX_SYNC, "seconds").map(|seconds| Duration::from_secs(seconds.into()))
}

pub fn flow_table_size(text: &str) -> Result<u32, Refused> {
    number(text, FLOW_TABLE_SIZES, "entries")
}

/// Reads the size of a table of the kernel's connection tracking.
pub fn entries(text: &str) -> Result<u32, Refused> {
    number(text, 0..=i32::MAX.unsigned_abs(), "entries")
}

/// Reads a time-out of the kernel's connection tracking.
pub fn conntrack_seconds(text: &str) -> Result<u32, Refused> {
    let seconds = text.parse().ok().and_then(|GoDuration(time)| in_seconds(time));
    let takes = "a duration such as 1h0m0s, up to a year; 0 leaves the kernel's";
    seconds.ok_or_else(|| Refused::new(text, takes))
}

/// Returns whole seconds, cut as in kube-proxy; `None` for more than a year.
pub fn in_seconds(time: Duration) -> Option<u32> {
    u32::try_from(time.as_secs()).ok().filter(|seconds| *seconds <= LONGEST_TIMEOUT)
}

/// Reads the size of a Maglev table. Text that is no number counts as out of range, as zero does.
pub fn maglev_size(text: &str) -> Result<u32, Refused> {
    check_maglev_size(text.parse().unwrap_or(0)).map_err(|error| Refused::because(text, error))
}

pub fn snat_ports(text: &str) -> Result<RangeInclusive<u16>, Refused> {
    /// A single busy backend would use up fewer ports.
    const FEWEST: usize = 64;
    let parsed =
        text.split_once('-').and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
    parsed.filter(|ports: &RangeInclusive<u16>| *ports.start() > 1023 && ports.len() >= FEWEST).ok_or_else(
        || {
            let takes = format!("FIRST-LAST such as 61000-65535, at least {FEWEST} ports above 1023");
            Refused::new(text, takes)
        },
    )
}

pub fn mark(text: &str) -> Result<Mark, Refused> {
    let parsed =
        text.split_once('/').and_then(|(value, mask)| Some(Mark { value: word(value)?, mask: word(mask)? }));
    // A value of zero would be the mark that every packet has.
    let parsed = parsed.filter(|mark| mark.value & !mark.mask == 0 && (mark.value == 0) == (mark.mask == 0));
    let takes = "VALUE/MASK such as 0x1000/0x1000, VALUE not zero and every bit of it inside MASK, \
                 or 0/0 for no mark";
    parsed.ok_or_else(|| Refused::new(text, takes))
}

/// Reads a 32-bit word, decimal or hexadecimal with 0x.
fn word(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
