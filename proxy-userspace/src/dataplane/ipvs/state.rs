//! What this data plane keeps in the kernel, in our words: virtual services, real servers, addresses, set members.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::model::{Family, Protocol};

/// By what IPVS finds a virtual service.
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
        /// What the client asks.
        address: SocketAddr,
    },
}

/// How a virtual service chooses its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// The scheduler's name, as the kernel has it.
    pub scheduler: String,
    /// `IP_VS_SVC_F_*`, without those that only the kernel sets.
    pub flags: u32,
    /// How long a client stays with its server, in seconds; the kernel keeps a value where persistence is off, too.
    pub timeout: u32,
    /// Which bits of a client's address count for persistence: a mask with IPv4, a prefix length with IPv6.
    pub netmask: u32,
}

/// How a real server is reached.
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
    /// Established ones.
    pub active: u32,
    /// All others that IPVS remembers.
    pub inactive: u32,
}

/// What clients have sent to a virtual service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of them, from their IP headers on.
    pub bytes: u64,
}

/// A set of our table; each is there once for each family, [`Uplinks`](Self::Uplinks) once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// Every port that is served. Also the record of which virtual services are ours.
    Services,
    /// Addresses of ours: a port of them that is not in `Services` is nobody's.
    Vips,
    /// Those of `Vips` where that is answered.
    Refusing,
    /// Ports without any endpoint.
    Refused,
    /// Ports without an endpoint for clients outside, and with some elsewhere.
    DroppedOutside,
    /// The same for clients inside the cluster.
    DroppedInside,
    /// Ports with source ranges.
    Restricted,
    /// The source ranges of a protocol's ports.
    Allowed(Protocol),
    /// The mark of a port's packets from outside. A map.
    Marks,
    /// Endpoints on this node: they are reached without another source address.
    Local,
    /// Endpoints on this node, each with itself.
    Loop,
    /// Sources that are inside the cluster though they come in over an uplink.
    Cluster,
    /// Those of them to which externalTrafficPolicy does not apply: all but other nodes.
    Near,
    /// Ports that clients outside are served otherwise at only because they are answered directly. Not so those in `Cluster`.
    Direct,
    /// Sources that keep their address on the way to another node.
    Inside,
    /// Devices toward the network.
    Uplinks,
    /// Nodes' own addresses: this node takes no tunnel off, and forwards none for a Service, from another source.
    Nodes,
    /// Nodes that take off what is encapsulated in UDP.
    FouNodes,
    /// Addresses for which nodes decapsulate: what pods encapsulate for them is forged.
    InnerDestinations,
    /// Backends of this node that other nodes encapsulate packets for, each with its number. A map.
    Encapsulated,
    /// Where what is inside goes: number of the backend and frontend, to the backend's address and port. A map.
    Targets,
    /// The same for NodePorts, whose address is another node's.
    NodeTargets,
    /// By the device it leaves by, the largest segment that may be announced to a client whose packets come encapsulated. A
    /// map.
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
        /// The backend, of which the member's value is the port.
        backend: IpAddr,
    },
}

/// A member and its set.
pub type Member = (Set, Element);

/// Everything of ours in the kernel, or what is taken for ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Virtual services.
    pub services: BTreeMap<Virtual, Scheduling>,
    /// Real servers.
    pub servers: BTreeMap<(Virtual, SocketAddr), Server>,
    /// Addresses on the dummy device.
    pub addresses: BTreeSet<IpAddr>,
    /// The devices that take outer headers off, by the family of those.
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
    /// Whether a virtual service is one of ours: it has our mark, an address of our device, or its place in our set.
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

/// Marks of virtual services are `0x4d`, two bits that say which protocol, and a number. Nobody sees them but IPVS: they
/// are set right before it looks at a packet, and taken away right after.
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

/// A packet that another node encapsulated carries `0x4e` and the number of the backend it is for as its mark, until what is
/// inside has its address.
pub mod numbers {
    /// The bits that say that a mark is such a number.
    pub const VALUE: u32 = 0x4e00_0000;
    /// The largest.
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
    /// IPv4 or IPv6, where it belongs to one.
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
