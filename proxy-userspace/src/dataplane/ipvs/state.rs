//! The state of this data plane in the kernel: virtual services, real servers, addresses, set members.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::model::{Family, Protocol};

/// The key of a virtual service in IPVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Virtual {
    /// Packets with this mark. IPVS looks marks up before addresses.
    Mark {
        /// IPv4 or IPv6.
        family: Family,
        /// The whole mark. IPVS has no masks.
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
    /// The time in seconds for which a client keeps its server. The kernel stores a value even without
    /// persistence.
    pub timeout: u32,
    /// The part of a client's address that counts for persistence: a mask for IPv4, a prefix length for IPv6.
    pub netmask: u32,
}

/// The weight and the forwarding method of a real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// The share of new connections; 0 = none.
    pub weight: u32,
    /// `IP_VS_CONN_F_*`: the forwarding method.
    pub method: u32,
}

/// The connections of a real server.
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
    /// Bytes of the packets with their IP headers.
    pub bytes: u64,
}

/// A set of our table. Each exists once per family, except for [`Uplinks`](Self::Uplinks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    /// All served ports. The set is also the record of our virtual services.
    Services,
    /// Addresses of Services. A port of such an address belongs to a Service only if it is in `Services`.
    Vips,
    /// The addresses in `Vips` with refused unknown ports.
    Refusing,
    /// Ports without any endpoint.
    Refused,
    /// Ports without an endpoint for clients outside, but with endpoints elsewhere.
    DroppedOutside,
    /// Ports without an endpoint for clients inside the cluster, but with endpoints elsewhere.
    DroppedInside,
    /// Ports with source ranges.
    Restricted,
    /// The source ranges of the ports of a protocol.
    Allowed(Protocol),
    /// A map: the mark for the packets to a port from outside.
    Marks,
    /// Endpoints on this node. Their packets keep the source address.
    Local,
    /// Pairs of an endpoint on this node and itself, for hairpin connections.
    Loop,
    /// Sources inside the cluster with packets that come in over an uplink.
    Cluster,
    /// The sources in `Cluster` without other nodes. externalTrafficPolicy does not apply to them.
    Near,
    /// Ports with a mark for Direct Server Return only. Sources in `Cluster` are served there as clients
    /// inside.
    Direct,
    /// Sources with addresses that stay on the way to another node.
    Inside,
    /// Devices toward the network.
    Uplinks,
    /// Addresses of nodes. This node neither decapsulates nor forwards tunnels for Services from any other
    /// source.
    Nodes,
    /// Nodes that decapsulate FoU.
    FouNodes,
    /// Addresses for which nodes decapsulate. A pod's tunnel to such an address is forged.
    InnerDestinations,
    /// A map: the number of each backend of this node for which other nodes encapsulate packets.
    Encapsulated,
    /// A map: the destination of inner packets. The key is the backend's number and the frontend. The value
    /// is the backend's address and port.
    Targets,
    /// The same map for NodePorts at another node's address.
    NodeTargets,
    /// A map: the largest segment size of clients with encapsulated packets, by outgoing device.
    Segments,
}

/// A member of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// An address and a port, for most sets.
    Port(Protocol, SocketAddr),
    /// An address, for sets of addresses and for `Encapsulated`.
    Address(IpAddr),
    /// A frontend and a source range, for `Allowed`.
    Range(SocketAddr, IpNet),
    /// A range, for `Cluster`, `Near` and `Inside`.
    Net(IpNet),
    /// A device, for `Uplinks`.
    Device(String),
    /// A device with a family, for `Segments`.
    FamilyDevice(Family, String),
    /// A destination of inner packets, for `Targets` and `NodeTargets`.
    Target {
        /// The backend's number.
        number: u32,
        /// TCP, UDP or SCTP.
        protocol: Protocol,
        /// The frontend. Its address is unspecified for `NodeTargets`.
        frontend: SocketAddr,
        /// The backend's address. The member's value is the backend's port.
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
    /// The decapsulating devices, by the family of the outer header.
    pub tunnels: BTreeSet<Family>,
    /// Members of sets, with their values in maps.
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
    /// Returns the protocol of its packets.
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

/// The marks of virtual services: `0x4d`, two bits for the protocol, and a number.
///
/// Only IPVS sees them. The rules set a mark right before IPVS looks at a packet, and clear it right after.
pub mod marks {
    /// The bits that identify a mark of ours.
    pub const MASK: u32 = 0xff00_0000;
    /// The value of these bits.
    pub const VALUE: u32 = 0x4d00_0000;
    /// The position of the protocol.
    pub const PROTOCOL_SHIFT: u32 = 20;
    /// The bits of the number.
    pub const NUMBER: u32 = 0x000f_ffff;
}

/// The marks of packets that another node encapsulated: `0x4e` and the number of the backend.
///
/// A packet has this mark until the inner destination is the backend's address.
pub mod numbers {
    /// The value of the upper bits of such a mark.
    pub const VALUE: u32 = 0x4e00_0000;
    /// The largest number.
    pub const LAST: u32 = 0x4e00_ffff;
}

impl Protocol {
    /// Returns the upper bits of a mark with this protocol.
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

    /// Returns the protocol of an IP protocol number.
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
    /// Returns IPv4 or IPv6; `None` if it belongs to neither.
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
