//! The agent's HTTP servers, and the state that they answer from.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::announce::Figures;
use crate::check::{self, Checked, Outcome};
use crate::config::{ProxyMode, Settings};
use crate::dataplane::Mode;
use crate::firewall::Statuses;
use crate::health::{self, Failure, Health, HealthObserver, SystemClock, Targets};
use crate::http::serve_at;
use crate::metrics::{self, Metrics, MetricsObserver, Pages};
use crate::reconcile::Observer;
use crate::source::Signs;

/// The running servers: health check node ports, probes, metrics.
#[derive(Debug)]
pub struct HttpServers {
    served: ServedState,
    servers: JoinSet<()>,
    stop: watch::Sender<()>,
}

/// The state that the servers answer from.
#[derive(Clone, Debug)]
pub struct ServedState {
    health: Arc<Health>,
    metrics: Metrics,
    targets: watch::Sender<Targets>,
    mode: watch::Sender<Option<Mode>>,
}

impl HttpServers {
    /// Starts the servers. Health check node ports that can't be opened are sent to `failures`.
    #[must_use]
    pub fn start(settings: &Settings, failures: mpsc::Sender<Failure>) -> Self {
        let metrics = Metrics::new();
        let health = Health::new(SystemClock, settings.max_sync_interval).with_signs(metrics.signs.clone());
        let firewall = settings.network_policy.then(|| metrics.firewall.clone());
        let health = Arc::new(health.with_firewall(firewall));
        let (targets, wanted) = watch::channel(Targets::default());
        let (stop, stopped) = watch::channel(());
        let mut servers = JoinSet::new();
        // A kube-proxy that takes the node over has the health check node ports.
        if settings.proxy_mode != ProxyMode::None {
            servers.spawn(health::serve_ports(wanted, health.clone(), failures, stopped.clone()));
        }
        servers.spawn(health::announce(health.clone(), metrics.conditions.clone(), stopped.clone()));
        let node = settings.model.node_name.clone();
        servers.spawn(health::serve_status(settings.bpffs.clone(), node, health.clone(), stopped.clone()));
        if let Some(address) = settings.healthz_bind_address {
            let router = health::router(health.clone(), metrics.probes.clone());
            servers.spawn(serve_at("--healthz-bind-address", address, router, stopped.clone()));
        }
        if let Some(address) = settings.metrics_bind_address {
            let router = metrics::router(Pages::new(settings, &metrics));
            let router = router.merge(health::readyz_router(health.clone()));
            servers.spawn(serve_at("--metrics-bind-address", address, router, stopped));
        }
        Self {
            served: ServedState { health, metrics, targets, mode: watch::Sender::new(None) },
            servers,
            stop,
        }
    }

    /// Returns the state that the servers answer from.
    #[must_use]
    pub fn served(&self) -> ServedState {
        self.served.clone()
    }

    /// Stops the servers. They finish the answers they have begun.
    pub async fn stop(mut self) {
        drop(self.stop);
        while self.servers.join_next().await.is_some() {}
    }
}

impl ServedState {
    /// Sets the data plane that serves, once.
    pub fn set_mode(&self, mode: Mode, wanted: ProxyMode) {
        self.metrics.set_mode(mode, wanted);
        self.mode.send_replace(Some(mode));
    }

    /// Takes over what the node's checks found.
    pub fn set_checks(&self, checked: &[Checked]) {
        for one in checked {
            for outcome in [Outcome::Warn, Outcome::Fail] {
                let labels = [("check", one.id), ("result", outcome.name())];
                let count = one.findings.iter().filter(|finding| finding.outcome == outcome).count();
                self.metrics.checks.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        self.health.set_node_checks(check::unready(checked));
    }

    /// Returns the record of the source's state.
    #[must_use]
    pub fn signs(&self) -> Signs {
        self.metrics.signs.clone()
    }

    /// Returns the figures of the announced addresses.
    #[must_use]
    pub fn announced(&self) -> Figures {
        self.metrics.announced.clone()
    }

    /// Returns the data plane that serves, once it is known.
    #[must_use]
    pub fn mode_told(&self) -> watch::Receiver<Option<Mode>> {
        self.mode.subscribe()
    }

    /// Returns where the pod firewall publishes its state.
    #[must_use]
    pub fn firewall(&self) -> Statuses {
        self.metrics.firewall.clone()
    }

    /// Returns the observers for a task that has not begun.
    #[must_use]
    pub fn observers(self) -> Vec<Box<dyn Observer>> {
        vec![
            Box::new(HealthObserver::new(self.health, self.targets)),
            Box::new(MetricsObserver::new(self.metrics, SystemClock)),
        ]
    }
}
