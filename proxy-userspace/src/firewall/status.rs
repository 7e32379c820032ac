//! What others may know of the firewall.

use std::path::Path;

use tokio::sync::watch;

use crate::dataplane::ebpf::firewall::{Applied, Firewall, Judged, judged};
use crate::policy::Index;

/// The state after the last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirewallStatus {
    /// Pods with a network of their own on this node that are behind a device.
    pub pods: usize,
    /// Devices whose pod is not known. They are closed if the cluster has a policy.
    pub unknown_devices: usize,
    /// Entries for peers.
    pub peers: usize,
    /// Entries for rules.
    pub rules: usize,
    /// Problems of objects.
    pub problems: usize,
    /// What failed.
    pub failures: Vec<String>,
}

/// Where the firewall's state is published; `None` before the first one.
#[derive(Clone, Debug)]
pub struct Statuses(watch::Sender<Option<FirewallStatus>>);

impl FirewallStatus {
    /// Returns the state of a firewall that can't do its work.
    pub(super) fn failed(why: &str) -> Self {
        Self { failures: vec![why.to_owned()], ..Self::default() }
    }

    /// Returns the state after a change.
    pub(super) fn of(firewall: &Firewall, applied: &Applied, unknown_devices: usize, index: &Index) -> Self {
        let [pods, peers, rules] = firewall.sizes();
        let failures = applied.failures.clone();
        Self { pods, unknown_devices, peers, rules, problems: index.problems().count(), failures }
    }
}

impl Default for Statuses {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Statuses {
    /// Returns a receiver of each state.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Option<FirewallStatus>> {
        self.0.subscribe()
    }

    /// Returns the last state.
    #[must_use]
    pub fn last(&self) -> Option<FirewallStatus> {
        self.0.borrow().clone()
    }

    /// Returns why the present policies are not in force; `None` where they are.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        match &*self.0.borrow() {
            None => {
                Some("the firewall has not listed all Namespaces, pods and NetworkPolicies yet".to_owned())
            }
            Some(status) => status.failures.first().cloned(),
        }
    }

    /// Returns the packets that were judged; `None` where there is no firewall, or its counters can't be read.
    #[must_use]
    pub fn judged(bpffs: &Path) -> Option<Judged> {
        judged(bpffs).ok().flatten()
    }

    /// Publishes a state.
    pub fn publish(&self, status: FirewallStatus) {
        self.0.send_replace(Some(status));
    }
}
