//! The entries that one Service port needs in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Context;
use crate::dataplane::RejectUnknown;
use crate::dataplane::ipvs::state::{Element, Member, Scheduling, Server, Set, Virtual};
use crate::model::{Algorithm, Family, Frontend, FrontendKind, List, Scheduler, Scope, ServicePort};

/// `IP_VS_SVC_F_PERSISTENT`.
pub const PERSISTENT: u32 = 0x01;
/// `IP_VS_SVC_F_SCHED1`: Maglev hashing chooses another server if the first one has weight 0.
const HASH_FALLBACK: u32 = 0x08;
/// `IP_VS_SVC_F_SCHED2`: Maglev hashing includes the client's port.
const HASH_PORT: u32 = 0x10;
/// `IP_VS_CONN_F_MASQ`.
const TRANSLATE: u32 = 0;
/// `IP_VS_CONN_F_TUNNEL`.
pub const TUNNEL: u32 = 2;

/// The entries that one Service port needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Portion {
    pub services: BTreeMap<Virtual, Scheduling>,
    pub servers: BTreeMap<(Virtual, SocketAddr), Server>,
    pub addresses: BTreeSet<IpAddr>,
    pub members: BTreeMap<Member, Option<u32>>,
    /// Families in which other nodes encapsulate for backends of this node.
    pub tunnels: BTreeSet<Family>,
    /// Families in which other nodes decapsulate packets for its NodePorts.
    pub node_ports: BTreeSet<Family>,
    /// Addresses of the Service that other software serves.
    pub excluded: BTreeSet<IpAddr>,
}

/// The lists of endpoints for the clients of an address.
#[derive(Clone, Copy, Debug)]
struct Place {
    kind: FrontendKind,
    inside: List,
    outside: List,
    /// The forwarding method from clients outside to backends on other nodes.
    method: u32,
}

impl Place {
    /// Whether clients outside are served differently from those inside.
    fn is_apart(self) -> bool {
        self.inside != self.outside || self.method != TRANSLATE
    }
}

/// Returns the addresses at which a port serves clients outside differently. They need a mark.
pub fn marked(port: &ServicePort, context: &Context<'_>) -> Vec<SocketAddr> {
    let places = places(port, context).into_iter();
    places.filter(|(_, place)| place.is_apart()).map(|(address, _)| address).collect()
}

impl Portion {
    /// Returns the entries of a port. `mark` must be set if [`marked`] returns an address.
    pub fn new(port: &ServicePort, mark: Option<u32>, context: &Context<'_>) -> Self {
        let mut portion = Self::default();
        let Some(family) = port.frontends.first().map(|frontend| Family::of(frontend.address.ip())) else {
            return portion;
        };
        let scheduling = scheduling(port, family, context.scheduler);
        let marked = mark.map(|mark| Virtual::Mark { family, mark });
        for (address, place) in places(port, context) {
            let service = Virtual::Address { protocol: port.protocol, address };
            portion.serve(service, &scheduling, port, (place.inside, TRANSLATE), context);
            if let (Some(service), true) = (marked, place.is_apart()) {
                portion.serve(service, &scheduling, port, (place.outside, place.method), context);
                portion.members.insert((Set::Marks, Element::Port(port.protocol, address)), mark);
                if place.inside == place.outside {
                    portion.insert(Set::Direct, Element::Port(port.protocol, address));
                }
            }
            portion.guard(port, address, place, context);
        }
        portion.add_local(port);
        portion.keep_ports();
        let addresses = port.frontends.iter().map(|frontend| frontend.address.ip());
        portion.excluded = addresses.filter(|address| context.is_excluded(*address)).collect();
        portion
    }

    /// Replaces persistence by a hash of the client's address where the server's port differs from the
    /// frontend's.
    ///
    /// With persistence by a mark, IPVS keeps the destination port of the client (`ip_vs_sched_persist`). The
    /// server's port would be wrong.
    fn keep_ports(&mut self) {
        let marked = self.members.keys().filter_map(|member| match member {
            (Set::Marks, Element::Port(_, address)) => Some(address.port()),
            _ => None,
        });
        let asked: BTreeSet<u16> = marked.collect();
        for (service, scheduling) in &mut self.services {
            let is_moved = |((of, address), server): (&(Virtual, SocketAddr), &Server)| {
                of == service
                    && server.method == TRANSLATE
                    && asked.iter().any(|port| *port != address.port())
            };
            let is_remembered = scheduling.flags & PERSISTENT != 0;
            if matches!(service, Virtual::Mark { .. }) && is_remembered && self.servers.iter().any(is_moved) {
                Scheduler::Mh.name().clone_into(&mut scheduling.scheduler);
                scheduling.flags = HASH_FALLBACK;
            }
        }
    }

