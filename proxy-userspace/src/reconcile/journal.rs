//! The log lines about syncs: each state is logged once, when it begins.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{debug, error, info, warn};

use crate::dataplane::{SyncFailure, SyncReport};
use crate::model::{Desired, Eligibility, Problem, Severity};
use crate::source::Listing;

/// The states that were logged last, so that only changes are logged.
#[derive(Debug, Default)]
pub struct Journal {
    serving: bool,
    pending: BTreeMap<String, String>,
    failures: BTreeSet<SyncFailure>,
    /// The state of this node's own Node that was logged last. `Eligible` needs no line at the
    /// start.
    eligibility: Eligibility,
}

impl Journal {
    /// Logs the changes since the last sync.
    pub fn synced(&mut self, desired: &Desired, report: SyncReport) {
        if !self.serving {
            self.serving = true;
            let backends = desired.ports.values().map(|port| port.endpoints.len()).sum::<usize>();
            let (ports, nodes) = (desired.ports.len(), desired.nodes.len());
            info!(
                node = desired.node_name,
                service_ports = ports,
                endpoints = backends,
                nodes,
                "serving as a Service proxy"
            );
        }
        if desired.eligibility != self.eligibility {
            self.eligibility = desired.eligibility;
            node_changed(&desired.node_name, desired.eligibility);
        }
        let mut pending = BTreeMap::new();
        for (key, reason) in report.pending {
            // Both families of a service port have the same name.
            pending.insert(format!("{key} ({:?})", key.family), reason);
        }
        for (port, reason) in &pending {
            if self.pending.get(port) != Some(reason) {
                warn!(service = port, reason, "service port is degraded; tried again");
            }
        }
        for port in self.pending.keys().filter(|port| !pending.contains_key(*port)) {
            info!(service = port, "service port is no longer degraded");
        }
        self.pending = pending;

        let failures: BTreeSet<SyncFailure> = report.failures.into_iter().collect();
        for failure in failures.difference(&self.failures) {
            if failure.is_fatal() {
                error!(error = %failure, "sync failed: this node can't serve");
            } else {
                warn!(kind = failure.concern(), error = %failure, "sync failed in part");
            }
        }
        if failures.is_empty() && !self.failures.is_empty() {
            info!("all devices and routes are in sync");
        }
        self.failures = failures;
    }
}

/// Logs a change of this node's eligibility for new clients.
fn node_changed(name: &str, eligibility: Eligibility) {
    let reason = match eligibility {
        Eligibility::Eligible => {
            return info!(node = name, "the Node exists and stays: /healthz no longer fails for it");
        }
        Eligibility::Missing => {
            return warn!(
                node = name,
                "the Node does not exist: /healthz and /readyz fail, NodePorts keep their last known addresses; \
                 check --hostname-override, and whether the Node was deleted"
            );
        }
        Eligibility::Deleted => "it is being deleted",
        Eligibility::Tainted => "the cluster autoscaler is about to remove it (its taint)",
    };
    warn!(
        node = name,
        reason, "the Node goes: /healthz fails, so that load balancers send no new clients here"
    );
}

/// Logs whether the source could read all objects.
pub fn listed(listing: &Listing) {
    match listing {
        Listing::Complete => debug!("all objects were read"),
        Listing::Without(unread) => {
            let unread = unread.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            warn!(unread, "objects can't be read: nothing that is already served is removed until they can");
        }
    }
}

/// Logs a problem with a manifest or an object.
pub fn report(problem: &Problem) {
    match problem.severity {
        Severity::Info => info!("{problem}"),
        Severity::Warning => warn!("{problem}"),
    }
}
