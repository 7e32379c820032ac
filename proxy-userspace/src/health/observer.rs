//! From the reconciler's task to the HTTP servers.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::{error, info};

use super::{Health, Targets};
use crate::dataplane::Check;
use crate::model::Desired;
use crate::reconcile::{Observer, Synced};
use crate::source::SourceEvent;

/// Writes down when a change came and when a sync took it, and tells which ports to open.
#[derive(Debug)]
pub struct HealthObserver {
    health: Arc<Health>,
    targets: watch::Sender<Targets>,
    begun: bool,
}

impl HealthObserver {
    /// An observer of a task that has not begun.
    #[must_use]
    pub fn new(health: Arc<Health>, targets: watch::Sender<Targets>) -> Self {
        Self { health, targets, begun: false }
    }
}

impl Observer for HealthObserver {
    /// A listing may take long, and what an earlier agent left is served meanwhile. From its end on it is a change.
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

    /// What is degraded (a service port, a full map, one device of several) drains no node: most of it is the same on
    /// every node, and all of them would lose all their clients.
    fn synced(&mut self, synced: &Synced<'_>) {
        if !self.begun || synced.dirty.health {
            self.tell_of_node(synced.desired);
        }
        // Last: a sync that is over is what the answers wait for.
        self.health.sync(&synced.report.failures);
    }

    fn checked(&mut self, check: &Check) {
        self.health.beat();
        if !self.health.set_fault(check.fault.as_deref()) {
            return;
        }
        if let Some(fault) = &check.fault {
            error!("self-test: {fault}");
        } else {
            info!("self-test: all is well again");
        }
    }
}

impl HealthObserver {
    /// What the own Node says, and which ports to open.
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
