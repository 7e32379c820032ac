//! A Node object, read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;

use super::address::address;
use super::problem::Notes;
use super::{Eligibility, Family};

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The cluster autoscaler's mark on a node it is about to remove.
const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The operating system, as Go names it.
pub const OS_LABEL: &str = "kubernetes.io/os";
/// The one that an agent can run on.
pub const AGENTS_OS: &str = "linux";

/// Whether an agent may be expected on a node: it is not known to have another operating system, nor about to go.
#[must_use]
pub fn may_run_agent(node: &Node) -> bool {
    let os = node.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    os.is_none_or(|os| os == AGENTS_OS) && node.metadata.deletion_timestamp.is_none()
}

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSpec {
    /// Its InternalIPs, in their order.
    pub internal: Vec<IpAddr>,
    /// Its ExternalIPs, in their order.
    pub external: Vec<IpAddr>,
    /// What only matters of this node's own.
    pub own: OwnFacts,
}

/// What a Node object says of its node besides the addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnFacts {
    /// The zone it is in; `None` where its label is missing or empty.
    pub zone: Option<String>,
    pub eligibility: Eligibility,
}

/// Which node an object is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    This,
    Other,
}

impl NodeSpec {
    /// The first InternalIP of a family, or else its first ExternalIP.
    pub fn primary(&self, family: Family) -> Option<IpAddr> {
        let addresses = self.internal.iter().chain(&self.external);
        addresses.copied().find(|address| Family::of(*address) == family)
    }
    /// Where other nodes reach it and it sends from: its InternalIPs, or else its ExternalIPs.
    pub fn peer_addresses(&self) -> BTreeSet<IpAddr> {
        let addresses = if self.internal.is_empty() { &self.external } else { &self.internal };
        addresses.iter().copied().collect()
    }
    /// What is known of this node once its object is gone.
    pub fn without_object(self) -> Self {
        Self { own: OwnFacts { eligibility: Eligibility::Missing, ..self.own }, ..self }
    }
    /// All its addresses.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.internal.iter().chain(&self.external).copied().collect()
    }
}

pub(super) fn read_node(node: &Node, whose: Whose, notes: &mut Notes) -> NodeSpec {
    let own = match whose {
        Whose::This => read_own(node),
        Whose::Other => OwnFacts::default(),
    };
    let mut spec = NodeSpec { own, ..NodeSpec::default() };
    let entries = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
    for (index, entry) in entries.iter().enumerate() {
        let list = match entry.type_.as_str() {
            "InternalIP" => &mut spec.internal,
            "ExternalIP" => &mut spec.external,
            _ => continue,
        };
        match address(&entry.address) {
            Ok(address) => list.push(address),
            Err(wrong) => notes.warn(format!("status.addresses[{index}].address"), wrong),
        }
    }
    spec
}

fn read_own(node: &Node) -> OwnFacts {
    let labels = node.metadata.labels.as_ref();
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let eligibility = if node.metadata.deletion_timestamp.is_some() {
        Eligibility::Deleted
    } else if taints.iter().any(|taint| taint.key == AUTOSCALER_TAINT) {
        Eligibility::Tainted
    } else {
        Eligibility::Eligible
    };
    let zone = labels.and_then(|labels| labels.get(ZONE_LABEL)).filter(|zone| !zone.is_empty()).cloned();
    OwnFacts { zone, eligibility }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
