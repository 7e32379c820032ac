//! Parses Node objects.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;

use super::address::address;
use super::problem::Notes;
use super::{Eligibility, Family};

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The cluster autoscaler's taint on a node that it is about to remove.
pub const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The label of a node that gets no clients from load balancers.
pub const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The label with the operating system, as Go names it.
pub const OS_LABEL: &str = "kubernetes.io/os";
/// The operating system that the agent runs on.
pub const AGENTS_OS: &str = "linux";

/// The condition that tells whether a node's kubelet is well.
pub const READY: &str = "Ready";

/// Returns whether the node may have an agent: it does not have another operating system, and is
/// not about to go.
#[must_use]
pub fn may_run_agent(node: &Node) -> bool {
    let os = node.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    os.is_none_or(|os| os == AGENTS_OS) && node.metadata.deletion_timestamp.is_none()
}

/// Returns whether load balancers send no clients to the node: it has [`EXCLUDE_LABEL`], may not have an agent, or is about
/// to go.
#[must_use]
pub fn gets_no_clients(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(EXCLUDE_LABEL))
        || eligibility(node) != Eligibility::Eligible
        || !may_run_agent(node)
}

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSpec {
    /// The InternalIPs in their order.
    pub internal: Vec<IpAddr>,
    /// The ExternalIPs in their order.
    pub external: Vec<IpAddr>,
    /// The ranges of its pods in their order.
    pub pod_ranges: Vec<IpNet>,
    /// See [`gets_no_clients`].
    pub gets_no_clients: bool,
    /// Whether its kubelet does not tell that it is well. It may serve all the same.
    pub is_not_ready: bool,
    /// The parts that matter only for this node's own object.
    pub own: OwnFacts,
}

/// The parts of this node's own object besides the addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnFacts {
    /// The zone; `None` if the label is missing or empty.
    pub zone: Option<String>,
    pub eligibility: Eligibility,
}

/// The node that an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhichNode {
    This,
    Other,
}

impl NodeSpec {
    /// Returns the first InternalIP of a family, or else its first ExternalIP.
    pub fn primary(&self, family: Family) -> Option<IpAddr> {
        let addresses = self.internal.iter().chain(&self.external);
        addresses.copied().find(|address| Family::of(*address) == family)
    }
    /// Returns the addresses that other nodes send to and receive from: the InternalIPs, or else
    /// the ExternalIPs.
    pub fn peer_addresses(&self) -> BTreeSet<IpAddr> {
        let addresses = if self.internal.is_empty() { &self.external } else { &self.internal };
        addresses.iter().copied().collect()
    }
    /// Returns the parts that still hold after the object was deleted.
    pub fn without_object(self) -> Self {
        let own = OwnFacts { eligibility: Eligibility::Missing, ..self.own };
        Self { own, gets_no_clients: false, is_not_ready: false, ..self }
    }
    /// Returns all addresses.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.internal.iter().chain(&self.external).copied().collect()
    }
}

pub(super) fn read_node(node: &Node, which: WhichNode, notes: &mut Notes) -> NodeSpec {
    let own = match which {
        WhichNode::This => read_own(node),
        WhichNode::Other => OwnFacts::default(),
    };
    let gets_no_clients = gets_no_clients(node);
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_not_ready = conditions.iter().any(|one| one.type_ == READY && one.status != "True");
    let mut spec = NodeSpec { gets_no_clients, is_not_ready, own, ..NodeSpec::default() };
    let ranges = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
    for (index, range) in ranges.iter().enumerate() {
        match range.parse() {
            Ok(range) => spec.pod_ranges.push(range),
            Err(_) => {
                notes.warn(format!("spec.podCIDRs[{index}]"), format!("{range:?} is no range of addresses"));
            }
        }
    }
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

fn eligibility(node: &Node) -> Eligibility {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    if node.metadata.deletion_timestamp.is_some() {
        Eligibility::Deleted
    } else if taints.iter().any(|taint| taint.key == AUTOSCALER_TAINT) {
        Eligibility::Tainted
    } else {
        Eligibility::Eligible
    }
}

fn read_own(node: &Node) -> OwnFacts {
    let labels = node.metadata.labels.as_ref();
    let zone = labels.and_then(|labels| labels.get(ZONE_LABEL)).filter(|zone| !zone.is_empty()).cloned();
    OwnFacts { zone, eligibility: eligibility(node) }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
