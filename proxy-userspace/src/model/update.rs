//! Applies changes of objects, and refreshes the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::claims::Target;
use super::compute::{Inputs, compute};
use super::index::{Difference, Index};
use super::movement::Before;
use super::node::{NodeSpec, WhichNode};
use super::problem::{Notes, Topic};
use super::slice::SliceSpec;
use super::{
    Eligibility, Family, Frontend, FrontendKind, Kind, Model, ModelSettings, NodePortAddresses, ObjectKey,
    Owner, PortKey, Scope, ServiceKey, ServicePort,
};

/// The next state of a service port.
pub(super) enum Next {
    /// A new state, with every frontend that it requests.
    Computed(ServicePort),
    /// The service port is gone.
    Gone,
    /// The same state; only the owners of its frontends are to be decided again.
    Contested,
}

/// The decisions that follow after all dirty Services were computed.
#[derive(Default)]
pub(super) struct Due {
    pub ports: BTreeMap<PortKey, Next>,
    pub health_checks: BTreeSet<ServiceKey>,
}

impl Model {
    pub(super) fn replace_service(&mut self, key: &ObjectKey, service: Option<(&Service, Notes)>) {
        let key = key.service();
        let ingress = |index: &Index| {
            let spec = index.service(&key).and_then(|stored| stored.spec.as_ref());
            spec.map(|spec| spec.ingress.iter().map(|(_, address)| *address).collect()).unwrap_or_default()
        };
        let before = ingress(&self.index);
        match self.index.set_service(&key, service, &self.settings) {
            Difference::None => return,
            Difference::Changed => self.note_former(&key, &before),
            Difference::Gone => {
                self.former.clear(&key);
                self.repeat_problems(&key);
            }
        }
        self.pending.services.insert(key);
    }

    /// Marks the problems of a Service to be reported again. It is a new one of the same name, and
    /// its creator has not seen them.
    fn repeat_problems(&mut self, key: &ServiceKey) {
        let claims: Vec<Owner> = self.ports_of(key).cloned().map(Owner::Claims).collect();
        let owners = [Owner::Service(key.clone()), Owner::HealthCheck(key.clone())];
        for owner in claims.into_iter().chain(owners) {
            self.problems.repeat(&owner);
        }
    }

    pub(super) fn replace_slice(&mut self, key: &ObjectKey, slice: Option<(&EndpointSlice, Notes)>) {
        let before = Before::of(&self.index, key);
        let concerned = self.index.set_slice(key, slice);
        self.movement.compare(&self.index, key, before);
        let stray = self.index.stray(key).map(|notes| notes.problems.clone());
        self.problems.set(Owner::Stray(key.clone()), stray.unwrap_or_default());
        // The slices of Service `default/kubernetes` are the API server's addresses.
        for api in concerned.iter().filter(|key| key.namespace == "default" && key.name == "kubernetes") {
            let slices = self.index.slices_of(api).values().map(|slice| &slice.spec);
            let changed = self.environment.set_api_servers(slices.flat_map(SliceSpec::sockets).collect());
            self.mark_requesters(&changed);
            // An ExternalIP may be mapped to one of this node's addresses.
            self.pending.everything |= changed.iter().any(|address| self.environment.is_own(*address));
        }
        self.pending.services.extend(concerned);
    }

    pub(super) fn replace_node(&mut self, key: &ObjectKey, node: Option<(&Node, Notes)>) {
        let name = &key.name;
        let which = if *name == self.settings.node_name { WhichNode::This } else { WhichNode::Other };
        let before = self.index.set_node(name, which, node).map(|before| before.spec);
        self.report_node(key, which);
        let now = self.index.node(name).map(|stored| stored.spec.clone());
        let (old, new) = match which {
            WhichNode::Other => (before, now),
            // The node keeps running without its object, in the same zone and with the same
            // addresses.
            WhichNode::This => {
                let old = self.environment.own().cloned();
                let new = now.or_else(|| old.clone().map(NodeSpec::without_object));
                (old, new)
            }
        };
        if old == new {
            return;
        }
        let addresses = |spec: &Option<NodeSpec>| spec.as_ref().map(NodeSpec::addresses).unwrap_or_default();
        let changed = self.environment.replace_node(name, &addresses(&old), &addresses(&new));
        self.mark_requesters(&changed);
        self.pending.nodes.insert(name.clone());
        if which == WhichNode::This {
            self.pending.everything |= relevant_parts(old.as_ref()) != relevant_parts(new.as_ref());
            self.environment.set_own(new);
        }
    }

    fn report_node(&mut self, key: &ObjectKey, which: WhichNode) {
        let problems = match self.index.node(&key.name) {
            Some(stored) => stored.notes.problems.clone(),
            None if which == WhichNode::This && self.environment.own().is_some() => {
                let mut notes = Notes::on(key.clone(), None);
                notes.warn("", "it was deleted; its last addresses and zone stay in use");
                notes.problems
            }
            None => Vec::new(),
        };
        self.problems.set(Owner::Node(key.name.clone()), problems);
    }

