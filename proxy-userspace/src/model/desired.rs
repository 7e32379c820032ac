//! What the data plane shall serve: the model's output and the data plane's input.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use super::Scheduler;

/// A Service's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

/// One port of a Service in one family: the unit that is computed, planned and written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey {
    /// The Service.
    pub service: ServiceKey,
    /// The port's name, empty for an unnamed port.
    pub port: String,
    /// IPv4 and IPv6 are served independently of each other.
    pub family: Family,
}

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Transport protocol of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// This node's own pods and processes.
    Internal,
    /// A packet that came in over an uplink.
    External,
    /// The same, but only from a source inside the cluster ([`Desired::cluster_sources`]).
    ExternalInside,
    /// A packet that another node encapsulated, for a NodePort of its own: such a frontend's address is unspecified.
    Encapsulated,
}

/// What kind of address a frontend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// The Service's cluster IP.
    ClusterIp,
    /// A node address with the Service's nodePort.
    NodePort,
    /// One of `spec.externalIPs`.
    ExternalIp,
    /// One of `status.loadBalancer.ingress[].ip`.
    LoadBalancer,
}

/// Which of a service port's lists a frontend uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum List {
    /// All usable endpoints.
    Cluster,
    /// Those on this node.
    Local,
}

/// Where a service port is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// Address and port a client sends to.
    pub address: SocketAddr,
    /// Who asks.
    pub scope: Scope,
    /// Kind of address.
    pub kind: FrontendKind,
    /// The list that the traffic policy of this scope names.
    pub list: List,
}

/// How a packet gets to a backend on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// With this node's address as its source; the reply comes back through this node.
    Snat,
    /// Encapsulated; the reply goes straight from the backend's node to the client.
    Dsr,
}

/// How a list becomes a slice of SELECTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// One slot a backend.
    Random,
    /// A Maglev table of this many slots, a prime.
    Maglev(u32),
}

/// Address and port of an endpoint; the identity of a backend.
pub type EndpointAddress = SocketAddr;

/// An endpoint in any condition: listed here as long as it is in some EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the API's own conditions, each with a meaning of its own")]
pub struct Endpoint {
    /// Name of the node it runs on, if the slice says.
    pub node: Option<Arc<str>>,
    /// Whether that is this node.
    pub local: bool,
    /// `conditions.ready`, unset counts as true.
    pub ready: bool,
    /// `conditions.serving`, unset counts as true.
    pub serving: bool,
    /// `conditions.terminating`, unset counts as false.
    pub terminating: bool,
}

/// Everything the data plane needs to know of one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// Where it is reached, sorted.
    pub frontends: BTreeSet<Frontend>,
    /// How backends on other nodes are reached from frontends of scope external.
    pub forwarding: Forwarding,
    /// How a backend is chosen. Always Maglev where `forwarding` is Dsr.
    pub algorithm: Algorithm,
    /// How IPVS chooses, where the Service says so.
    pub scheduler: Option<Scheduler>,
    /// Session affinity time-out in seconds, 0 = none.
    pub affinity_seconds: u32,
    /// Who may reach frontends of kind [`FrontendKind::LoadBalancer`], in this family; `None` = everybody. An empty
    /// set keeps everybody out.
    pub source_ranges: Option<BTreeSet<IpNet>>,
    /// All endpoints in any condition (a connection to one that is only terminating still lives).
    pub endpoints: BTreeMap<EndpointAddress, Endpoint>,
    /// The Cluster list; `None` = not in use. Each member is a key of `endpoints`.
    pub cluster: Option<BTreeSet<EndpointAddress>>,
    /// The Local list; `None` = not in use. Each member is a key of `endpoints`.
    pub local: Option<BTreeSet<EndpointAddress>>,
    /// Whether any endpoint anywhere is usable: an empty list is then dropped, else refused.
    pub has_any: bool,
}

impl ServicePort {
    /// The members of a list; empty where the list is not in use.
    pub fn members(&self, list: List) -> impl Iterator<Item = &EndpointAddress> {
        let list = match list {
            List::Cluster => &self.cluster,
            List::Local => &self.local,
        };
        list.iter().flatten()
    }
}

/// The whole desired state of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// By service port and family.
    pub ports: BTreeMap<PortKey, ServicePort>,
    /// Addresses of every node of the cluster, this one included: peers, and where encapsulated packets go.
    pub nodes: BTreeMap<String, BTreeSet<IpAddr>>,
    /// This node's name.
    pub node_name: String,
    /// Sources that are inside the cluster although they come in over an uplink: `--cluster-cidr` and the addresses of
    /// all nodes.
    pub cluster_sources: BTreeSet<IpNet>,
    /// Those of them that get the Cluster list of a frontend whose externalTrafficPolicy is Local, as with kube-proxy:
    /// `--cluster-cidr` and this node's own addresses.
    pub near_sources: BTreeSet<IpNet>,
    /// The health check node ports to open, by Service.
    pub health_checks: BTreeMap<ServiceKey, HealthCheck>,
    /// Where they are opened: the addresses that NodePorts are served on.
    pub health_check_addresses: BTreeSet<IpAddr>,
    /// Whether load balancers may send new clients to this node.
    pub eligibility: Eligibility,
}

/// A health check node port: Services of type LoadBalancer with externalTrafficPolicy Local have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// Distinct addresses of Ready endpoints on this node, over all ports of the Service. Endpoints that terminate
    /// do not count though they may still serve: the node drains.
    pub local_endpoints: usize,
}

/// What the own Node object says of this node's future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eligibility {
    /// Nothing against it.
    #[default]
    Eligible,
    /// There is no Node of this name.
    Missing,
    /// It is being deleted.
    Deleted,
    /// It has the taint `ToBeDeletedByClusterAutoscaler`.
    Tainted,
}

/// What changed since the data plane was last told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Service ports that were added, changed or removed (then they are not in `Desired`).
    pub ports: BTreeSet<PortKey>,
    /// Whether `Desired::nodes`, `Desired::cluster_sources` or `Desired::near_sources` changed.
    pub nodes: bool,
    /// Whether `Desired::health_checks`, where they are opened, or `Desired::eligibility` changed. No concern of the
    /// data plane's.
    pub health: bool,
    /// Whether some objects could not be read since the start. They may be what an earlier agent served: what it
    /// left in the kernel and nobody asks for stays meanwhile.
    pub incomplete: bool,
}

impl Dirty {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && !self.nodes && !self.health
    }
    /// Adds what `other` names.
    pub fn merge(&mut self, other: Self) {
        self.ports.extend(other.ports);
        self.nodes |= other.nodes;
        self.health |= other.health;
        self.incomplete |= other.incomplete;
    }
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl Protocol {
    /// IP protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for PortKey {
    /// `namespace/name:port`, as kube-proxy writes it; an unnamed port has no colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.port.is_empty() { "" } else { ":" };
        write!(f, "{}{separator}{}", self.service, self.port)
    }
}
