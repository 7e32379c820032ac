//! The data plane of a node that another proxy serves: rules in the kernel, such as those of kube-proxy.

use std::time::Duration;

use crate::dataplane::ipvs::traces_of_kube_proxy;
use crate::dataplane::{Check, Dataplane, SyncFailure, SyncReport};
use crate::model::{Desired, Dirty};
use crate::node::Topology;

/// Serves nothing, and tells whether another proxy has its rules on this node.
#[derive(Debug)]
pub struct KernelRules {
    find: fn() -> Vec<&'static str>,
}

impl Default for KernelRules {
    fn default() -> Self {
        Self { find: traces_of_kube_proxy }
    }
}

impl Dataplane for KernelRules {
    fn sync(&mut self, _: &Desired, _: &Dirty) -> SyncReport {
        SyncReport::default()
    }

    fn set_topology(&mut self, _: &Topology) -> SyncReport {
        let missing = SyncFailure::Node(
            "--proxy-mode none: kube-proxy has no rules on this node; start kube-proxy, which is to serve it"
                .to_owned(),
        );
        let failures = if (self.find)().is_empty() { vec![missing] } else { Vec::new() };
        SyncReport { failures, ..SyncReport::default() }
    }

    fn housekeep(&mut self, _: u64) -> Option<Duration> {
        None
    }

    fn check(&mut self) -> Check {
        Check::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_rules_of_kube_proxy_is_served_by_none() {
        let mut rules = KernelRules { find: Vec::new };
        let report = rules.set_topology(&Topology::default());
        assert!(!report.serves(), "{report:?}");
        rules.find = || vec!["nftables' table kube-proxy"];
        assert!(rules.set_topology(&Topology::default()).is_complete());
    }
}