    /// Marks the Services that request these addresses: whether they may have them depends on other
    /// holders.
    pub(super) fn mark_requesters(&mut self, addresses: &BTreeSet<IpAddr>) {
        let wanting = addresses.iter().flat_map(|address| self.index.requesters(*address));
        self.pending.services.extend(wanting.cloned());
    }

    /// Updates the addresses of nodes and the sources inside the cluster. Returns whether any
    /// changed.
    pub(super) fn refresh_nodes(&mut self, names: BTreeSet<String>) -> bool {
        if names.is_empty() {
            return false;
        }
        let mut changed = false;
        for name in names {
            let node = if name == self.settings.node_name {
                self.environment.own()
            } else {
                self.index.node(&name).map(|node| &node.spec)
            };
            let addresses = node.map(NodeSpec::peer_addresses).filter(|list| !list.is_empty());
            let ranges = node.map(|node| node.pod_ranges.clone()).filter(|list| !list.is_empty());
            match ranges.filter(|_| addresses.is_some()) {
                Some(ranges) => self.desired.pod_ranges.insert(name.clone(), ranges),
                None => self.desired.pod_ranges.remove(&name),
            };
            set_member(
                &mut self.desired.without_clients,
                &name,
                node.is_some_and(|node| node.gets_no_clients),
            );
            set_member(&mut self.desired.not_ready, &name, node.is_some_and(|node| node.is_not_ready));
            changed |= self.desired.nodes.get(&name) != addresses.as_ref();
            match addresses {
                Some(addresses) => self.desired.nodes.insert(name, addresses),
                None => self.desired.nodes.remove(&name),
            };
        }
        changed | self.refresh_cluster_sources()
    }

    fn refresh_cluster_sources(&mut self) -> bool {
        let nodes = self.environment.node_addresses().map(IpNet::from);
        let sources = cluster_ranges(&self.settings).chain(nodes).collect();
        let own = self.environment.own_addresses().into_iter().map(IpNet::from).collect();
        let changed = (&self.desired.cluster_sources, &self.desired.own_sources) != (&sources, &own);
        self.desired.cluster_sources = sources;
        self.desired.own_sources = own;
        changed
    }

    /// Updates this node's eligibility for new clients. Returns whether it changed.
    pub(super) fn refresh_eligibility(&mut self) -> bool {
        let eligibility = self.environment.own().map_or(Eligibility::Missing, |own| own.own.eligibility);
        std::mem::replace(&mut self.desired.eligibility, eligibility) != eligibility
    }

    /// Computes one Service and replaces its requests.
    pub(super) fn refresh_service(&mut self, key: &ServiceKey, due: &mut Due) {
        let (settings, environment) = (&self.settings, &self.environment);
        let (service, slices) = (self.index.service(key), self.index.slices_of(key));
        let former = self.former.of(key);
        let computed = compute(key, Inputs { settings, environment, service, slices, former: &former });
        self.problems.set(Owner::Service(key.clone()), computed.problems);
        for family in [Family::V4, Family::V6] {
            let without_address = self.without_address.entry(family).or_default();
            if computed.without_address.contains(&family) {
                without_address.insert(key.clone())
            } else {
                without_address.remove(key)
            };
        }
        let (rank, health_check) = (computed.rank, computed.health_check);
        due.health_checks.append(&mut self.health_checks.replace(key, rank, health_check));
        let gone: Vec<PortKey> =
            self.ports_of(key).filter(|port| !computed.ports.contains_key(port)).cloned().collect();
        let mut contested = BTreeSet::new();
        for port in gone {
            contested.append(&mut self.claims.replace(&port, rank, &BTreeSet::new()));
            due.ports.insert(port, Next::Gone);
        }
        for (key, port) in computed.ports {
            let targets = port.frontends.iter().map(|frontend| target(frontend, &port)).collect();
            contested.append(&mut self.claims.replace(&key, rank, &targets));
            due.ports.insert(key, Next::Computed(port));
        }
        for key in contested {
            due.ports.entry(key).or_insert(Next::Contested);
        }
    }

