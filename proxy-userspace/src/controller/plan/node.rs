//! What of a Node decides whether its addresses are given to Services.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use super::pool::Pool;
use crate::model::{READY, gets_no_clients};

/// A Node's name.
pub type NodeName = Arc<str>;

/// The label of k3s that chooses the nodes with a load balancer.
const K3S_ENABLE_LABEL: &str = "svccontroller.k3s.cattle.io/enablelb";

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeFacts {
    pub internal: Vec<IpAddr>,
    pub external: Vec<IpAddr>,
    pub is_ready: bool,
    /// Whether the node is to have no new clients at all, or has no agent: it has another operating system.
    is_excluded: bool,
    /// The value of k3s' label that chooses the nodes with a load balancer, if the node has it.
    enable: Option<String>,
    pool: Pool,
}

impl NodeFacts {
    pub fn of(node: &Node) -> Self {
        let label = |name: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(name));
        let status = node.status.as_ref();
        let entries = || status.iter().flat_map(|status| status.addresses.iter().flatten());
        // The agents report an address that can't be read.
        let of_type = |wanted: &str| {
            let entries = entries().filter(|entry| entry.type_ == wanted);
            entries.filter_map(|entry| entry.address.parse().ok()).collect()
        };
        let conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            internal: of_type("InternalIP"),
            external: of_type("ExternalIP"),
            is_ready: conditions.into_iter().any(|one| one.type_ == READY && one.status == "True"),
            is_excluded: gets_no_clients(node),
            enable: label(K3S_ENABLE_LABEL).cloned(),
            pool: Pool::of(node.metadata.labels.as_ref()),
        }
    }

    /// Returns whether the node has k3s' label that chooses nodes. If any node has it, only those count
    /// where it says `true`, and only then k3s heeds its pools.
    pub const fn takes_part_in_choice(&self) -> bool {
        self.enable.is_some()
    }

    /// Returns whether the node may have the traffic of Services with this pool. `has_choice`: whether any
    /// node has k3s' label.
    pub fn serves(&self, pool: &Pool, has_choice: bool) -> bool {
        let is_chosen = !has_choice || self.enable.as_deref() == Some("true");
        !self.is_excluded && is_chosen && self.pool.serves(pool, has_choice)
    }
}
