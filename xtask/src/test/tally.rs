//! Counts of tests.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

/// The numbers of tests that passed, failed and did not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that ran and held.
    pub passed: u32,
    /// Tests that ran and did not hold, or could not start.
    pub failed: u32,
    /// Tests that did not run.
    pub skipped: u32,
}

impl Tally {
    /// One passed test.
    pub const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    /// One failed test.
    pub const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    /// One skipped test.
    pub const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    /// Returns the count of one test by its result.
    pub fn of(passed: bool) -> Self {
        if passed { Self::PASSED } else { Self::FAILED }
    }

    /// Returns the counts of a `test result:` line of libtest, and none of any other line.
    pub fn from_result_line(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let count = |word: &str| {
            let part = counts.split("; ").find_map(|part| part.strip_suffix(word))?;
            part.trim().parse().ok()
        };
        Some(Self { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut total, tally| {
            total += tally;
            total
        })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_is_counted() {
        let line = "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.05s";
        assert_eq!(Tally::from_result_line(line), Some(Tally { passed: 3, failed: 1, skipped: 2 }));
    }

    #[test]
    fn any_other_line_counts_nothing() {
        assert_eq!(Tally::from_result_line("test model::a_port_is_found ... ok"), None);
        assert_eq!(Tally::from_result_line("test result: ok"), None);
    }

    #[test]
    fn tallies_add_up_and_are_shown_on_one_line() {
        let total: Tally = [Tally::PASSED, Tally::FAILED, Tally::PASSED, Tally::SKIPPED].into_iter().sum();
        assert_eq!(total.to_string(), "2 passed, 1 failed, 1 skipped");
    }
}