    /// Adds a virtual service and its servers. `method` applies to backends on other nodes.
    fn serve(
        &mut self,
        service: Virtual,
        scheduling: &Scheduling,
        port: &ServicePort,
        (list, method): (List, u32),
        context: &Context<'_>,
    ) {
        self.services.insert(service, scheduling.clone());
        let server = |address: &SocketAddr| {
            let endpoint = port.endpoints.get(address);
            let is_behind = endpoint.is_some_and(|endpoint| context.is_behind_a_tunnel(*address, endpoint));
            Server { weight: 1, method: if is_behind { method } else { TRANSLATE } }
        };
        self.servers.extend(port.members(list).map(|address| ((service, *address), server(address))));
    }

    /// Adds the refusals at an address, and the treatment of its other ports.
    fn guard(&mut self, port: &ServicePort, address: SocketAddr, place: Place, context: &Context<'_>) {
        let element = || Element::Port(port.protocol, address);
        self.insert(Set::Services, element());
        let is_empty = |list| port.members(list).next().is_none();
        let refusals = [
            (Set::Refused, !port.has_any),
            (Set::DroppedInside, port.has_any && is_empty(place.inside)),
            (Set::DroppedOutside, port.has_any && is_empty(place.outside)),
        ];
        for (set, _) in refusals.into_iter().filter(|(_, holds)| *holds) {
            self.insert(set, element());
        }
        if let (Some(ranges), FrontendKind::LoadBalancer) = (&port.source_ranges, place.kind) {
            self.insert(Set::Restricted, element());
            // nftables refuses overlapping elements, so a range inside another one is left out.
            for range in IpNet::aggregate(&ranges.iter().copied().collect()) {
                self.insert(Set::Allowed(port.protocol), Element::Range(address, range));
            }
        }
        if place.kind != FrontendKind::NodePort && !context.addresses.contains(&address.ip()) {
            self.addresses.insert(address.ip());
            self.insert(Set::Vips, Element::Address(address.ip()));
            if context.refuses(place.kind) {
                self.insert(Set::Refusing, Element::Address(address.ip()));
            }
        }
    }

    fn add_local(&mut self, port: &ServicePort) {
        for (address, _) in port.endpoints.iter().filter(|(_, endpoint)| endpoint.local) {
            self.insert(Set::Local, Element::Port(port.protocol, *address));
            self.insert(Set::Loop, Element::Port(port.protocol, *address));
        }
    }

    fn insert(&mut self, set: Set, element: Element) {
        self.members.insert((set, element), None);
    }
}

fn places(port: &ServicePort, context: &Context<'_>) -> BTreeMap<SocketAddr, Place> {
    let mut places: BTreeMap<SocketAddr, Place> = BTreeMap::new();
    for frontend in &port.frontends {
        let Frontend { address, scope, kind, list } = *frontend;
        // Only socket hooks serve NodePorts on loopback addresses.
        let is_ours = scope != Scope::Encapsulated && !address.ip().is_loopback();
        if !is_ours || context.is_excluded(address.ip()) {
            continue;
        }
        let method = if context.is_direct(port, frontend) { TUNNEL } else { TRANSLATE };
        let place = places.entry(address).or_insert(Place { kind, inside: list, outside: list, method });
        match scope {
            Scope::Internal => place.inside = list,
            // IPVS serves an address for every client.
            Scope::External | Scope::ExternalInside => place.outside = list,
            Scope::Encapsulated => {}
        }
    }
    places
}

fn scheduling(port: &ServicePort, family: Family, default: Scheduler) -> Scheduling {
    let of_algorithm = match port.algorithm {
        Algorithm::Maglev(_) => Some(Scheduler::Mh),
        Algorithm::Random => None,
    };
    let scheduler = port.scheduler.or(of_algorithm).unwrap_or(default);
    let hashing = if scheduler == Scheduler::Mh { HASH_FALLBACK | HASH_PORT } else { 0 };
    let persistence = if port.affinity_seconds > 0 { PERSISTENT } else { 0 };
    Scheduling {
        scheduler: scheduler.name().to_owned(),
        flags: hashing | persistence,
        timeout: port.affinity_seconds,
        // A client is one address, not a range.
        netmask: match family {
            Family::V4 => u32::MAX,
            Family::V6 => 128,
        },
    }
}

impl Context<'_> {
    pub(super) fn is_excluded(&self, address: IpAddr) -> bool {
        self.excluded.iter().any(|range| range.contains(&address))
    }

    fn refuses(&self, kind: FrontendKind) -> bool {
        match self.reject_unknown {
            RejectUnknown::All => true,
            RejectUnknown::ClusterIp => kind == FrontendKind::ClusterIp,
            RejectUnknown::Off => false,
        }
    }
}
