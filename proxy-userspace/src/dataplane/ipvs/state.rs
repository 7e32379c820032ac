//! The state of this data plane in the kernel: virtual services, real servers, addresses, set members.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::model::{Family, Protocol};

/// The key of a virtual service in IPVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Virtual {
    /// Packets with this mark; looked up before addresses.
    Mark {
        /// IPv4 or IPv6.
        family: Family,
        /// The whole mark; IPVS knows no mask.
        mark: u32,
    },
    /// Packets to this address and port.
    Address {
        /// TCP, UDP or SCTP.
        protocol: Protocol,
        /// The frontend.
        address: SocketAddr,
    },
}

/// The scheduling of a virtual service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// The kernel's name of the scheduler.
    pub scheduler: String,
    /// `IP_VS_SVC_F_*`, without the flags that only the kernel sets.
    pub flags: u32,
    /// The time that a client keeps its server, in seconds. The kernel also keeps a value without
    /// persistence.
    pub timeout: u32,
    /// The bits of a client's address that count for persistence: a mask with IPv4, a prefix length with
    /// IPv6.
    pub netmask: u32,
}

/// Weight and forwarding method of a real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Share of new connections; 0 = none.
    pub weight: u32,
    /// `IP_VS_CONN_F_*`: the forwarding method.
    pub method: u32,
}

/// Connections of a real server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Established connections.
    pub active: u32,
    /// All other connections in IPVS.
    pub inactive: u32,
}

/// The traffic of clients to a virtual service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of the packets, from their IP headers on.
    pub bytes: u64,
}

/// A set of our table; each is there once for each family, [`Uplinks`](Self::Uplinks) once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// Every served port. It is also the record of our virtual services.
    Services,
    /// Addresses of Services: no Service has a port of them that is not in `Services`.
    Vips,
    /// The addresses of `Vips` whose unknown ports are refused.
    Refusing,
    /// Ports without any endpoint.
    Refused,
    /// Ports without an endpoint for clients outside, but with endpoints elsewhere.
    DroppedOutside,
    /// Ports without an endpoint for clients inside the cluster, but with endpoints elsewhere.
    DroppedInside,
    /// Ports with source ranges.
    Restricted,
    /// The source ranges of a protocol's ports.
    Allowed(Protocol),
    /// The mark of a port's packets from outside. A map.
    Marks,
    /// Endpoints on this node: their packets keep the source address.
    Local,
    /// Endpoints on this node, each with itself.
    Loop,
    /// Sources inside the cluster whose packets come in over an uplink.
    Cluster,
    /// The sources in `Cluster` that externalTrafficPolicy does not apply to: all but other nodes.
    Near,
    /// Ports that clients outside are served otherwise at only because they are answered directly. Not so
    /// those in `Cluster`.
    Direct,
    /// Sources that keep their address on the way to another node.
    Inside,
    /// Devices toward the network.
    Uplinks,
    /// Addresses of nodes: from another source, this node neither decapsulates nor forwards a tunnel for a
    /// Service.
    Nodes,
    /// Nodes that decapsulate FoU.
    FouNodes,
    /// Addresses for which nodes decapsulate: tunnels of pods for them are forged.
    InnerDestinations,
    /// Backends of this node that other nodes encapsulate packets for, each with its number. A map.
    Encapsulated,
    /// The destination of inner packets: from the backend's number and the frontend to the backend's address
    /// and port. A map.
    Targets,
    /// The same for NodePorts at another node's address.
    NodeTargets,
    /// By outgoing device, the largest segment size for a client whose packets come encapsulated. A map.
    Segments,
}

/// A member of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// Address and port, for most sets.
    Port(Protocol, SocketAddr),
    /// For sets of addresses, and `Encapsulated`.
    Address(IpAddr),
    /// For `Allowed`.
    Range(SocketAddr, IpNet),
    /// For `Cluster`, `Near` and `Inside`.
    Net(IpNet),
    /// For `Uplinks`.
    Device(String),
    /// For `Segments`.
    FamilyDevice(Family, String),
    /// For `Targets` and `NodeTargets`.
    Target {
        /// The backend's number.
        number: u32,
        /// TCP, UDP or SCTP.
        protocol: Protocol,
        /// What the client asks; for `NodeTargets` the address is unspecified.
        frontend: SocketAddr,
        /// The backend's address; its port is the member's value.
        backend: IpAddr,
    },
}

