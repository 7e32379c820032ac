//! A Node object, read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;

use super::Family;
use super::address::address;
use super::problem::Notes;

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeSpec {
    /// Its InternalIPs, in their order.
    pub internal: Vec<IpAddr>,
    /// Its ExternalIPs, in their order.
    pub external: Vec<IpAddr>,
    /// The zone it is in; `None` where its label is missing or empty.
    pub zone: Option<String>,
}

impl NodeSpec {
    /// The first InternalIP of a family.
    pub fn primary(&self, family: Family) -> Option<IpAddr> {
        self.internal.iter().copied().find(|address| Family::of(*address) == family)
    }
    /// Where other nodes reach it and it sends from: its InternalIPs, or else its ExternalIPs.
    pub fn peer_addresses(&self) -> BTreeSet<IpAddr> {
        let addresses = if self.internal.is_empty() { &self.external } else { &self.internal };
        addresses.iter().copied().collect()
    }
    /// All its addresses.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.internal.iter().chain(&self.external).copied().collect()
    }
}

pub(super) fn read_node(node: &Node, notes: &mut Notes) -> NodeSpec {
    let labels = node.metadata.labels.as_ref();
    let mut spec = NodeSpec {
        zone: labels.and_then(|labels| labels.get(ZONE_LABEL)).filter(|zone| !zone.is_empty()).cloned(),
        ..NodeSpec::default()
    };
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
