//! The result of a walk: its steps and its end.

use std::net::SocketAddr;

use proxy_common::verdict::Reason;
use serde::Serialize;

use crate::dataplane::ebpf::dry_run::Concern;

/// A step of a walk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The question in one word, such as `frontend`.
    pub step: &'static str,
    /// The answer.
    pub found: String,
    /// The maps that have the answer; empty if no map was asked.
    pub maps: String,
}

/// The end of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The programs count the frame under this reason.
    Verdict(Verdict),
    /// The walk does not follow such frames; the word says which.
    NotWalked(&'static str),
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The reason.
    pub reason: Reason,
    /// Other reasons, if the kernel's routes decide, which the walk does not ask.
    pub or: Vec<Reason>,
    /// The backend that gets the packet.
    pub backend: Option<SocketAddr>,
    /// The cause in a clause; empty if the reason says enough.
    pub why: String,
}

impl Verdict {
    /// Returns a verdict with a cause.
    pub fn new(reason: Reason, why: impl Into<String>) -> Self {
        Self { reason, or: Vec::new(), backend: None, why: why.into() }
    }

    /// Whether a run of the programs may end in this reason.
    #[must_use]
    pub fn allows(&self, reason: Reason) -> bool {
        self.reason == reason || self.or.contains(&reason)
    }
}

impl From<Verdict> for End {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

/// A walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// The end.
    pub end: End,
    /// The entries that the walk looked up, which the programs look up as well.
    pub concern: Concern,
}

impl Walk {
    /// Whether the program may cut the packet, and send its first part for real, even in a test run.
    #[must_use]
    pub fn may_cut(&self) -> bool {
        matches!(&self.end, End::Verdict(verdict) if verdict.allows(Reason::Fragmented))
    }
}
