//! The observer that counts the work of the reconciler.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use super::latency::{Triggers, seconds};
use super::{Changes, FAMILIES, Metrics, of_family};
use crate::dataplane::{Check, FlowCount, SyncFailure, SyncReport};
use crate::health::Clock;
use crate::model::{
    Change, Family, FrontendKind, Kind, List, Object, PortKey, Problem, Scope, ServicePort, Severity, Topic,
};
use crate::reconcile::{Observer, Synced};
use crate::source::{Listing, SourceEvent};

/// Fills [`Metrics`].
#[derive(Debug)]
pub struct MetricsObserver {
    metrics: Metrics,
    clock: Box<dyn Clock>,
    triggers: Triggers,
    /// Service ports with endpoints whose Local list is empty.
    lacking: BTreeMap<PortKey, Lacking>,
    expired_flows: u64,
}

/// The clients whose Local list is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lacking {
    internal: bool,
    external: bool,
}

impl MetricsObserver {
    /// Returns the observer of a task that has not begun.
    #[must_use]
    pub fn new(metrics: Metrics, clock: impl Clock + 'static) -> Self {
        let triggers = Triggers::since(clock.now().wall);
        let clock = Box::new(clock);
        Self { metrics, clock, triggers, lacking: BTreeMap::new(), expired_flows: 0 }
    }

    fn count(&mut self, batch: &[SourceEvent]) {
        for event in batch {
            match event {
                SourceEvent::Change(_) => self.metrics.signs.hear(),
                SourceEvent::Listed(listing) => {
                    self.metrics.signs.hear();
                    self.metrics.signs.list(*listing == Listing::Complete);
                }
                // The agent found this fault itself: the source reported nothing.
                SourceEvent::Problem(_) => {}
            }
        }
        let changes = batch.iter().filter_map(|event| match event {
            SourceEvent::Change(change) => Some(change),
            SourceEvent::Listed(_) | SourceEvent::Problem(_) => None,
        });
        let mut is_change = false;
        for change in changes {
            is_change = true;
            match kind(change) {
                Kind::Service => self.metrics.service_changes.add(),
                Kind::EndpointSlice => self.metrics.endpoint_changes.add(),
                Kind::Node => {}
            }
        }
        if is_change {
            let now = seconds(self.clock.now().wall);
            for family in FAMILIES {
                self.metrics.last_queued.get_or_create(&of_family(family)).set(now);
            }
        }
    }

    /// A class of entries is absent until there is one.
    fn count_flows(&self, counts: &[FlowCount]) {
        for count in counts {
            let labels = [("table", count.table), ("ip_family", name(count.family)), ("state", count.state)];
            let entries = i64::try_from(count.entries).unwrap_or(i64::MAX);
            if entries > 0 {
                self.metrics.flows.get_or_create(&labels).set(entries);
            } else if let Some(flows) = self.metrics.flows.get(&labels) {
                flows.set(0);
            }
        }
    }

    fn count_failures(&self, synced: &Synced<'_>) {
        for concern in SyncFailure::CONCERNS {
            let failures = synced.report.failures.iter().filter(|failure| failure.concern() == concern);
            self.metrics.failures.get_or_create(&[("concern", concern)]).set(size(failures.count()));
        }
    }

    fn count_lacking(&mut self, synced: &Synced<'_>) {
        for key in &synced.dirty.ports {
            match synced.desired.ports.get(key).map(lacking) {
                Some(lacking) if lacking.internal || lacking.external => {
                    self.lacking.insert(key.clone(), lacking);
                }
                _ => {
                    self.lacking.remove(key);
                }
            }
        }
        let count = |policy, family, is_lacking: fn(&Lacking) -> bool| {
            let is_it =
                |(key, lacking): &(&PortKey, &Lacking)| name(key.family) == family && is_lacking(lacking);
            let labels = [("traffic_policy", policy), ("ip_family", family)];
            let count = self.lacking.iter().filter(is_it).count();
            self.metrics.no_local_endpoints.get_or_create(&labels).set(size(count));
        };
        for family in FAMILIES {
            count("internal", family, |lacking| lacking.internal);
            count("external", family, |lacking| lacking.external);
        }
    }
}