    /// Gives a service port its frontends, without those that an older Service has. Returns whether
    /// it changed.
    pub(super) fn assign_frontends(&mut self, key: &PortKey, next: Next) -> bool {
        let mut port = match next {
            Next::Gone => {
                self.lost.remove(key);
                self.problems.set(Owner::Claims(key.clone()), Vec::new());
                return self.desired.ports.remove(key).is_some();
            }
            Next::Computed(port) => port,
            Next::Contested => {
                let Some(mut port) = self.desired.ports.get(key).cloned() else { return false };
                port.frontends.extend(self.lost.remove(key).unwrap_or_default());
                port
            }
        };
        let (won, lost): (BTreeSet<_>, BTreeSet<_>) = std::mem::take(&mut port.frontends)
            .into_iter()
            .partition(|frontend| self.claims.winner(&target(frontend, &port)) == Some(key));
        port.frontends = won;
        self.report_conflicts(key, &port, &lost);
        if lost.is_empty() {
            self.lost.remove(key)
        } else {
            self.lost.insert(key.clone(), lost)
        };
        if self.desired.ports.get(key) == Some(&port) {
            return false;
        }
        self.desired.ports.insert(key.clone(), port);
        true
    }

    fn report_conflicts(&mut self, key: &PortKey, port: &ServicePort, lost: &BTreeSet<Frontend>) {
        let Some(stored) = self.index.service(&key.service) else { return };
        let mut notes = stored.notes.emptied();
        let ports = stored.spec.iter().flat_map(|spec| &spec.ports);
        let index = ports.filter(|port| port.name == key.port).map(|port| port.index).next();
        // A lost NodePort is reported at the node's addresses only, which say more than the others.
        let is_told = |frontend: &&Frontend| {
            frontend.scope != Scope::Encapsulated && !frontend.address.ip().is_loopback()
        };
        for frontend in lost.iter().filter(is_told) {
            let (address, protocol) = target(frontend, port);
            let Some(winner) = self.claims.winner(&(address, protocol)) else { continue };
            let field = match frontend.kind {
                FrontendKind::ClusterIp => "spec.clusterIPs".to_owned(),
                FrontendKind::NodePort => format!("spec.ports[{}].nodePort", index.unwrap_or_default()),
                FrontendKind::ExternalIp => "spec.externalIPs".to_owned(),
                FrontendKind::LoadBalancer => "status.loadBalancer.ingress".to_owned(),
            };
            let rule = "the older one has it, or the first by name";
            let topic = match frontend.kind {
                FrontendKind::NodePort => Topic::ConflictHere,
                FrontendKind::ClusterIp | FrontendKind::ExternalIp | FrontendKind::LoadBalancer => {
                    Topic::Conflict
                }
            };
            let message = format!("{address} {protocol} is Service {winner}'s too; {rule}; not served");
            notes.warn_about(topic, field, message);
        }
        notes.problems.dedup();
        self.problems.set(Owner::Claims(key.clone()), notes.problems);
    }

    /// Reports NodePorts without an address once for the node, not for every Service.
    pub(super) fn report_unserved_node_ports(&mut self) {
        let name = self.settings.node_name.clone();
        let key = ObjectKey { kind: Kind::Node, namespace: String::new(), name: name.clone() };
        let node = self.index.node(&name);
        let mut notes = node.map_or_else(|| Notes::on(key, None), |node| node.notes.emptied());
        let families = self.without_address.iter().filter(|(_, services)| !services.is_empty());
        for (family, _) in families {
            let message = format!("NodePorts are not served over {family}");
            match &self.settings.node_ports {
                NodePortAddresses::Within(_) => notes.info(
                    "",
                    format!("no {family} address on a device lies inside --nodeport-addresses; {message}"),
                ),
                NodePortAddresses::Primary if self.environment.own().is_none() => {
                    notes.warn("", format!("there is no Node of this name; {message}"));
                }
                NodePortAddresses::Primary => {
                    notes.warn(
                        "status.addresses",
                        format!("no InternalIP or ExternalIP is {family}; {message}"),
                    );
                }
            }
        }
        self.problems.set(Owner::NodePorts, notes.problems);
    }

    /// Returns the ports of one Service in the desired state.
    fn ports_of(&self, key: &ServiceKey) -> impl Iterator<Item = &PortKey> {
        let first = PortKey { service: key.clone(), port: String::new(), family: Family::V4 };
        self.desired.ports.range(first..).map(|(port, _)| port).take_while(move |port| port.service == *key)
    }
}

/// Returns the sources inside the cluster that need no Node.
pub(super) fn cluster_ranges(settings: &ModelSettings) -> impl Iterator<Item = IpNet> {
    settings.cluster_ranges.iter().map(IpNet::trunc)
}

/// Returns the parts of this node's own object that Services depend on. Heartbeats and taints are
/// not.
fn relevant_parts(node: Option<&NodeSpec>) -> Option<(&[IpAddr], &[IpAddr], Option<&str>)> {
    node.map(|node| (node.internal.as_slice(), node.external.as_slice(), node.own.zone.as_deref()))
}

fn set_member(names: &mut BTreeSet<String>, name: &str, is_member: bool) {
    if is_member {
        names.insert(name.to_owned());
    } else {
        names.remove(name);
    }
}

fn target(frontend: &Frontend, port: &ServicePort) -> Target {
    (frontend.address, port.protocol)
}