/// A member and its set.
pub type Member = (Set, Element);

/// Our state in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Virtual services.
    pub services: BTreeMap<Virtual, Scheduling>,
    /// Real servers.
    pub servers: BTreeMap<(Virtual, SocketAddr), Server>,
    /// Addresses on the dummy device.
    pub addresses: BTreeSet<IpAddr>,
    /// The devices that decapsulate, by the family of the outer header.
    pub tunnels: BTreeSet<Family>,
    /// Members of sets, with their numbers where the set is a map.
    pub members: BTreeMap<Member, Option<u32>>,
}

impl Set {
    /// Whether members have values.
    #[must_use]
    pub const fn is_map(self) -> bool {
        matches!(self, Self::Marks | Self::Encapsulated | Self::Targets | Self::NodeTargets | Self::Segments)
    }
}

impl State {
    /// Whether a virtual service is ours: it has our mark, an address of our device, or a member of our set.
    #[must_use]
    pub fn owns(&self, service: &Virtual) -> bool {
        match service {
            Virtual::Mark { mark, .. } => mark & marks::MASK == marks::VALUE,
            Virtual::Address { protocol, address } => {
                let place = (Set::Services, Element::Port(*protocol, *address));
                self.addresses.contains(&address.ip()) || self.members.contains_key(&place)
            }
        }
    }
}

impl Virtual {
    /// What its packets are.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Self::Mark { mark, .. } => Protocol::of_mark(*mark),
            Self::Address { protocol, .. } => *protocol,
        }
    }

    /// IPv4 or IPv6.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self {
            Self::Mark { family, .. } => *family,
            Self::Address { address, .. } => Family::of(address.ip()),
        }
    }
}

/// Marks of virtual services are `0x4d`, two bits that say which protocol, and a number. Nobody sees them but
/// IPVS: they are set right before it looks at a packet, and taken away right after.
pub mod marks {
    /// The bits that say that a mark is ours.
    pub const MASK: u32 = 0xff00_0000;
    /// What they are.
    pub const VALUE: u32 = 0x4d00_0000;
    /// Where the protocol is.
    pub const PROTOCOL_SHIFT: u32 = 20;
    /// The number.
    pub const NUMBER: u32 = 0x000f_ffff;
}

/// A packet that another node encapsulated carries `0x4e` and the number of the backend it is for as its
/// mark, until what is inside has its address.
pub mod numbers {
    /// The bits that say that a mark is such a number.
    pub const VALUE: u32 = 0x4e00_0000;
    /// The largest number.
    pub const LAST: u32 = 0x4e00_ffff;
}

impl Protocol {
    /// The bits of a mark that stand for it.
    #[must_use]
    pub const fn mark(self) -> u32 {
        let bits = match self {
            Self::Tcp => 0,
            Self::Udp => 1,
            Self::Sctp => 2,
        };
        marks::VALUE | bits << marks::PROTOCOL_SHIFT
    }

    const fn of_mark(mark: u32) -> Self {
        match mark >> marks::PROTOCOL_SHIFT & 3 {
            0 => Self::Tcp,
            1 => Self::Udp,
            _ => Self::Sctp,
        }
    }

    /// The protocol of an IP protocol number.
    #[must_use]
    pub const fn of_number(number: u16) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }
}

impl Element {
    /// IPv4 or IPv6, if it belongs to one.
    #[must_use]
    pub const fn family(&self) -> Option<Family> {
        match self {
            Self::Port(_, address) | Self::Range(address, _) => Some(Family::of(address.ip())),
            Self::FamilyDevice(family, _) => Some(*family),
            Self::Address(address) | Self::Target { backend: address, .. } => Some(Family::of(*address)),
            Self::Net(IpNet::V4(_)) => Some(Family::V4),
            Self::Net(IpNet::V6(_)) => Some(Family::V6),
            Self::Device(_) => None,
        }
    }
}

impl fmt::Display for Virtual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark { family, mark } => write!(f, "mark {mark:#x} {family}"),
            Self::Address { protocol, address } => write!(f, "{protocol} {address}"),
        }
    }
}