/// Whether the kernel has the desired state.
///
/// A failed device, such as a missing uplink, has a metric of its own. A node that serves by its other
/// uplinks is not behind.
fn is_applied(report: &SyncReport) -> bool {
    report.pending.is_empty() && report.serves()
}

impl Observer for MetricsObserver {
    /// Counts the objects that exist at the start, but not their triggers. Their latency is not this agent's.
    fn listing(&mut self, batch: &[SourceEvent]) {
        self.count(batch);
    }

    fn received(&mut self, batch: &[SourceEvent]) {
        for event in batch {
            match event {
                SourceEvent::Change(Change::Upsert { object: Object::EndpointSlice(slice), .. }) => {
                    self.triggers.slice(slice);
                }
                SourceEvent::Change(Change::Delete(key)) => self.triggers.gone(key),
                _ => {}
            }
        }
        self.count(batch);
    }

    fn synced(&mut self, synced: &Synced<'_>) {
        let (metrics, now) = (&self.metrics, self.clock.now().wall);
        for label in FAMILIES.map(of_family) {
            metrics.sync_duration.get_or_create(&label).observe(synced.took.as_secs_f64());
            if is_applied(synced.report) {
                metrics.last_synced.get_or_create(&label).set(seconds(now));
            }
        }
        metrics.degraded.set(size(synced.report.pending.len()));
        self.count_failures(synced);
        // Each sync takes all there is. What it could not do of it is in the figures above.
        metrics.endpoint_changes.pending.set(0);
        metrics.service_changes.pending.set(0);
        for (family, latency) in self.triggers.take(now, &synced.report.pending) {
            metrics.programming_duration.get_or_create(&of_family(name(family))).observe(latency);
        }
        self.count_lacking(synced);
    }

    fn problem(&mut self, problem: &Problem) {
        let kind = match problem.object.as_ref().map(|object| object.kind) {
            Some(Kind::Node) => "Node",
            Some(Kind::Service) => "Service",
            Some(Kind::EndpointSlice) => "EndpointSlice",
            None => "",
        };
        let topic = match problem.topic {
            Topic::Field => "field",
            Topic::Annotation => "annotation",
            Topic::RefusedAddress | Topic::RefusedHere => "refused_address",
            Topic::Conflict | Topic::ConflictHere => "conflict",
            Topic::Mismatch => "mismatch",
        };
        let severity = match problem.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
        };
        let labels = [("kind", kind), ("topic", topic), ("severity", severity)];
        self.metrics.problems.get_or_create(&labels).inc();
    }

    fn checked(&mut self, check: &Check) {
        self.metrics.fault.set(i64::from(check.fault.is_some()));
        self.metrics.expired_flows.inc_by(check.expired_flows.saturating_sub(self.expired_flows));
        self.expired_flows = check.expired_flows;
        self.count_flows(&check.flows);
        self.metrics.snat_ports.set(check.snat.size.into());
        self.metrics.snat_ports_used.set(check.snat.most_used.into());
        self.metrics.snat_crowded.set(size(check.snat.crowded.len()));
    }
}

impl Changes {
    fn add(&self) {
        self.pending.inc();
        self.total.inc();
    }
}

const fn kind(change: &Change) -> Kind {
    match change {
        Change::Upsert { object: Object::Service(_), .. } => Kind::Service,
        Change::Upsert { object: Object::EndpointSlice(_), .. } => Kind::EndpointSlice,
        Change::Upsert { object: Object::Node(_), .. } => Kind::Node,
        Change::Delete(key) => key.kind,
    }
}

/// Returns the value of the label `ip_family`.
const fn name(family: Family) -> &'static str {
    let [v4, v6] = FAMILIES;
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

fn size(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn lacking(port: &ServicePort) -> Lacking {
    let is_empty = port.has_any && port.local.as_ref().is_some_and(BTreeSet::is_empty);
    let asks = |is_internal: bool| {
        port.frontends.iter().any(|frontend| {
            // A cluster IP follows the internal policy from wherever it is asked for.
            let of_internal_policy =
                frontend.kind == FrontendKind::ClusterIp || frontend.scope == Scope::Internal;
            frontend.list == List::Local && of_internal_policy == is_internal
        })
    };
    Lacking { internal: is_empty && asks(true), external: is_empty && asks(false) }
}
