//! Turns Services, EndpointSlices and Nodes into frontends and backends. Pure: no I/O, no clock, no
//! aya.
//!
//! A change is parsed at once: text becomes addresses and ports, and the rest a [`Problem`]. It
//! marks the Services that it concerns as dirty. A refresh computes those, gives each frontend to
//! one of the Services that request it, and returns the service ports that changed.
#![forbid(unsafe_code)]

mod address;
mod annotations;
mod announced;
mod categorise;
mod claims;
mod compute;
mod desired;
mod endpoints;
mod environment;
mod fnv;
mod former;
mod frontends;
mod health_checks;
mod index;
mod listener;
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

pub(crate) use address::{parse_address, port as parse_port, protocol as parse_protocol};
pub use annotations::{ANNOTATIONS, Annotation};
pub use claims::Rank;
pub use desired::{
    Algorithm, Candidates, Desired, Dirty, Eligibility, Endpoint, EndpointAddress, Family, Forwarding,
    Frontend, FrontendKind, HealthCheck, List, PortKey, Protocol, Scope, ServiceKey, ServicePort,
};
pub use fnv::fnv1a;
pub use listener::Listener;
pub use node::{AGENTS_OS, AUTOSCALER_TAINT, EXCLUDE_LABEL, OS_LABEL, READY, gets_no_clients, may_run_agent};
pub use object::{Change, Kind, Object, ObjectKey};
pub(crate) use problem::write_problem;
pub use problem::{Problem, Severity, Topic, plain_line};
pub use scheduler::Scheduler;
pub use settings::{
    ClusterIpClients, DEFAULT_MAGLEV_SIZE, MAGLEV_SIZES, MaglevSizeError, ModelSettings, NodePortAddresses,
    check_maglev_size,
};
pub use slice::SERVICE_NAME_LABEL;
pub(crate) use source_ranges::parse_range;

use claims::{Claims, Target};
use environment::Environment;
use former::Former;
use health_checks::HealthChecks;
use index::{Index, notes};
use movement::Movement;
use problem::ProblemBook;
use update::{Due, cluster_ranges};

/// The desired state of this node, updated change by change.
#[derive(Debug)]
pub struct Model {
    settings: ModelSettings,
    index: Index,
    environment: Environment,
    former: Former,
    claims: Claims<Target, PortKey>,
    /// Frontends that a service port requests and an older Service has.
    lost: BTreeMap<PortKey, BTreeSet<Frontend>>,
    health_checks: HealthChecks,
    /// Services with a nodePort in a family in which this node has no address.
    without_address: BTreeMap<Family, BTreeSet<ServiceKey>>,
    pending: Pending,
    movement: Movement,
    desired: Desired,
    problems: ProblemBook<Owner>,
}

/// The work of the next refresh.
#[derive(Debug, Default)]
struct Pending {
    services: BTreeSet<ServiceKey>,
    /// Whether all Services are to be computed, because something changed that any of them may
    /// depend on.
    everything: bool,
    nodes: BTreeSet<String>,
}

/// The unit in which problems are replaced.
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
    /// Returns a model without objects.
    #[must_use]
    pub fn new(settings: ModelSettings) -> Self {
        Self {
            desired: Desired {
                node_name: settings.node_name.clone(),
                cluster_sources: cluster_ranges(&settings).collect(),
                pod_sources: cluster_ranges(&settings).collect(),
                eligibility: Eligibility::Missing,
                ..Desired::default()
            },
            settings,
            index: Index::default(),
            environment: Environment::default(),
            former: Former::default(),
            claims: Claims::default(),
            lost: BTreeMap::new(),
            health_checks: HealthChecks::default(),
            without_address: BTreeMap::new(),
            pending: Pending::default(),
            movement: Movement::default(),
            problems: ProblemBook::new(),
        }
    }

    /// Stores a change. The next [`refresh`](Self::refresh) computes its effects.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Upsert { object, file } => {
                let key = object.key();
                self.replace(&key, Some(&object), file.as_ref());
            }
            Change::Delete(key) => self.replace(&key, None, None),
        }
    }

    /// Sets the addresses on devices of this node, without loopback and link-local ones.
    pub fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>) {
        let changed = self.environment.set_devices(addresses);
        if let NodePortAddresses::Within(ranges) = &self.settings.node_ports {
            self.pending.everything |=
                changed.iter().any(|address| ranges.iter().any(|range| range.contains(address)));
        }
        self.mark_requesters(&changed);
    }

    /// Returns whether a Service requests an address of this node. Then
    /// [`set_listeners`](Self::set_listeners) matters.
    #[must_use]
    pub fn has_own_addresses(&self) -> bool {
        !self.former.is_empty()
            || self.environment.all_own().any(|address| self.index.requesters(address).next().is_some())
    }

    /// Sets the sockets of this node that take packets from anybody. They keep their ports on this node's
    /// addresses.
    pub fn set_listeners(&mut self, listeners: BTreeSet<Listener>) {
        let changed = self.environment.set_listeners(listeners);
        // Sockets of UDP clients come and go all the time.
        let has_port = |key: &&ServiceKey| {
            let spec = self.index.service(key).and_then(|stored| stored.spec.as_ref());
            let ports = spec.into_iter().flat_map(|spec| &spec.ports);
            ports.into_iter().any(|port| {
                changed.iter().any(|one| (one.protocol, one.address.port()) == (port.protocol, port.port))
            })
        };
        let own = self.environment.all_own();
        let requesters = own.flat_map(|address| self.index.requesters(address));
        let concerned = requesters.chain(self.former.services()).filter(has_port);
        self.pending.services.extend(concerned.cloned().collect::<Vec<_>>());
    }

    /// Returns whether the next refresh may change anything.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.pending.everything || !self.pending.services.is_empty() || !self.pending.nodes.is_empty()
    }

    /// Computes the effects of all changes since the last call, and returns what changed.
    pub fn refresh(&mut self) -> Dirty {
        let pending = std::mem::take(&mut self.pending);
        self.movement = Movement::default();
        let mut dirty = Dirty { nodes: self.refresh_nodes(pending.nodes), ..Dirty::default() };
        let mut services = pending.services;
        if pending.everything {
            services.extend(self.index.services().cloned());
        }
        let mut due = Due::default();
        let yielding: BTreeSet<ServiceKey> = services.iter().flat_map(|key| self.yield_former(key)).collect();
        services.extend(yielding);
        for key in &services {
            self.refresh_service(key, &mut due);
        }
        for (key, next) in due.ports {
            if self.assign_frontends(&key, next) {
                dirty.ports.insert(key);
            }
        }
        dirty.health = self.assign_health_checks(due.health_checks) | self.refresh_eligibility();
        self.report_unserved_node_ports();
        dirty.health |= self.refresh_health_check_addresses();
        self.refresh_announced();
        dirty
    }

    /// Returns whether a ready endpoint left a slice since the last [`refresh`](Self::refresh), and
    /// may appear in another one.
    ///
    /// A caller that waits some milliseconds with the refresh keeps the endpoint in service.
    #[must_use]
    pub fn may_miss_endpoints(&self) -> bool {
        self.movement.is_possible()
    }

    /// Returns the desired state as of the last [`refresh`](Self::refresh).
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }
    /// Returns all problems as of the last [`refresh`](Self::refresh).
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter()
    }
    /// Returns the problems that began since the last call, sorted. A problem is repeated only
    /// after it was gone.
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
