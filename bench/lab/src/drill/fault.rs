//! A fault, and the losses that it may cause.

use std::fmt;
use std::time::Duration;

use anyhow::Result;

use super::ground::Ground;
use super::way::Way;

/// A kind of loss: a column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// A long connection ended or gave no answer for two minutes.
    Cut,
    /// A short connection, with its one request, had no answer.
    Failed,
    /// A datagram had no answer.
    Lost,
    /// A packet reached a backend that should not have got it, or with another source address.
    Wrong,
}

impl Loss {
    /// All of them, in the order of the columns.
    pub const ALL: [Self; 4] = [Self::Cut, Self::Failed, Self::Lost, Self::Wrong];
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cut => "cut",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Wrong => "wrong place",
        })
    }
}

/// The most losses.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// A number.
    Most(u64),
    /// A number for each second from the begin of the fault to the end of its repair, and one second
    /// more.
    PerSecond(u64),
}

impl Bound {
    /// Returns the number for a fault that lasted so long.
    #[must_use]
    pub fn of(self, lasted: Duration) -> u64 {
        match self {
            Self::Most(number) => number,
            Self::PerSecond(number) => number * (lasted.as_secs() + 1),
        }
    }
}

/// Losses that a fault may cause.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Their kind.
    pub loss: Loss,
    /// The ways of forwarding.
    pub ways: &'static [Way],
    /// The only backend whose traffic may suffer. A request without any answer names no backend, so
    /// only its number bounds it.
    pub backend: Option<&'static str>,
    /// The most losses, of all these ways together.
    pub bound: Bound,
    /// The reason for a reader of the table.
    pub because: &'static str,
}

/// The longest time until all is right again.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    /// The time after the repair began. Without a fault of its own, traffic has no trouble at all.
    pub after_repair: Duration,
    /// The reason.
    pub because: &'static str,
}

/// Undoes a fault. It knows what the fault has changed.
pub type Mend = Box<dyn FnOnce(&mut Ground) -> Result<()>>;

/// A fault of an agent, of the programs, of a node or of the network.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description of one line.
    pub what: &'static str,
    /// Its duration in the short form.
    pub short: Duration,
    /// Its duration in the long form.
    pub long: Duration,
    /// The losses that it may cause; none by default.
    pub allowed: &'static [Allowance],
    /// The time until all is right again; at once by default.
    pub right: Option<Right>,
    /// Plays it, and returns its repair.
    pub play: fn(&mut Ground) -> Result<Mend>,
}

impl Fault {
    /// Returns a fault of three seconds (20 in the long form) that may cost nothing.
    #[must_use]
    pub const fn new(name: &'static str, what: &'static str, play: fn(&mut Ground) -> Result<Mend>) -> Self {
        let (short, long) = (Duration::from_secs(3), Duration::from_secs(20));
        Self { name, what, short, long, allowed: &[], right: None, play }
    }

    /// Sets the durations of both forms.
    #[must_use]
    pub const fn lasting(mut self, short: u64, long: u64) -> Self {
        (self.short, self.long) = (Duration::from_secs(short), Duration::from_secs(long));
        self
    }

    /// Allows losses.
    #[must_use]
    pub const fn allowing(mut self, allowed: &'static [Allowance]) -> Self {
        self.allowed = allowed;
        self
    }

    /// Allows trouble while the fault lasts, and for some seconds after.
    #[must_use]
    pub const fn right_after(mut self, seconds: u64, because: &'static str) -> Self {
        self.right = Some(Right { after_repair: Duration::from_secs(seconds), because });
        self
    }
}
