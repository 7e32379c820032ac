//! What a check finds.

use std::fmt;

use super::fix::Fix;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Nothing is wrong.
    Pass,
    /// It could not be looked at, or does not matter here.
    Skip,
    /// Something may go wrong, or some packets do.
    Warn,
    /// Something is wrong: Services are not served, or will not be.
    Fail,
}

impl Outcome {
    /// All outcomes.
    const ALL: [Self; 4] = [Self::Pass, Self::Skip, Self::Warn, Self::Fail];

    /// Returns the outcome with this word in the output.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == word)
    }

    /// Returns the word in the output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Skip => "SKIP",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }
}

/// What a check found, in one line, and what to do, in another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The outcome.
    pub outcome: Outcome,
    /// What was found.
    pub found: String,
    /// What to do; empty if nothing is to be done.
    pub remedy: String,
    /// What `--fix` does; none if that is left to the user.
    pub fix: Option<Fix>,
}

impl Finding {
    fn new(outcome: Outcome, found: String, remedy: String) -> Self {
        Self { outcome, found, remedy, fix: None }
    }

    /// Nothing is wrong.
    pub fn pass(found: impl Into<String>) -> Self {
        Self::new(Outcome::Pass, found.into(), String::new())
    }

    /// The facts are missing, or don't matter here.
    pub fn skip(found: impl Into<String>) -> Self {
        Self::new(Outcome::Skip, found.into(), String::new())
    }

    /// Something may go wrong.
    pub fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Outcome::Warn, found.into(), remedy.into())
    }

    /// Something is wrong.
    pub fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Outcome::Fail, found.into(), remedy.into())
    }
}

impl Fix {
    /// Returns a warning with this remedy.
    pub fn warn(self, found: impl Into<String>) -> Finding {
        Finding { fix: Some(self.clone()), ..Finding::warn(found, self.command()) }
    }

    /// Returns a failure with this remedy.
    pub fn fail(self, found: impl Into<String>) -> Finding {
        Finding { fix: Some(self.clone()), ..Finding::fail(found, self.command()) }
    }
}

/// Returns the faults, or a pass without any.
pub fn faults_or(faults: Vec<Finding>, pass: impl FnOnce() -> String) -> Vec<Finding> {
    if faults.is_empty() { vec![Finding::pass(pass())] } else { faults }
}

/// The number of findings with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Findings that nothing is wrong.
    pub passed: usize,
    /// Warnings.
    pub warnings: usize,
    /// Failures.
    pub failed: usize,
    /// Findings without facts.
    pub skipped: usize,
}

impl Counts {
    /// Counts findings.
    pub fn of<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Self {
        findings.into_iter().map(|finding| finding.outcome).collect()
    }
}

impl FromIterator<Outcome> for Counts {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            match outcome {
                Outcome::Pass => counts.passed += 1,
                Outcome::Warn => counts.warnings += 1,
                Outcome::Fail => counts.failed += 1,
                Outcome::Skip => counts.skipped += 1,
            }
        }
        counts
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, warnings, failed, skipped } = self;
        let plural = if *warnings == 1 { "" } else { "s" };
        write!(f, "{passed} passed, {warnings} warning{plural}, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_counted_by_outcome() {
        let findings = [Finding::pass("a"), Finding::warn("b", "c"), Finding::skip("d"), Finding::pass("e")];
        assert_eq!(Counts::of(&findings).to_string(), "2 passed, 1 warning, 0 failed, 1 skipped");
        assert_eq!(Counts::of([]).to_string(), "0 passed, 0 warnings, 0 failed, 0 skipped");
    }
}
