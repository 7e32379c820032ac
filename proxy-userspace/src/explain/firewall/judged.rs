//! The result of a judgement.

use proxy_common::policy::{PolicyDirection, PolicyDrop};

use crate::explain::Step;

/// A packet at a device of a pod, judged by the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The direction of the packet, seen from the pod.
    pub direction: PolicyDirection,
    /// Index of the pod's device on the node.
    pub device: u32,
    /// `namespace/name` of the pod; none if it is not known.
    pub pod: Option<String>,
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// The end.
    pub ruling: Ruling,
    /// The policies that isolate the pod in the direction of the connection, as `namespace/name`.
    pub isolated_by: Vec<String>,
    /// The cause of a drop in a clause; empty if the packet passes.
    pub why: String,
}

/// The end of what rules of nftables drop, in `explain` and `policies`.
pub const CLOSED_BY_NFTABLES: &str = "closed_by_nftables";

/// The end of a judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Passes: both ends are the same pod.
    Itself,
    /// Passes: no policy isolates the pod in this direction.
    NotIsolated,
    /// Passes: the pod's own node reaches it.
    OwnNode,
    /// Passes: the pod is not known, and the cluster has no policy.
    NoPolicies,
    /// Passes: the entry of its connection says so, and no rule that is named.
    Connection,
    /// Passes: each of these policies has a rule that allows it, as `namespace/name`. Those whose names had no room are missing, and
    /// those that add nothing to one that allows everything.
    Allowed(Vec<String>),
    /// Dropped: policies isolate the pod, and no rule allows the connection.
    Denied,
    /// Dropped: the pod behind the device is not known, and the cluster has policies.
    UnknownPod,
    /// Dropped: no agent has looked at the device yet, and rules of nftables close it.
    ClosedByNftables,
    /// Dropped: the source is no address of the pod, or the packet is a tunnel to a node.
    ForeignSource,
}

impl Ruling {
    /// Returns the name in JSON. That of a drop is the one of its reason.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Itself => "itself",
            Self::NotIsolated => "not_isolated",
            Self::OwnNode => "own_node",
            Self::NoPolicies => "no_policies",
            Self::Connection => "connection",
            Self::Allowed(_) => "allowed",
            Self::Denied => PolicyDrop::Denied.name(),
            Self::UnknownPod => PolicyDrop::UnknownPod.name(),
            Self::ForeignSource => PolicyDrop::ForeignSource.name(),
            Self::ClosedByNftables => CLOSED_BY_NFTABLES,
        }
    }

    /// Returns the reason of a drop by the programs.
    #[must_use]
    pub const fn dropped(&self) -> Option<PolicyDrop> {
        match self {
            Self::Denied => Some(PolicyDrop::Denied),
            Self::UnknownPod => Some(PolicyDrop::UnknownPod),
            Self::ForeignSource => Some(PolicyDrop::ForeignSource),
            Self::Itself
            | Self::NotIsolated
            | Self::OwnNode
            | Self::NoPolicies
            | Self::Connection
            | Self::Allowed(_)
            | Self::ClosedByNftables => None,
        }
    }

    /// Whether the packet ends here.
    #[must_use]
    pub const fn is_drop(&self) -> bool {
        matches!(self, Self::ClosedByNftables) || self.dropped().is_some()
    }
}
