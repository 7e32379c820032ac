//! What is said of the syncs: each state a person cares about, once.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{debug, error, info, warn};

use crate::dataplane::{SyncFailure, SyncReport};
use crate::model::{Desired, Eligibility, Problem, Severity};
use crate::source::Listing;

/// Remembers what was said, so that only changes are.
#[derive(Debug, Default)]
pub struct Journal {
    serving: bool,
    pending: BTreeMap<String, String>,
    failures: BTreeSet<SyncFailure>,
    /// What was said of the own Node; `None` = nothing, and there was nothing to say.
    eligibility: Eligibility,
}

impl Journal {
    /// A sync is over.
    pub fn synced(&mut self, desired: &Desired, report: SyncReport) {
        if !self.serving {
            self.serving = true;
            let backends = desired.ports.values().map(|port| port.endpoints.len()).sum::<usize>();
            let (ports, nodes) = (desired.ports.len(), desired.nodes.len());
            info!(
                "serving as {}: {ports} service ports, {backends} endpoints, {nodes} nodes",
                desired.node_name
            );
        }
        if desired.eligibility != self.eligibility {
            self.eligibility = desired.eligibility;
            node_changed(&desired.node_name, desired.eligibility);
        }
        let mut pending = BTreeMap::new();
        for (key, reason) in report.pending {
            // Both families of a port have the same name.
            pending.insert(format!("{key} ({:?})", key.family), reason);
        }
        for (port, reason) in &pending {
            if self.pending.get(port) != Some(reason) {
                warn!("{port} is degraded, tried again: {reason}");
            }
        }
        for port in self.pending.keys().filter(|port| !pending.contains_key(*port)) {
            info!("{port} is no longer degraded");
        }
        self.pending = pending;

        let failures: BTreeSet<SyncFailure> = report.failures.into_iter().collect();
        for failure in failures.difference(&self.failures) {
            if failure.is_fatal() { error!("{failure}") } else { warn!("{failure}") }
        }
        if failures.is_empty() && !self.failures.is_empty() {
            info!("all devices and ways are as they shall be");
        }
        self.failures = failures;
    }
}

/// Whether load balancers may send new clients here has changed.
fn node_changed(name: &str, eligibility: Eligibility) {
    let why = match eligibility {
        Eligibility::Eligible => {
            return info!("Node {name} is there and stays; /healthz no longer fails for it");
        }
        Eligibility::Missing => {
            return warn!(
                "there is no Node {name}: /healthz and /readyz fail, NodePorts have no address but the last known \
                 one; check --hostname-override, and whether the Node was deleted"
            );
        }
        Eligibility::Deleted => "is being deleted",
        Eligibility::Tainted => "is about to be removed by the cluster autoscaler (its taint)",
    };
    warn!("Node {name} {why}: /healthz fails, so that load balancers send no new clients here");
}

/// The source has told of all it could.
pub fn listed(listing: &Listing) {
    match listing {
        Listing::Complete => debug!("everything has been read"),
        Listing::Without(unread) => {
            let unread: Vec<_> = unread.iter().map(ToString::to_string).collect();
            warn!("nothing that is already served is removed until this can be read: {}", unread.join(", "));
        }
    }
}

/// Something is wrong with a manifest or an object.
pub fn report(problem: &Problem) {
    match problem.severity {
        Severity::Info => info!("{problem}"),
        Severity::Warning => warn!("{problem}"),
    }
}
