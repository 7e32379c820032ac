//! What Prometheus and people ask at `--metrics-bind-address`.

mod configz;
mod kernel;
mod latency;
mod observer;
mod pages;
mod process;
mod text;

use std::sync::{Arc, OnceLock};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use prometheus_client::registry::Registry;
use proxy_common::LAYOUT_VERSION;

use crate::dataplane::Mode;
use crate::health::{ConditionGauges, ProbeCounters};
use crate::source::Signs;

pub use kernel::KernelMetrics;
pub use observer::MetricsObserver;
pub use pages::{Pages, router};
pub use process::ProcessMetrics;

/// A time in seconds since 1970.
type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;
/// One label and its value.
type Label = [(&'static str, &'static str); 1];
/// Histograms by family, which are made by this.
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

/// The families, as kube-proxy's label `ip_family` has them. It has a sync for each; here one does both, and is counted for
/// each.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// The label of a family.
const fn of_family(family: &'static str) -> Label {
    [("ip_family", family)]
}

/// What the agent counts. Clones count together.
///
/// Names that begin with `kubeproxy_` are kube-proxy's, with its meaning and buckets.
#[derive(Clone, Debug)]
pub struct Metrics {
    sync_duration: Histograms,
    programming_duration: Histograms,
    last_synced: Family<Label, Seconds>,
    last_queued: Family<Label, Seconds>,
    endpoint_changes: Changes,
    service_changes: Changes,
    no_local_endpoints: Family<[(&'static str, &'static str); 2], Gauge>,
    degraded: Gauge,
    failures: Family<Label, Gauge>,
    fault: Gauge,
    problems: Family<[(&'static str, &'static str); 3], Counter>,
    expired_flows: Counter,
    snat_ports: Gauge,
    snat_ports_used: Gauge,
    snat_crowded: Gauge,
    /// Of /healthz and /livez.
    pub probes: ProbeCounters,
    /// Of /readyz.
    pub conditions: ConditionGauges,
    /// Of the source.
    pub signs: Signs,
    /// Which data plane serves, once that is known.
    pub mode: Arc<OnceLock<Mode>>,
}

/// Changes of one kind of object.
#[derive(Clone, Debug, Default)]
struct Changes {
    pending: Gauge,
    total: Counter,
}

