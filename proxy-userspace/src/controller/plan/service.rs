//! What of a Service decides its addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServiceSpec, ServiceStatus};

use super::pool::Pool;
use crate::model::{Family, Protocol, Rank, ServiceKey};

/// The type of the condition that tells of ports without a load balancer. Kubernetes' own service
/// controllers use it, too.
pub const PORTS_CONDITION: &str = "LoadBalancerPortsError";

/// The Services that are to have addresses from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// The value of `spec.loadBalancerClass`.
    pub name: String,
    /// Whether Services without a class are served, too.
    pub is_default: bool,
}

/// A port as other Services compete for it.
pub(super) type Port = (Protocol, u16);

/// A Service.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServiceFacts {
    pub rank: Rank,
    pub uid: Option<String>,
    /// The families in the order of `spec.ipFamilies`.
    pub families: Vec<Family>,
    /// The ports that it has on each node, whatever else.
    pub node_ports: BTreeSet<Port>,
    /// `None` = it gets no address from here.
    pub request: Option<Request>,
    pub current: Current,
}

/// The request for addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub pool: Pool,
    /// Whether externalTrafficPolicy is Local.
    pub is_local: bool,
    pub ports: BTreeSet<Port>,
}

/// The status of a Service, as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// The addresses in their order; `None` if an entry is no address of ours: a host name, or one that
    /// the nodes are not to serve.
    pub addresses: Option<Vec<IpAddr>>,
    /// The message of the condition [`PORTS_CONDITION`], if it is true.
    pub conflict: Option<String>,
}

impl ServiceFacts {
    pub fn of(service: &Service, classes: &Classes) -> Self {
        let spec = service.spec.as_ref();
        let created = service.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Self {
            rank: Rank::new(created),
            uid: service.metadata.uid.clone(),
            families: spec.map(families).unwrap_or_default(),
            node_ports: spec.map(node_ports).unwrap_or_default(),
            request: spec.filter(|spec| is_ours(spec, classes)).map(|spec| request(service, spec)),
            current: service.status.as_ref().map_or_else(Current::nothing, Current::of),
        }
    }

    /// Returns what decides between this Service and another one: the older one wins, or the first by name.
    pub fn precedence<'a>(&'a self, key: &'a ServiceKey) -> (&'a Rank, &'a ServiceKey) {
        (&self.rank, key)
    }
}

impl Current {
    fn nothing() -> Self {
        Self { addresses: Some(Vec::new()), conflict: None }
    }

    fn of(status: &ServiceStatus) -> Self {
        let entries = status.load_balancer.iter().flat_map(|status| status.ingress.iter().flatten());
        let address = |entry: &k8s_openapi::api::core::v1::LoadBalancerIngress| {
            let is_plain =
                entry.hostname.is_none() && entry.ip_mode.as_deref().is_none_or(|mode| mode == "VIP");
            entry.ip.as_ref().filter(|_| is_plain)?.parse().ok()
        };
        let conditions = status.conditions.iter().flatten();
        let conflicts = conditions.filter(|one| one.type_ == PORTS_CONDITION && one.status == "True");
        Self {
            addresses: entries.map(address).collect(),
            conflict: conflicts.map(|condition| condition.message.clone()).next(),
        }
    }
}

fn is_ours(spec: &ServiceSpec, classes: &Classes) -> bool {
    let class = spec.load_balancer_class.as_ref().filter(|class| !class.is_empty());
    spec.type_.as_deref() == Some("LoadBalancer")
        && class.map_or(classes.is_default, |class| *class == classes.name)
}

fn request(service: &Service, spec: &ServiceSpec) -> Request {
    Request {
        pool: Pool::of(service.metadata.labels.as_ref()),
        is_local: spec.external_traffic_policy.as_deref() == Some("Local"),
        ports: ports(spec, |port| Some(port.port)),
    }
}

fn families(spec: &ServiceSpec) -> Vec<Family> {
    let named = spec.ip_families.iter().flatten().filter_map(|family| match family.as_str() {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    });
    named.collect()
}

fn node_ports(spec: &ServiceSpec) -> BTreeSet<Port> {
    ports(spec, |port| port.node_port.filter(|number| *number != 0))
}

/// Returns one number of each port. The agents report a port that can't be read.
fn ports(
    spec: &ServiceSpec,
    number: impl Fn(&k8s_openapi::api::core::v1::ServicePort) -> Option<i32>,
) -> BTreeSet<Port> {
    let read = |port: &k8s_openapi::api::core::v1::ServicePort| {
        let protocol = match port.protocol.as_deref() {
            None | Some("TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            Some(_) => return None,
        };
        Some((protocol, number(port)?.try_into().ok()?))
    };
    spec.ports.iter().flatten().filter_map(read).collect()
}
