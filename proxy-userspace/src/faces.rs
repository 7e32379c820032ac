//! The agent's HTTP servers, and what feeds them.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::Settings;
use crate::dataplane::Mode;
use crate::health::{self, Failure, Health, HealthObserver, SystemClock, Targets};
use crate::http::serve_at;
use crate::metrics::{self, Metrics, MetricsObserver, Pages};
use crate::reconcile::Observer;
use crate::source::Signs;

/// Servers that run: health check node ports, probes, metrics.
#[derive(Debug)]
pub struct Faces {
    feed: Feed,
    servers: JoinSet<()>,
    stop: watch::Sender<()>,
}

/// Where what the servers tell comes from.
#[derive(Clone, Debug)]
pub struct Feed {
    health: Arc<Health>,
    metrics: Metrics,
    targets: watch::Sender<Targets>,
}

impl Faces {
    /// Starts the servers. Ports that can't be opened for a Service are told to `failures`.
    #[must_use]
    pub fn start(settings: &Settings, failures: mpsc::Sender<Failure>) -> Self {
        let metrics = Metrics::new();
        let health = Health::new(SystemClock, settings.max_sync_interval).with_signs(metrics.signs.clone());
        let health = Arc::new(health);
        let (targets, wanted) = watch::channel(Targets::default());
        let (stop, stopped) = watch::channel(());
        let mut servers = JoinSet::new();
        servers.spawn(health::serve_ports(wanted, health.clone(), failures, stopped.clone()));
        servers.spawn(health::announce(health.clone(), metrics.conditions.clone(), stopped.clone()));
        servers.spawn(health::tell(settings.bpffs.clone(), health.clone(), stopped.clone()));
        if let Some(address) = settings.healthz_bind_address {
            let router = health::router(health.clone(), metrics.probes.clone());
            servers.spawn(serve_at("--healthz-bind-address", address, router, stopped.clone()));
        }
        if let Some(address) = settings.metrics_bind_address {
            let router = metrics::router(Pages::new(settings, &metrics));
            let router = router.merge(health::readyz_router(health.clone()));
            servers.spawn(serve_at("--metrics-bind-address", address, router, stopped));
        }
        Self { feed: Feed { health, metrics, targets }, servers, stop }
    }

    /// What feeds the servers.
    #[must_use]
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Ends the servers; what they have begun to answer is answered.
    pub async fn stop(mut self) {
        drop(self.stop);
        while self.servers.join_next().await.is_some() {}
    }
}

impl Feed {
    /// Tells the servers which data plane serves.
    pub fn set_mode(&self, mode: Mode) {
        // It is chosen once.
        let _ = self.metrics.mode.set(mode);
    }

    /// Where the source shows how it is.
    #[must_use]
    pub fn signs(&self) -> Signs {
        self.metrics.signs.clone()
    }

    /// Observers of a task that has not begun.
    #[must_use]
    pub fn observers(self) -> Vec<Box<dyn Observer>> {
        vec![
            Box::new(HealthObserver::new(self.health, self.targets)),
            Box::new(MetricsObserver::new(self.metrics, SystemClock)),
        ]
    }
}
