//! The ways of forwarding that the traffic takes, each with a Service of its own.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::manifests::Service;
use crate::topology::{Family, vip};

/// The port of all Services.
const PORT: u16 = 80;
/// The port at the node for [`Way::NodePort`].
const NODE_PORT: u16 = 30080;

/// A way from a client to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// The backends are on the director's node.
    Local,
    /// The director translates the client's address: the backends are on other nodes.
    Snat,
    /// Direct Server Return in IPIP and IPv6 in IPv6.
    DsrIpip,
    /// Direct Server Return in UDP.
    DsrFou,
    /// A Service with `externalTrafficPolicy: Local`.
    PolicyLocal,
    /// A NodePort, with backends on other nodes.
    NodePort,
    /// A pod asks a ClusterIP: socket hooks choose the backend.
    Socket,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Local,
        Self::Snat,
        Self::DsrIpip,
        Self::DsrFou,
        Self::PolicyLocal,
        Self::NodePort,
        Self::Socket,
    ];
    /// Those of the client outside the cluster.
    pub const OUTSIDE: [Self; 6] =
        [Self::Local, Self::Snat, Self::DsrIpip, Self::DsrFou, Self::PolicyLocal, Self::NodePort];

    /// Returns the name, which is also that of the Service.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Snat => "snat",
            Self::DsrIpip => "dsr-ipip",
            Self::DsrFou => "dsr-fou",
            Self::PolicyLocal => "policy-local",
            Self::NodePort => "node-port",
            Self::Socket => "socket",
        }
    }

    /// Returns the number of the Service, which determines its addresses.
    const fn number(self) -> u8 {
        match self {
            Self::Local => 1,
            Self::Snat => 2,
            Self::DsrIpip => 3,
            Self::DsrFou => 4,
            Self::PolicyLocal => 5,
            Self::NodePort => 6,
            Self::Socket => 7,
        }
    }

    /// Returns the number of the node that the client's packets reach first.
    #[must_use]
    pub const fn director(self) -> u8 {
        match self {
            Self::DsrFou => 2,
            Self::NodePort => 3,
            _ => 1,
        }
    }

    /// Returns the endpoints of the Service.
    const fn endpoints(self) -> &'static [&'static str] {
        match self {
            Self::Local => &["pod-1a", "pod-1b"],
            Self::Snat | Self::DsrIpip => &["pod-2a", "pod-3a"],
            Self::DsrFou => &["pod-1b", "pod-3b"],
            Self::PolicyLocal => &["pod-1a", "pod-2a"],
            Self::NodePort => &["pod-1a", "pod-2b"],
            Self::Socket => &["pod-1a", "pod-2a", "pod-3a"],
        }
    }

    /// Returns the endpoints that should get packets.
    #[must_use]
    pub const fn backends(self) -> &'static [&'static str] {
        match self {
            Self::PolicyLocal => &["pod-1a"],
            other => other.endpoints(),
        }
    }

    /// Returns whether backends see the client's own address and port.
    #[must_use]
    pub const fn keeps_client(self) -> bool {
        !matches!(self, Self::Snat | Self::NodePort)
    }

    /// Returns the pod of the client, for a client inside the cluster.
    #[must_use]
    pub fn client(self) -> Option<&'static str> {
        (self == Self::Socket).then_some("pod-1b")
    }

    /// Returns the Service.
    pub(super) fn service(self, cluster: &Cluster) -> Result<Service> {
        self.service_of(cluster, self.endpoints())
    }

    /// Returns the Service of a load balancer address with another forwarding.
    pub(super) fn forwarded(self, cluster: &Cluster, forwarding: &str) -> Result<Service> {
        let service = cluster.service(self.name(), self.number(), self.endpoints())?;
        Ok(service.load_balancer(vip(self.number())).annotation("millrace.dev/forwarding", forwarding))
    }

    fn service_of(self, cluster: &Cluster, endpoints: &[&str]) -> Result<Service> {
        let service = cluster.service(self.name(), self.number(), endpoints)?;
        let addressed = |service: Service| service.load_balancer(vip(self.number()));
        Ok(match self {
            Self::Local | Self::Snat => addressed(service),
            Self::DsrIpip | Self::DsrFou => addressed(service).annotation("millrace.dev/forwarding", "dsr"),
            Self::PolicyLocal => addressed(service).local(),
            Self::NodePort => service.node_ports(NODE_PORT),
            Self::Socket => service,
        })
    }

    /// Returns the Service of an earlier time, when it lacked its last endpoint.
    pub(super) fn older_service(self, cluster: &Cluster) -> Result<Service> {
        let (_, earlier) = self.endpoints().split_last().context("a Service without endpoints")?;
        self.service_of(cluster, earlier)
    }

    /// Returns the address that clients ask.
    pub(super) fn target(self, cluster: &Cluster, family: Family) -> Result<SocketAddr> {
        let (addresses, port) = match self {
            Self::NodePort => (cluster.bed().node(self.director())?.addresses(), NODE_PORT),
            Self::Socket => (self.service(cluster)?.cluster_ips(), PORT),
            _ => (vip(self.number()), PORT),
        };
        Ok(SocketAddr::new(addresses.of(family), port))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
