//! The two programs of the firewall.

use proxy_common::policy::PolicyDirection;

/// A program of the firewall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// `policy_from_pod`.
    From,
    /// `policy_to_pod`.
    To,
}

impl Side {
    /// Both of them. The order is that of the attachment: no connection of a pod is open before its replies are judged.
    pub const ALL: [Self; 2] = [Self::To, Self::From];

    /// Returns the program of a direction.
    #[must_use]
    pub const fn of(direction: PolicyDirection) -> Self {
        match direction {
            PolicyDirection::Ingress => Self::To,
            PolicyDirection::Egress => Self::From,
        }
    }

    /// Returns the name of the program.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::From => "policy_from_pod",
            Self::To => "policy_to_pod",
        }
    }
}
