//! The addresses of each Service of type LoadBalancer, from Nodes, Services and EndpointSlices. Pure: no
//! I/O, no clock.
//!
//! A Service gets the addresses of the nodes of its pool, without those where an older Service has one of
//! its ports. With externalTrafficPolicy Local only nodes with a ready endpoint count. Whether a node is
//! ready never decides a conflict, so that no Service loses an address because another one's node fails.

mod node;
mod pool;
mod ports;
mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::model::{Change, Family, Kind, Object, ObjectKey, SERVICE_NAME_LABEL, ServiceKey};
use node::NodeFacts;
pub use node::NodeName;
use ports::{Assignment, assign};
use service::ServiceFacts;
pub use service::{Classes, Current, PORTS_CONDITION};

/// The objects that addresses follow from.
#[derive(Debug)]
pub struct Cluster {
    classes: Classes,
    nodes: BTreeMap<NodeName, NodeFacts>,
    services: BTreeMap<ServiceKey, ServiceFacts>,
    /// The nodes with a ready endpoint, by Service and slice.
    ready: BTreeMap<ServiceKey, BTreeMap<ObjectKey, BTreeSet<NodeName>>>,
    /// The Service of each slice.
    slices: BTreeMap<ObjectKey, ServiceKey>,
}

/// The wanted status of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The addresses in their order; `None` = the present ones stay.
    pub addresses: Option<Vec<IpAddr>>,
    /// Ports that older Services have; the text for people.
    pub conflict: Option<String>,
    /// Why there is no address, where a person has to do something about it.
    pub shortage: Option<Shortage>,
}

/// Why a Service has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// No node may have its traffic.
    NoNode,
    /// No node that may have its traffic is ready.
    NoReadyNode,
    /// No node has an address of the Service's families.
    NoAddress,
}

impl Cluster {
    /// Returns a cluster without objects.
    #[must_use]
    pub fn new(classes: Classes) -> Self {
        Self {
            classes,
            nodes: BTreeMap::new(),
            services: BTreeMap::new(),
            ready: BTreeMap::new(),
            slices: BTreeMap::new(),
        }
    }

    /// Takes a change over. Returns the Service whose present status is known anew.
    pub fn apply(&mut self, change: Change) -> Option<ServiceKey> {
        match change {
            Change::Upsert { object: Object::Node(node), .. } => {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                self.nodes.insert(name.into(), NodeFacts::of(&node));
                None
            }
            Change::Upsert { object: Object::Service(service), .. } => {
                let key = ObjectKey::new(Kind::Service, &service.metadata).service();
                self.services.insert(key.clone(), ServiceFacts::of(&service, &self.classes));
                Some(key)
            }
            Change::Upsert { object: Object::EndpointSlice(slice), .. } => {
                let key = ObjectKey::new(Kind::EndpointSlice, &slice.metadata);
                self.forget_slice(&key);
                self.learn_slice(key, &slice);
                None
            }
            Change::Delete(key) => match key.kind {
                Kind::Node => {
                    self.nodes.remove(key.name.as_str());
                    None
                }
                Kind::Service => {
                    let key = key.service();
                    self.services.remove(&key);
                    Some(key)
                }
                Kind::EndpointSlice => {
                    self.forget_slice(&key);
                    None
                }
            },
        }
    }