impl Metrics {
    /// Nothing was counted yet.
    #[must_use]
    pub fn new() -> Self {
        let metrics = Self {
            sync_duration: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 15))
            }),
            programming_duration: Family::new_with_constructor(|| Histogram::new(programming_buckets())),
            last_synced: Family::default(),
            last_queued: Family::default(),
            endpoint_changes: Changes::default(),
            service_changes: Changes::default(),
            no_local_endpoints: Family::default(),
            degraded: Gauge::default(),
            failures: Family::default(),
            fault: Gauge::default(),
            problems: Family::default(),
            expired_flows: Counter::default(),
            snat_ports: Gauge::default(),
            snat_ports_used: Gauge::default(),
            snat_crowded: Gauge::default(),
            probes: ProbeCounters::default(),
            conditions: ConditionGauges::default(),
            signs: Signs::default(),
            mode: Arc::default(),
        };
        for label in FAMILIES.map(of_family) {
            drop(metrics.sync_duration.get_or_create(&label));
            drop(metrics.programming_duration.get_or_create(&label));
            drop(metrics.last_synced.get_or_create(&label));
            drop(metrics.last_queued.get_or_create(&label));
        }
        metrics
    }

    /// Gives each its name. `_total` is added to a counter's when it is printed.
    pub fn register(&self, registry: &mut Registry) {
        self.register_like_kube_proxy(registry.sub_registry_with_prefix("kubeproxy"));
        // client-go's, of which kube-proxy's dashboards know.
        registry.register(
            "rest_client_requests",
            "Requests to the API server by status code, method and host",
            self.signs.requests.clone(),
        );
        let ours = registry.sub_registry_with_prefix("millrace");
        self.register_state(ours);
        ours.register(
            "degraded_service_ports",
            "Service ports of one family with an operation that failed and is tried again",
            self.degraded.clone(),
        );
        ours.register(
            "sync_failures",
            "What the last sync failed on beside service ports, by what it concerns: the whole node, which serves nobody then, one device, or a map that is full",
            self.failures.clone(),
        );
        ours.register(
            "self_test_failed",
            "1 while a program is detached or gives a wrong verdict",
            self.fault.clone(),
        );
        ours.register(
            "problems",
            "Things that were wrong with an object, by its kind, by what it is about (such as an address conflict) and by severity",
            self.problems.clone(),
        );
        ours.register(
            "flows_expired",
            "Flow entries removed after their time-out",
            self.expired_flows.clone(),
        );
        ours.register(
            "snat_ports",
            "Ports of this node that connections to each backend on another node can have (--snat-ports)",
            self.snat_ports.clone(),
        );
        ours.register(
            "snat_ports_used",
            "Those of them in use towards the backend that has most",
            self.snat_ports_used.clone(),
        );
        ours.register(
            "snat_crowded_backends",
            "Backends towards which four of five are in use",
            self.snat_crowded.clone(),
        );
    }

    /// What the agent is, whether it is ready, and how its source is.
    fn register_state(&self, registry: &mut Registry) {
        let build = Family::<[(&'static str, String); 2], Gauge>::default();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        build.get_or_create(&[("version", version), ("layout", LAYOUT_VERSION.to_string())]).set(1);
        registry.register("build_info", "Version of the agent and of its map layout; always 1", build);
        registry.register(
            "ready",
            "Whether a condition of /readyz holds: 1 or 0; the node is ready where all do",
            self.conditions.clone(),
        );
        registry.register(
            "source_synced",
            "1 while everything was listed and nothing keeps the source from following it",
            self.signs.synced.clone(),
        );
        registry.register(
            "source_last_event_timestamp_seconds",
            "When the source was heard of for the last time, though nothing changed",
            self.signs.last_event.clone(),
        );
        registry.register(
            "source_watch_errors",
            "Listings and watches of the API server that ended in an error, by resource",
            self.signs.watch_errors.clone(),
        );
    }

    fn register_like_kube_proxy(&self, registry: &mut Registry) {
        let registry_of_syncs = registry.sub_registry_with_prefix("sync_proxy_rules");
        registry_of_syncs.register("duration_seconds", "Time a sync took", self.sync_duration.clone());
        registry_of_syncs.register(
            "last_timestamp_seconds",
            "When everything was applied for the last time",
            self.last_synced.clone(),
        );
        registry_of_syncs.register(
            "last_queued_timestamp_seconds",
            "When a change was received for the last time",
            self.last_queued.clone(),
        );
        for (name, total_name, changes) in [
            ("endpoint_changes_pending", "endpoint_changes", &self.endpoint_changes),
            ("service_changes_pending", "service_changes", &self.service_changes),
        ] {
            registry_of_syncs.register(name, "Changes that no sync has taken yet", changes.pending.clone());
            registry_of_syncs.register(total_name, "Changes received", changes.total.clone());
        }
        registry_of_syncs.register(
            "no_local_endpoints_total",
            "Service ports with traffic policy Local whose endpoints are all on other nodes",
            self.no_local_endpoints.clone(),
        );
        registry.register(
            "network_programming_duration_seconds",
            "Time from the change of a pod or Service to its being applied on this node",
            self.programming_duration.clone(),
        );
        registry.register("proxy_healthz", "Answers of /healthz by code", self.probes.healthz.clone());
        registry.register("proxy_livez", "Answers of /livez by code", self.probes.livez.clone());
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn programming_buckets() -> impl Iterator<Item = f64> {
    std::iter::once(0.0)
        .chain(linear_buckets(0.25, 0.25, 2))
        .chain(linear_buckets(1.0, 1.0, 59))
        .chain(linear_buckets(60.0, 5.0, 12))
        .chain(linear_buckets(120.0, 30.0, 7))
}

#[cfg(test)]
mod tests;
