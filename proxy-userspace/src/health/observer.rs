//! Hands the reconcile task's results to the HTTP servers.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::{error, info};

use super::{Health, Targets};
use crate::dataplane::Check;
use crate::model::Desired;
use crate::reconcile::{Observer, Synced};
use crate::source::SourceEvent;

/// Records when a change came and when a sync took it, and publishes the health check node ports.
#[derive(Debug)]
pub struct HealthObserver {
    health: Arc<Health>,
    targets: watch::Sender<Targets>,
    begun: bool,
}

impl HealthObserver {
    /// Returns an observer of a task that has not begun.
    #[must_use]
    pub fn new(health: Arc<Health>, targets: watch::Sender<Targets>) -> Self {
        Self { health, targets, begun: false }
    }
}

impl Observer for HealthObserver {
    /// Counts the end of the listing as one change. Until then an earlier agent's state is served.
    fn listing(&mut self, batch: &[SourceEvent]) {
        if batch.iter().any(|event| matches!(event, SourceEvent::Listed(_))) {
            self.health.list();
            self.health.queue();
        }
    }

    fn received(&mut self, batch: &[SourceEvent]) {
        if batch.iter().any(|event| matches!(event, SourceEvent::Change(_))) {
            self.health.queue();
        }
    }

    /// Records a sync.
    ///
    /// A partial failure (a service port, a full map, one of several devices) does not make the
    /// node unhealthy. Most of these are the same on every node, and all nodes would lose all
    /// clients.
    fn synced(&mut self, synced: &Synced<'_>) {
        if !self.begun || synced.dirty.health {
            self.tell_of_node(synced.desired);
        }
        // Last, since the answers wait for the end of a sync.
        self.health.sync(&synced.report.failures);
    }

    fn checked(&mut self, check: &Check) {
        self.health.beat();
        if !self.health.set_fault(check.fault.as_deref()) {
            return;
        }
        if let Some(fault) = &check.fault {
            error!(error = fault, "self-test failed");
        } else {
            info!("self-test passes again");
        }
    }
}

impl HealthObserver {
    /// Records the state of this node's Node, and publishes the ports to open.
    fn tell_of_node(&mut self, desired: &Desired) {
        self.begun = true;
        self.health.set_node(&desired.node_name, desired.eligibility);
        let targets = Targets {
            checks: desired.health_checks.clone(),
            addresses: desired.health_check_addresses.clone(),
        };
        self.targets.send_if_modified(|now| {
            let is_new = *now != targets;
            *now = targets;
            is_new
        });
    }
}