    fn learn_slice(&mut self, key: ObjectKey, slice: &EndpointSlice) {
        let labels = slice.metadata.labels.as_ref();
        let Some(name) = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL)) else { return };
        let service = ServiceKey { namespace: key.namespace.clone(), name: name.clone() };
        let is_ready = |conditions: Option<&k8s_openapi::api::discovery::v1::EndpointConditions>| {
            conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
        };
        let endpoints = slice.endpoints.iter().flatten();
        let ready = endpoints.filter(|endpoint| is_ready(endpoint.conditions.as_ref()));
        let nodes = ready.filter_map(|endpoint| endpoint.node_name.as_deref()).map(Arc::from).collect();
        self.ready.entry(service.clone()).or_default().insert(key.clone(), nodes);
        self.slices.insert(key, service);
    }

    fn forget_slice(&mut self, key: &ObjectKey) {
        let Some(service) = self.slices.remove(key) else { return };
        let Some(slices) = self.ready.get_mut(&service) else { return };
        slices.remove(key);
        if slices.is_empty() {
            self.ready.remove(&service);
        }
    }

    /// Returns the present status of a Service, as the API server has it.
    #[must_use]
    pub fn current(&self, key: &ServiceKey) -> Option<&Current> {
        self.services.get(key).map(|service| &service.current)
    }

    /// Returns the uid of a Service.
    #[must_use]
    pub fn uid(&self, key: &ServiceKey) -> Option<&str> {
        self.services.get(key).and_then(|service| service.uid.as_deref())
    }

    /// Returns the wanted status of each Service that is to have addresses from here.
    #[must_use]
    pub fn wanted(&self) -> BTreeMap<ServiceKey, Wanted> {
        let assignment = assign(&self.services, &self.nodes);
        let of_classes =
            self.services.iter().filter_map(|(key, service)| Some((key, service, service.request.as_ref()?)));
        of_classes
            .map(|(key, service, request)| {
                let won = assignment.won(key);
                let candidates: Vec<&NodeName> = match self.ready.get(key) {
                    _ if !request.is_local => won.iter().collect(),
                    None => Vec::new(),
                    Some(slices) => {
                        won.iter().filter(|name| slices.values().any(|nodes| nodes.contains(*name))).collect()
                    }
                };
                (key.clone(), self.decide(key, &service.families, &candidates, &assignment))
            })
            .collect()
    }

    fn decide(
        &self,
        key: &ServiceKey,
        families: &[Family],
        candidates: &[&NodeName],
        assignment: &Assignment,
    ) -> Wanted {
        let conflict = assignment.conflict(key);
        let candidates: Vec<&NodeFacts> =
            candidates.iter().filter_map(|name| self.nodes.get(*name)).collect();
        let ready: Vec<&NodeFacts> = candidates.iter().copied().filter(|node| node.is_ready).collect();
        let found = addresses(&ready, families);
        // Endpoints of a node that is not ready are not ready either, so they say nothing then.
        let won = assignment.won(key);
        let is_ready = |name: &NodeName| self.nodes.get(name).is_some_and(|node| node.is_ready);
        let shortage = if !assignment.has_pool(key) {
            Some(Shortage::NoNode)
        } else if !won.is_empty() && !won.iter().any(is_ready) {
            Some(Shortage::NoReadyNode)
        } else if !ready.is_empty() && found.is_empty() {
            Some(Shortage::NoAddress)
        } else {
            None
        };
        // An address that may work is better than none. If all nodes seem to have failed, the fault is
        // rather in what watches them.
        let stays = shortage == Some(Shortage::NoReadyNode);
        Wanted { addresses: (!stays).then_some(found), conflict, shortage }
    }
}

/// Returns the ExternalIPs of the nodes, or if there are none their InternalIPs, family by family and
/// sorted.
fn addresses(nodes: &[&NodeFacts], families: &[Family]) -> Vec<IpAddr> {
    let external: BTreeSet<IpAddr> = nodes.iter().flat_map(|node| &node.external).copied().collect();
    let internal = || nodes.iter().flat_map(|node| &node.internal).copied().collect();
    let all = if external.is_empty() { internal() } else { external };
    let of = |family: Family| all.iter().copied().filter(move |address| Family::of(*address) == family);
    families.iter().flat_map(|family| of(*family)).collect()
}

impl Cluster {
    /// Returns whether a Service is to have addresses from here.
    #[must_use]
    pub fn has_request(&self, key: &ServiceKey) -> bool {
        self.services.get(key).is_some_and(|service| service.request.is_some())
    }
}

impl Wanted {
    /// Keeps the present addresses, behind the wanted ones: an object that could not be read may be the reason for it.
    pub fn keep(&mut self, current: &Current) {
        let Some(addresses) = &mut self.addresses else { return };
        for address in current.addresses.iter().flatten() {
            if !addresses.contains(address) {
                addresses.push(*address);
            }
        }
    }
}

impl Shortage {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NoNode, Self::NoReadyNode, Self::NoAddress];

    /// Returns the Event's reason.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NoNode => "NoNode",
            Self::NoReadyNode => "NoReadyNode",
            Self::NoAddress => "NoAddress",
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNode => {
                "no node may have the traffic of this Service; see the labels of its pool on the nodes, and \
                 node.kubernetes.io/exclude-from-external-load-balancers; it gets no address"
            }
            Self::NoReadyNode => {
                "no node that may have the traffic of this Service is ready; its addresses stay as they are"
            }
            Self::NoAddress => {
                "no node has an address of the families in spec.ipFamilies; if any node has an ExternalIP, \
                 only ExternalIPs count"
            }
        })
    }
}

#[cfg(test)]
mod tests;
