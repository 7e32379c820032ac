//! Services, EndpointSlices and Nodes in; frontends and backends out. Pure: no I/O, no clock, no aya.
//!
//! A change is read at once (text becomes addresses and ports; what can't is a [`Problem`]) and makes the
//! Services it concerns dirty. A refresh computes those, settles who gets what several of them ask for, and
//! says which service ports became different.

mod address;
mod annotations;
mod categorise;
mod claims;
mod compute;
mod desired;
mod endpoints;
mod environment;
mod frontends;
mod health_checks;
mod index;
mod movement;
mod names;
mod node;
mod object;
mod problem;
mod scheduler;
mod service;
mod settings;
mod slice;
mod source_ranges;
mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

pub use annotations::{ANNOTATIONS, Annotation};
pub use desired::{
    Algorithm, Desired, Dirty, Eligibility, Endpoint, EndpointAddress, Family, Forwarding, Frontend,
    FrontendKind, HealthCheck, List, PortKey, Protocol, Scope, ServiceKey, ServicePort,
};
pub use node::{AGENTS_OS, OS_LABEL, may_run_agent};
pub use object::{Change, Kind, Object, ObjectKey};
pub use problem::{Problem, Severity, Topic};
pub use scheduler::Scheduler;
pub use settings::{
    ClusterIpClients, DEFAULT_MAGLEV_SIZE, MAGLEV_SIZES, MaglevSizeError, ModelSettings, NodePortAddresses,
    check_maglev_size,
};

use claims::{Claims, Target};
use environment::Environment;
use health_checks::HealthChecks;
use index::{Index, notes};
use movement::Movement;
use problem::ProblemBook;
use update::{Due, cluster_ranges};

/// The desired state of this node, kept up to date change by change.
#[derive(Debug)]
pub struct Model {
    settings: ModelSettings,
    index: Index,
    environment: Environment,
    claims: Claims<Target, PortKey>,
    /// Frontends that a service port asks for and another one has.
    lost: BTreeMap<PortKey, BTreeSet<Frontend>>,
    health_checks: HealthChecks,
    /// Services with a nodePort that this node has no address for.
    homeless: BTreeMap<Family, BTreeSet<ServiceKey>>,
    pending: Pending,
    movement: Movement,
    desired: Desired,
    problems: ProblemBook<Owner>,
}

/// What the next refresh has to look at.
#[derive(Debug, Default)]
struct Pending {
    services: BTreeSet<ServiceKey>,
    /// All Services: something changed that any of them may depend on.
    everything: bool,
    nodes: BTreeSet<String>,
}

/// Whose problems are replaced together.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Node(String),
    NodePorts,
    Service(ServiceKey),
    Claims(PortKey),
    HealthCheck(ServiceKey),
    Stray(ObjectKey),
}

impl Model {
    /// A model that has been told of no object yet.
    #[must_use]
    pub fn new(settings: ModelSettings) -> Self {
        Self {
            desired: Desired {
                node_name: settings.node_name.clone(),
                cluster_sources: cluster_ranges(&settings).collect(),
                near_sources: cluster_ranges(&settings).collect(),
                eligibility: Eligibility::Missing,
                ..Desired::default()
            },
            settings,
            index: Index::default(),
            environment: Environment::default(),
            claims: Claims::default(),
            lost: BTreeMap::new(),
            health_checks: HealthChecks::default(),
            homeless: BTreeMap::new(),
            pending: Pending::default(),
            movement: Movement::default(),
            problems: ProblemBook::new(),
        }
    }

    /// Takes a change; what it means is worked out by the next [`refresh`](Self::refresh).
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Upsert { object, file } => {
                let key = object.key();
                self.replace(&key, Some(&object), file.as_ref());
            }
            Change::Delete(key) => self.replace(&key, None, None),
        }
    }

    /// Takes the addresses that are on devices of this node, loopback and link-local left out.
    pub fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        let changed = self.environment.set_devices(addresses);
        if let NodePortAddresses::Within(ranges) = &self.settings.node_ports {
            self.pending.everything |=
                changed.iter().any(|address| ranges.iter().any(|range| range.contains(address)));
        }
        self.touch_wanting(&changed);
    }

    /// Computes what the changes since the last call concern, and says what became different.
    pub fn refresh(&mut self) -> Dirty {
        let pending = std::mem::take(&mut self.pending);
        self.movement = Movement::default();
        let mut dirty = Dirty { nodes: self.refresh_nodes(pending.nodes), ..Dirty::default() };
        let mut services = pending.services;
        if pending.everything {
            services.extend(self.index.services().cloned());
        }
        let mut due = Due::default();
        for key in &services {
            self.refresh_service(key, &mut due);
        }
        for (key, next) in due.ports {
            if self.settle(&key, next) {
                dirty.ports.insert(key);
            }
        }
        dirty.health = self.settle_health_checks(due.health_checks) | self.refresh_eligibility();
        self.note_homeless();
        dirty.health |= self.refresh_health_check_addresses();
        dirty
    }

    /// Whether an endpoint that was ready has left a slice since the last [`refresh`](Self::refresh), and may be about to come into another
    /// one: who waits some milliseconds with the refresh spares its Service a moment without it.
    #[must_use]
    pub fn may_miss_endpoints(&self) -> bool {
        self.movement.is_going_on()
    }

    /// The desired state as of the last [`refresh`](Self::refresh).
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }
    /// Everything that is wrong as of the last [`refresh`](Self::refresh).
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter()
    }
    /// What has become wrong since the last call, sorted: each problem comes out once, until it has been
    /// away in between.
    pub fn take_problems(&mut self) -> Vec<Problem> {
        self.problems.take_fresh()
    }

    fn replace(&mut self, key: &ObjectKey, object: Option<&Object>, file: Option<&Arc<Path>>) {
        match (key.kind, object) {
            (Kind::Service, Some(Object::Service(service))) => {
                self.replace_service(key, Some((service, notes(key, file))));
            }
            (Kind::EndpointSlice, Some(Object::EndpointSlice(slice))) => {
                self.replace_slice(key, Some((slice, notes(key, file))));
            }
            (Kind::Node, Some(Object::Node(node))) => self.replace_node(key, Some((node, notes(key, file)))),
            (Kind::Service, _) => self.replace_service(key, None),
            (Kind::EndpointSlice, _) => self.replace_slice(key, None),
            (Kind::Node, _) => self.replace_node(key, None),
        }
    }
}

#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod testing;
