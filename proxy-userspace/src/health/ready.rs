//! The conditions under which this node is ready. A roll-out waits for them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A condition of readiness. A roll-out goes on to the next node when all conditions hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The source has listed all objects once.
    SourceListed,
    /// A Node with this node's name exists.
    NodeFound,
    /// The last sync left programs attached to an uplink, or IPVS filled.
    DataPlane,
    /// No change waits too long, and the reconcile task is running.
    ChangesApplied,
    /// No program is detached, and none gives a wrong verdict.
    SelfTest,
    /// No check of this node that the agent runs each minute, and that readiness waits for, fails.
    NodeChecks,
    /// With `--network-policy on`: the firewall has the present policies.
    NetworkPolicies,
}

impl Condition {
    /// All conditions, in the order in which a starting agent meets them.
    pub const ALL: [Self; 7] = [
        Self::SourceListed,
        Self::NodeFound,
        Self::DataPlane,
        Self::ChangesApplied,
        Self::SelfTest,
        Self::NodeChecks,
        Self::NetworkPolicies,
    ];

    /// Returns the name in answers, metrics and `millrace status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SourceListed => "source-listed",
            Self::NodeFound => "node-found",
            Self::DataPlane => "data-plane",
            Self::ChangesApplied => "changes-applied",
            Self::SelfTest => "self-test",
            Self::NodeChecks => "node-checks",
            Self::NetworkPolicies => "network-policies",
        }
    }
}

/// A condition that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The condition.
    pub condition: Condition,
    /// The reason, in the agent's own words.
    pub message: String,
    /// The words of another program, such as the API server. For this node only: they may name
    /// servers and accounts.
    pub cause: Option<String>,
}

/// The conditions that keep this node from being ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The conditions that fail, in their order; none = the node is ready.
    pub failing: Vec<Failing>,
    /// The failures of the last sync that concern more than one service port.
    pub failures: Vec<String>,
}

impl Readiness {
    /// Returns whether all conditions hold.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.failing.is_empty()
    }

    /// Returns why a condition fails; `None` where it holds.
    #[must_use]
    pub fn message(&self, condition: Condition) -> Option<&str> {
        let failing = self.failing.iter().find(|failing| failing.condition == condition);
        failing.map(|failing| failing.message.as_str())
    }

    /// Returns the form that `millrace status` shows.
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
    /// Writes `source-listed: ...; node-found: ...`, without the causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, failing) in self.failing.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", failing.condition.name(), failing.message)?;
        }
        Ok(())
    }
}

/// The readiness of a running agent, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyView {
    /// Whether all conditions hold.
    pub ready: bool,
    /// The conditions that fail.
    pub failing: Vec<FailingView>,
    /// The failures of the last sync that concern more than one service port.
    pub failures: Vec<String>,
}

/// A condition that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingView {
    /// Its name.
    pub condition: String,
    /// The reason.
    pub message: String,
    /// The words of another program, such as the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}
