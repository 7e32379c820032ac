//! The metrics and pages of `--metrics-bind-address`.

mod advice;
mod catalogue;
mod configz;
mod firewall;
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

use crate::announce::Figures;
use crate::config::ProxyMode;
use crate::dataplane::Mode;
use crate::firewall::Statuses;
use crate::health::{ConditionGauges, ProbeCounters};
use crate::source::Signs;

pub use advice::what_to_do;
pub use catalogue::{CATALOGUE, Definition, Kind};
pub use firewall::FirewallMetrics;
pub use kernel::KernelMetrics;
pub use observer::MetricsObserver;
pub use pages::{Pages, router};
pub use process::ProcessMetrics;

/// A time in seconds since 1970.
type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;
/// One label and its value.
type Label = [(&'static str, &'static str); 1];
/// Histograms by family, with their constructor.
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

/// The values of kube-proxy's label `ip_family`. kube-proxy has a sync for each family. Here one sync does
/// both, and counts for each.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// Returns the label of a family.
const fn of_family(family: &'static str) -> Label {
    [("ip_family", family)]
}

/// The metrics of the agent. Clones count together.
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
    /// The findings of the node's checks, by check and result.
    pub checks: Family<[(&'static str, &'static str); 2], Gauge>,
    problems: Family<[(&'static str, &'static str); 3], Counter>,
    flows: Family<[(&'static str, &'static str); 3], Gauge>,
    expired_flows: Counter,
    snat_ports: Gauge,
    snat_ports_used: Gauge,
    snat_crowded: Gauge,
    /// The figures of announced addresses.
    pub announced: Figures,
    /// The state of the pod firewall.
    pub firewall: Statuses,
    /// The counters of /healthz and /livez.
    pub probes: ProbeCounters,
    /// The gauges of /readyz.
    pub conditions: ConditionGauges,
    /// The signs of life of the source.
    pub signs: Signs,
    node: Family<[(&'static str, &'static str); 2], Gauge>,
    /// The data plane that serves, once it is known.
    mode: Arc<OnceLock<Mode>>,
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
            checks: Family::default(),
            problems: Family::default(),
            flows: Family::default(),
            expired_flows: Counter::default(),
            snat_ports: Gauge::default(),
            snat_ports_used: Gauge::default(),
            snat_crowded: Gauge::default(),
            announced: Figures::default(),
            firewall: Statuses::default(),
            probes: ProbeCounters::default(),
            conditions: ConditionGauges::default(),
            signs: Signs::default(),
            node: Family::default(),
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

    /// Sets the data plane that serves, once.
    pub fn set_mode(&self, mode: Mode, wanted: ProxyMode) {
        if self.mode.set(mode).is_err() {
            return;
        }
        let reason = match (wanted, mode) {
            (ProxyMode::Auto, Mode::Ebpf) => "auto",
            (ProxyMode::Auto, _) => "fallback",
            _ => "requested",
        };
        self.node.get_or_create(&[("mode", mode.name()), ("mode_reason", reason)]).set(1);
    }

    /// Registers each under its name of the [catalogue](CATALOGUE).
    pub fn register(&self, registry: &mut Registry) {
        self.register_service_state(registry);
        self.register_source(registry);
        self.register_like_kube_proxy(registry);
    }

    /// State of what the agent serves.
    fn register_service_state(&self, registry: &mut Registry) {
        catalogue::READY.register(registry, self.conditions.clone());
        catalogue::SELF_TEST_FAILED.register(registry, self.fault.clone());
        catalogue::CHECK_FINDINGS.register(registry, self.checks.clone());
        catalogue::DEGRADED_SERVICE_PORTS.register(registry, self.degraded.clone());
        catalogue::SYNC_FAILURES.register(registry, self.failures.clone());
        catalogue::NODE_INFO.register(registry, self.node.clone());
        catalogue::PROBLEMS.register(registry, self.problems.clone());
        catalogue::FLOWS.register(registry, self.flows.clone());
        catalogue::FLOWS_EXPIRED.register(registry, self.expired_flows.clone());
        catalogue::SNAT_PORTS_LIMIT.register(registry, self.snat_ports.clone());
        catalogue::SNAT_PORTS_USED.register(registry, self.snat_ports_used.clone());
        catalogue::SNAT_CROWDED_BACKENDS.register(registry, self.snat_crowded.clone());
        catalogue::L2_HELD.register(registry, self.announced.held.clone());
        catalogue::L2_CHANGES.register(registry, self.announced.changes.clone());
    }

    /// State of the source, and the version of the agent that reads it.
    fn register_source(&self, registry: &mut Registry) {
        catalogue::SOURCE_SYNCED.register(registry, self.signs.synced.clone());
        catalogue::SOURCE_LAST_EVENT.register(registry, self.signs.last_event.clone());
        catalogue::SOURCE_WATCH_ERRORS.register(registry, self.signs.watch_errors.clone());
        // Known to kube-proxy's dashboards from client-go.
        catalogue::REST_CLIENT_REQUESTS.register(registry, self.signs.requests.clone());
        let build = Family::<[(&'static str, String); 2], Gauge>::default();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        build.get_or_create(&[("version", version), ("layout", LAYOUT_VERSION.to_string())]).set(1);
        catalogue::BUILD_INFO.register(registry, build);
    }

    fn register_like_kube_proxy(&self, registry: &mut Registry) {
        catalogue::SYNC_DURATION.register(registry, self.sync_duration.clone());
        catalogue::LAST_SYNCED.register(registry, self.last_synced.clone());
        catalogue::LAST_QUEUED.register(registry, self.last_queued.clone());
        catalogue::ENDPOINT_CHANGES_PENDING.register(registry, self.endpoint_changes.pending.clone());
        catalogue::ENDPOINT_CHANGES.register(registry, self.endpoint_changes.total.clone());
        catalogue::SERVICE_CHANGES_PENDING.register(registry, self.service_changes.pending.clone());
        catalogue::SERVICE_CHANGES.register(registry, self.service_changes.total.clone());
        catalogue::NO_LOCAL_ENDPOINTS.register(registry, self.no_local_endpoints.clone());
        catalogue::PROGRAMMING_DURATION.register(registry, self.programming_duration.clone());
        catalogue::PROXY_HEALTHZ.register(registry, self.probes.healthz.clone());
        catalogue::PROXY_LIVEZ.register(registry, self.probes.livez.clone());
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
