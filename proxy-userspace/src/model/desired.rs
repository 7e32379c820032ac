//! The desired state: the model's output and the data plane's input.

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

/// One port of a Service in one family: the unit of computation, planning and writing.
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

/// The origin of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// This node's own pods and processes.
    Internal,
    /// A packet that came in over an uplink.
    External,
    /// A packet from an uplink whose source is inside the cluster ([`Desired::cluster_sources`]).
    ExternalInside,
    /// A packet that another node encapsulated for a NodePort of its own. The frontend's address is
    /// unspecified.
    Encapsulated,
}

/// The kind of a frontend's address.
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

/// The list of a service port that a frontend uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum List {
    /// All usable endpoints.
    Cluster,
    /// The usable endpoints on this node.
    Local,
}

/// An address and port where clients reach a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The destination of clients' packets.
    pub address: SocketAddr,
    /// The origin of the packets that it serves.
    pub scope: Scope,
    /// The kind of its address.
    pub kind: FrontendKind,
    /// The list, from the traffic policy of this scope.
    pub list: List,
}

/// The way of packets to a backend on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// SNAT: the source is this node's address, and the reply comes back through this node.
    Snat,
    /// DSR: encapsulated. The reply goes straight from the backend's node to the client.
    Dsr,
}

/// The layout of a list in the map SELECTION.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// One slot a backend.
    Random,
    /// A Maglev table of this many slots, a prime.
    Maglev(u32),
}

/// Address and port of an endpoint: the identity of a backend.
pub type EndpointAddress = SocketAddr;

/// An endpoint in any condition. It is listed as long as any EndpointSlice has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the API's own conditions, each with a meaning of its own")]
pub struct Endpoint {
    /// The node's name, if the slice has it.
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

/// The desired state of one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The frontends, sorted.
    pub frontends: BTreeSet<Frontend>,
    /// How backends on other nodes are reached from frontends of scope external.
    pub forwarding: Forwarding,
    /// How a backend is chosen. Always Maglev where `forwarding` is Dsr.
    pub algorithm: Algorithm,
    /// The scheduler of IPVS, if the Service has one.
    pub scheduler: Option<Scheduler>,
    /// Session affinity time-out in seconds, 0 = none.
    pub affinity_seconds: u32,
    /// The sources that may reach frontends of kind [`FrontendKind::LoadBalancer`], in this family.
    ///
    /// `None` = all sources, an empty set = none.
    pub source_ranges: Option<BTreeSet<IpNet>>,
    /// All endpoints in any condition: a connection to a terminating one still lives.
    pub endpoints: BTreeMap<EndpointAddress, Endpoint>,
    /// The Cluster list; `None` = not in use. Each member is a key of `endpoints`.
    pub cluster: Option<BTreeSet<EndpointAddress>>,
    /// The Local list; `None` = not in use. Each member is a key of `endpoints`.
    pub local: Option<BTreeSet<EndpointAddress>>,
    /// Whether any endpoint on any node is usable. If so, packets for an empty list are dropped,
    /// else refused.
    pub has_any: bool,
}

impl ServicePort {
    /// Returns the members of a list; none if the list is not in use.
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
    /// The service ports, by port and family.
    pub ports: BTreeMap<PortKey, ServicePort>,
    /// The addresses of every node of the cluster, this one included. DSR encapsulates to them.
    pub nodes: BTreeMap<String, BTreeSet<IpAddr>>,
    /// This node's name.
    pub node_name: String,
    /// The sources inside the cluster, even if their packets come in over an uplink:
    /// `--cluster-cidr` and the addresses of all nodes.
    pub cluster_sources: BTreeSet<IpNet>,
    /// The ranges of the pods: `--cluster-cidr`.
    pub pod_sources: BTreeSet<IpNet>,
    /// This node's own addresses. externalTrafficPolicy does not apply to them.
    pub own_sources: BTreeSet<IpNet>,
    /// The health check node ports to open, by Service.
    pub health_checks: BTreeMap<ServiceKey, HealthCheck>,
    /// The addresses that health check node ports are opened on: those that serve NodePorts.
    pub health_check_addresses: BTreeSet<IpAddr>,
    /// Whether load balancers may send new clients to this node.
    pub eligibility: Eligibility,
    /// The ranges of pods of every node that has any and an address, in the order of its Node object.
    pub pod_ranges: BTreeMap<String, Vec<IpNet>>,
    /// The nodes that get no clients from load balancers: `node.kubernetes.io/exclude-from-external-load-balancers`, or
    /// about to go.
    pub without_clients: BTreeSet<String>,
    /// The nodes that are not ready. They may serve all the same.
    pub not_ready: BTreeSet<String>,
    /// The Services' addresses that nodes announce: on their links (`--l2-announce`), or by routes
    /// (`--route-announce`). Empty if this node is not to announce any.
    pub announced: BTreeMap<IpAddr, Candidates>,
}

/// A health check node port: Services of type LoadBalancer with externalTrafficPolicy Local have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// Distinct addresses of Ready endpoints on this node, over all ports of the Service.
    ///
    /// Terminating endpoints do not count, although they may still serve: the node drains.
    pub local_endpoints: usize,
}

/// The state of this node's own Node object, for load balancers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eligibility {
    /// The node may get new clients.
    #[default]
    Eligible,
    /// No Node has this node's name.
    Missing,
    /// The Node is being deleted.
    Deleted,
    /// The Node has the taint `ToBeDeletedByClusterAutoscaler`.
    Tainted,
}

/// The nodes that may announce an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// All nodes of the cluster.
    All,
    /// Those with endpoints: externalTrafficPolicy is Local.
    Only(BTreeSet<Arc<str>>),
}

impl Candidates {
    /// Returns whether any node may.
    #[must_use]
    pub fn is_any(&self) -> bool {
        !matches!(self, Self::Only(nodes) if nodes.is_empty())
    }
}

/// The changes since the data plane's last sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Service ports that were added, changed or removed. `Desired` has no removed ones.
    pub ports: BTreeSet<PortKey>,
    /// Whether `Desired::nodes`, `Desired::cluster_sources` or `Desired::own_sources` changed.
    pub nodes: bool,
    /// Whether `Desired::health_checks`, their addresses or `Desired::eligibility` changed. The
    /// data plane ignores it.
    pub health: bool,
    /// Whether some objects were unreadable since the start.
    ///
    /// An earlier agent may have served them. The data plane then keeps the kernel's state that no
    /// object requests.
    pub incomplete: bool,
}

impl Dirty {
    /// Returns the dirty set of everything, for a data plane without a state.
    #[must_use]
    pub fn everything(desired: &Desired, incomplete: bool) -> Self {
        let ports = desired.ports.keys().cloned().collect();
        Self { ports, nodes: true, health: true, incomplete }
    }
    /// Returns whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && !self.nodes && !self.health
    }
    /// Adds the changes of `other`.
    pub fn merge(&mut self, other: Self) {
        self.ports.extend(other.ports);
        self.nodes |= other.nodes;
        self.health |= other.health;
        self.incomplete |= other.incomplete;
    }
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl Protocol {
    /// Returns the IP protocol number.
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
    /// Writes `namespace/name:port`, as kube-proxy does; an unnamed port has no colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.port.is_empty() { "" } else { ":" };
        write!(f, "{}{separator}{}", self.service, self.port)
    }
}
