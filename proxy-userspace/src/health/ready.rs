//! Whether this node is ready, which a roll-out waits for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What has to hold. A roll-out goes on to the next node when all of them do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The source told once of everything there is.
    SourceListed,
    /// There is a Node of this node's name.
    NodeFound,
    /// The last sync left programs attached to an uplink, or IPVS filled.
    DataPlane,
    /// No change waits for too long, and the agent's task goes on.
    ChangesApplied,
    /// No program is detached, and none gives a wrong verdict.
    SelfTest,
}

impl Condition {
    /// All of them, in the order in which an agent that starts comes to them.
    pub const ALL: [Self; 5] =
        [Self::SourceListed, Self::NodeFound, Self::DataPlane, Self::ChangesApplied, Self::SelfTest];

    /// The name in answers, metrics and `millrace status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SourceListed => "source-listed",
            Self::NodeFound => "node-found",
            Self::DataPlane => "data-plane",
            Self::ChangesApplied => "changes-applied",
            Self::SelfTest => "self-test",
        }
    }
}

/// A condition that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Which one.
    pub condition: Condition,
    /// Why, in our own words.
    pub message: String,
    /// What somebody else said. It is for this node only: it may name servers and accounts.
    pub cause: Option<String>,
}

/// What keeps this node from being ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The conditions that don't hold, in their order; none = it is ready.
    pub failing: Vec<Failing>,
    /// What the last sync failed on beside service ports.
    pub failures: Vec<String>,
}

impl Readiness {
    /// Whether all conditions hold.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.failing.is_empty()
    }

    /// Why a condition does not hold; `None` where it does.
    #[must_use]
    pub fn message(&self, condition: Condition) -> Option<&str> {
        let failing = self.failing.iter().find(|failing| failing.condition == condition);
        failing.map(|failing| failing.message.as_str())
    }

    /// As `millrace status` shows it.
    #[must_use]
    pub fn view(&self) -> ReadyView {
        let failing = self.failing.iter().map(|failing| FailingView {
            condition: failing.condition.name().to_owned(),
            message: failing.message.clone(),
            cause: failing.cause.clone(),
        });
        ReadyView { ready: self.is_ready(), failing: failing.collect(), failures: self.failures.clone() }
    }
}

impl fmt::Display for Readiness {
    /// `source-listed: ...; node-found: ...`, without the causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, failing) in self.failing.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", failing.condition.name(), failing.message)?;
        }
        Ok(())
    }
}

/// What an agent that runs says of itself, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyView {
    /// Whether all conditions hold.
    pub ready: bool,
    /// Those that don't.
    pub failing: Vec<FailingView>,
    /// What the last sync failed on beside service ports, in words.
    pub failures: Vec<String>,
}

/// A condition that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingView {
    /// Its name.
    pub condition: String,
    /// Why it does not hold.
    pub message: String,
    /// What somebody else said, such as the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}
