//! The clock of the programs.

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// The difference between the programs' clock and the calendar.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    monotonic: i64,
    calendar: Timestamp,
}

impl Clock {
    /// Reads both clocks.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
        let monotonic = time.map_or(0, |time| time.tv_sec() * 1_000_000_000 + time.tv_nsec());
        Self { monotonic, calendar: Timestamp::now() }
    }

    /// Returns the clock of a test.
    #[cfg(test)]
    pub fn at(monotonic: i64, calendar: &str) -> Self {
        Self { monotonic, calendar: calendar.parse().unwrap() }
    }

    /// Returns the time of an event.
    pub fn time(&self, at: u64) -> Timestamp {
        let ago = self.monotonic.saturating_sub(i64::try_from(at).unwrap_or(i64::MAX));
        self.calendar.checked_sub(jiff::SignedDuration::from_nanos(ago)).unwrap_or(self.calendar)
    }
}
