//! Services: `bed.service().dsr().external("203.0.113.1:80").backend_local("10.1.0.5:8080").install()`.

use std::net::{IpAddr, SocketAddr};

use proxy_common::flow::FlowKey;
use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_DSR, FRONTEND_DSR_ENDS, FRONTEND_INSIDE_ONLY, FRONTEND_KIND_CLUSTER_IP,
    FRONTEND_KIND_LOAD_BALANCER, FRONTEND_KIND_NODE_PORT, FRONTEND_KIND_SHIFT, FRONTEND_LISTENER,
    FRONTEND_LOCAL, FRONTEND_MAY_HAVE_DSR, FRONTEND_NODE_ONLY, FRONTEND_SOURCE_RANGES, FRONTEND_WAS_CLUSTER,
    Frontend, FrontendKey, SCOPE_ENCAPSULATED, SCOPE_EXTERNAL, SCOPE_INTERNAL,
};
use proxy_common::hash::{client_hash, flow_hash, hint};
use proxy_common::selection::{
    BackendRef, HintKey, SERVICE_ELSEWHERE, SERVICE_FORMER, SERVICE_MAGLEV, SERVICE_VACANT, ServiceEntry,
    Slot,
};
use proxy_common::vip::{FILTER_SERVED, FILTER_VIP};
use proxy_common::{Addr4, Addr6, Address};

use super::Bed;
use super::maps::FamilyMaps;
use crate::frame::{Frame, Layer, protocol};

/// The number of slots of a Maglev slice, unless a test says otherwise: small, and a prime as a real
/// one's.
const MAGLEV_SLOTS: u32 = 251;

/// A backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address and port.
    pub at: SocketAddr,
    /// Its id and generation.
    pub reference: BackendRef,
    /// Its way; 0 = on this node.
    pub way: u32,
    /// The hint that names it in an outer header.
    pub hint: u16,
}

/// A Service to install.
#[must_use]
pub struct ServiceBuilder<'bed> {
    bed: &'bed Bed,
    flags: u32,
    protocol: u8,
    external: Vec<SocketAddr>,
    source_ranges: Vec<(IpAddr, u32)>,
    has_cluster_list: bool,
    inside_local: bool,
    maglev_slots: u32,
    endpoints: Vec<Endpoint>,
}

/// An installed Service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Id of the list that the frontends name.
    pub id: u32,
    /// Id of the Cluster list.
    pub cluster_id: u32,
    /// The backends of the list, in the order of their addition.
    pub endpoints: Vec<Endpoint>,
    /// The backends of the Cluster list.
    pub cluster_endpoints: Vec<Endpoint>,
    flags: u32,
    entry: ServiceEntry,
}

impl Bed {
    /// Returns a TCP Service of traffic policy Cluster, without frontends and backends.
    pub fn service(&self) -> ServiceBuilder<'_> {
        ServiceBuilder {
            bed: self,
            flags: FRONTEND_KIND_LOAD_BALANCER << FRONTEND_KIND_SHIFT,
            protocol: protocol::TCP,
            external: Vec::new(),
            source_ranges: Vec::new(),
            has_cluster_list: true,
            inside_local: false,
            maglev_slots: MAGLEV_SLOTS,
            endpoints: Vec::new(),
        }
    }
}

impl ServiceBuilder<'_> {
    /// Gives it Direct Server Return, and so a Maglev slice.
    pub fn dsr(mut self) -> Self {
        self.flags |= FRONTEND_DSR;
        self
    }

    /// Gives it a Maglev slice, and frontends that had Direct Server Return before.
    pub fn dsr_ends(mut self) -> Self {
        self.flags |= FRONTEND_DSR_ENDS;
        self
    }

    /// Gives it the external traffic policy Local, after policy Cluster.
    pub fn was_cluster(mut self) -> Self {
        self.flags |= FRONTEND_LOCAL | FRONTEND_WAS_CLUSTER;
        self
    }

    /// Sets the number of slots of its Maglev slice.
    pub fn maglev_slots(mut self, slots: u32) -> Self {
        self.maglev_slots = slots;
        self
    }

    /// Gives it the external traffic policy Local.
    pub fn policy_local(mut self) -> Self {
        self.flags |= FRONTEND_LOCAL;
        self
    }

    /// Gives it session affinity: the slot follows the client's address.
    pub fn affinity(mut self) -> Self {
        self.flags |= FRONTEND_AFFINITY;
        self
    }

    /// Says that a backend on this node has the address and port of its frontends.
    pub fn listener(mut self) -> Self {
        self.flags |= FRONTEND_LISTENER;
        self
    }

    /// Admits, over an uplink, only clients inside the cluster.
    pub fn inside_only(mut self) -> Self {
        self.flags |= FRONTEND_INSIDE_ONLY;
        self
    }

    /// Admits only sockets of the node's own network namespace.
    pub fn node_only(mut self) -> Self {
        self.flags |= FRONTEND_NODE_ONLY;
        self
    }

    /// Admits only sources in a prefix; may be repeated.
    pub fn source_range(mut self, prefix: IpAddr, length: u32) -> Self {
        self.flags |= FRONTEND_SOURCE_RANGES;
        self.source_ranges.push((prefix, length));
        self
    }

    /// Makes its frontends ClusterIPs.
    pub fn cluster_ip(self) -> Self {
        self.of_kind(FRONTEND_KIND_CLUSTER_IP)
    }

    /// Makes its frontends NodePorts: on this node at the addresses of
    /// [`external`](Self::external), and on all others at the same ports, encapsulated.
    pub fn node_ports(self) -> Self {
        self.of_kind(FRONTEND_KIND_NODE_PORT)
    }

    fn of_kind(mut self, kind: u32) -> Self {
        self.flags &= (1 << FRONTEND_KIND_SHIFT) - 1;
        self.flags |= kind << FRONTEND_KIND_SHIFT;
        self
    }

    /// Gives it the internal traffic policy Local.
    pub fn internal_policy_local(mut self) -> Self {
        self.flags |= FRONTEND_LOCAL;
        self.inside_local = true;
        self
    }

    /// Removes its Cluster list, as for a Service of internal traffic policy Local without external
    /// frontends.
    pub fn without_cluster_list(mut self) -> Self {
        self.has_cluster_list = false;
        self
    }

    /// Makes it a UDP Service.
    pub fn udp(mut self) -> Self {
        self.protocol = protocol::UDP;
        self
    }

    /// Sets its IP protocol number.
    pub fn protocol(mut self, protocol: u8) -> Self {
        self.protocol = protocol;
        self
    }

    /// Adds an address and port, for clients outside and inside the cluster.
    pub fn external(mut self, at: impl IntoSocketAddr) -> Self {
        self.external.push(at.into_socket_addr());
        self
    }

    /// Adds a backend on this node.
    pub fn backend_local(mut self, at: impl IntoSocketAddr) -> Self {
        let at = at.into_socket_addr();
        let reference = self.bed.backend_local(at);
        self.endpoints.push(Endpoint { at, reference, way: 0, hint: hint_of(at) });
        self
    }

    /// Adds a backend behind a way.
    pub fn backend_remote(mut self, at: impl IntoSocketAddr, way: u32) -> Self {
        let at = at.into_socket_addr();
        let reference = self.bed.backend_remote(at, way);
        self.endpoints.push(Endpoint { at, reference, way, hint: hint_of(at) });
        self
    }

    /// Adds a backend whose pod decapsulates. It is on this node if the way is 0.
    pub fn backend_pod(mut self, at: impl IntoSocketAddr, way: u32) -> Self {
        let at = at.into_socket_addr();
        let reference = self.bed.backend_pod(at, way);
        self.endpoints.push(Endpoint { at, reference, way, hint: hint_of(at) });
        self
    }

    /// Writes backends' hints, slots, lists and frontends, in the agent's order.
    pub fn install(self) -> Service {
        let local = self.flags & FRONTEND_LOCAL != 0;
        let all = self.endpoints.clone();
        let listed: Vec<Endpoint> =
            all.iter().copied().filter(|endpoint| !local || endpoint.way == 0).collect();
        let elsewhere = if listed.is_empty() && !all.is_empty() { SERVICE_ELSEWHERE } else { 0 };
        let (id, entry) = self.write_list(&listed, elsewhere);
        let cluster_id = match (local, self.has_cluster_list) {
            (true, true) => self.write_list(&all, 0).0,
            (true, false) | (false, _) => id,
        };
        for (prefix, length) in &self.source_ranges {
            self.bed.source_range(id, *prefix, *length);
            self.bed.source_range(cluster_id, *prefix, *length);
        }
        for at in &self.external {
            self.write_frontend(*at, id, cluster_id);
        }
        Service { id, cluster_id, endpoints: listed, cluster_endpoints: all, flags: self.flags, entry }
    }

    fn write_list(&self, endpoints: &[Endpoint], flags: u8) -> (u32, ServiceEntry) {
        let bed = self.bed;
        let id = bed.next_service.replace(bed.next_service.get() + 1);
        let maglev = self.flags & FRONTEND_MAY_HAVE_DSR != 0;
        let length = match endpoints.len() as u32 {
            0 => 0,
            _ if maglev => self.maglev_slots,
            count => count,
        };
        let offset = bed.next_slot.replace(bed.next_slot.get() + length);
        let owners = endpoints.iter().map(|endpoint| Slot::settled_on(endpoint.reference));
        bed.write_slots(offset, &owners.cycle().take(length as usize).collect::<Vec<_>>());
        for endpoint in endpoints.iter().filter(|endpoint| maglev && endpoint.way == 0) {
            let key = HintKey { service: id, hint: endpoint.hint.into() };
            bed.insert::<HintKey, u32>("HINTS", key, endpoint.reference.0);
            bed.insert::<HintKey, u32>("HINTS", pod_key(id, endpoint.at.ip()), endpoint.reference.0);
        }
        for endpoint in endpoints.iter().filter(|_| self.flags & FRONTEND_AFFINITY != 0) {
            let key = HintKey::member(id, endpoint.reference);
            bed.insert::<HintKey, u32>("HINTS", key, endpoint.reference.0);
        }
        let entry = ServiceEntry::new(offset, length, flags | if maglev { SERVICE_MAGLEV } else { 0 });
        bed.set::<u64>("SERVICES", id, entry.0);
        (id, entry)
    }

    fn write_frontend(&self, at: SocketAddr, service: u32, cluster_service: u32) {
        match at.ip() {
            IpAddr::V4(address) => {
                self.write_scopes(Addr4::from(address), at.port(), service, cluster_service);
            }
            IpAddr::V6(address) => {
                self.write_scopes(Addr6::from(address), at.port(), service, cluster_service);
            }
        }
    }

    fn write_scopes<A: FamilyMaps>(&self, address: A, port: u16, service: u32, cluster_service: u32)
    where
        FrontendKey<A>: aya::Pod,
    {
        let affinity_seconds = if self.flags & FRONTEND_AFFINITY == 0 { 0 } else { 10800 };
        let external = Frontend { service, cluster_service, flags: self.flags, affinity_seconds };
        let outside =
            FRONTEND_LOCAL | FRONTEND_WAS_CLUSTER | FRONTEND_DSR | FRONTEND_DSR_ENDS | FRONTEND_INSIDE_ONLY;
        let flags = self.flags & !outside;
        let internal = if self.inside_local {
            Frontend { flags: flags | FRONTEND_LOCAL, ..external }
        } else {
            Frontend { service: cluster_service, flags, ..external }
        };
        let is_node_port = external.kind() == FRONTEND_KIND_NODE_PORT;
        if is_node_port {
            self.bed.node_port(port);
        }
        self.bed.mark_address(
            address.to_ip(),
            if is_node_port { FILTER_SERVED } else { FILTER_SERVED | FILTER_VIP },
        );
        let scopes = [
            (address, SCOPE_EXTERNAL, external),
            (address, SCOPE_INTERNAL, internal),
            (A::default(), SCOPE_ENCAPSULATED, external),
        ];
        for (address, scope, frontend) in scopes.into_iter().take(if is_node_port { 3 } else { 2 }) {
            let key = FrontendKey { address, port: port.to_be(), protocol: self.protocol, scope };
            self.bed.insert::<FrontendKey<A>, Frontend>(&A::map("FRONTENDS"), key, frontend);
            self.bed.index_frontend(&key, &frontend);
        }
    }
}

/// Returns the key of HINTS for a pod of this node.
fn pod_key(service: u32, address: IpAddr) -> HintKey {
    match address {
        IpAddr::V4(address) => HintKey::pod(service, &Addr4::from(address)),
        IpAddr::V6(address) => HintKey::pod(service, &Addr6::from(address)),
    }
}

impl Service {
    /// Returns the index of a client's slot, by the hash that nodes share.
    #[must_use]
    pub fn slot_index(&self, frame: &Frame) -> u32 {
        let hash = match frame.source() {
            SocketAddr::V4(_) => self.hash::<Addr4>(frame),
            SocketAddr::V6(_) => self.hash::<Addr6>(frame),
        };
        self.entry.slot(hash)
    }

    /// Returns the backend of a client's frame, as long as no slot was changed.
    #[must_use]
    pub fn choice(&self, frame: &Frame) -> Endpoint {
        let slot = self.slot_index(frame) - self.entry.offset();
        self.endpoints[slot as usize % self.endpoints.len()]
    }

    /// Returns the backend of a client's frame by the Cluster list, whose table is as long.
    #[must_use]
    pub fn cluster_choice(&self, frame: &Frame) -> Endpoint {
        let slot = self.slot_index(frame) - self.entry.offset();
        self.cluster_endpoints[slot as usize % self.cluster_endpoints.len()]
    }

    /// Removes a backend from the list's members: clients with it by affinity get another one.
    pub fn forget_member(&self, bed: &Bed, backend: BackendRef) {
        bed.remove::<HintKey, u32>("HINTS", &HintKey::member(self.id, backend));
    }

    /// Removes the pod of a backend from the hints by address.
    pub fn forget_pod(&self, bed: &Bed, backend: Endpoint) {
        bed.remove::<HintKey, u32>("HINTS", &pod_key(self.id, backend.at.ip()));
    }

    /// Gives an address the hint of a backend's pod.
    pub fn share_hint(&self, bed: &Bed, backend: Endpoint, address: IpAddr) {
        bed.insert::<HintKey, u32>("HINTS", pod_key(self.id, address), backend.reference.0);
    }

    /// Rewrites the slot of a client's frame.
    pub fn set_slot(&self, bed: &Bed, frame: &Frame, slot: Slot) {
        bed.set::<u64>("SELECTION", self.slot_index(frame), slot.0);
    }

    /// Rewrites all slots. They belong to one endpoint, and belonged to another before; both are
    /// indices.
    pub fn unsettle(&self, bed: &Bed, current: usize, settled: usize) {
        let [current, settled] = [current, settled].map(|index| self.endpoints[index].reference);
        let slot = Slot::unsettled(current, settled);
        bed.write_slots(self.entry.offset(), &vec![slot; self.entry.length() as usize]);
    }

    /// Replaces the table by one whose slots all belong to one endpoint. In the former one, all belong
    /// to another; both are indices.
    pub fn replace_table(&mut self, bed: &Bed, current: usize, former: usize) {
        let [current, former] = [current, former].map(|index| self.endpoints[index].reference);
        let before = self.entry;
        bed.write_slots(before.offset(), &vec![Slot::settled_on(former); before.length() as usize]);
        let length = before.length() + 2;
        let word = bed.next_slot.replace(bed.next_slot.get() + 1 + length);
        bed.write_slots(word, &[Slot(ServiceEntry::new(before.offset(), before.length(), 0).0)]);
        bed.write_slots(word + 1, &vec![Slot::unsettled(current, current); length as usize]);
        self.entry = ServiceEntry::new(word + 1, length, before.flags() | SERVICE_FORMER);
        bed.set::<u64>("SERVICES", self.id, self.entry.0);
    }

    /// Forgets the former table, and settles the slots.
    pub fn forget_table(&mut self, bed: &Bed, current: usize) {
        let Self { entry, endpoints, .. } = self;
        let slot = Slot::settled_on(endpoints[current].reference);
        *entry = ServiceEntry::new(entry.offset(), entry.length(), entry.flags() & !SERVICE_FORMER);
        bed.write_slots(entry.offset(), &vec![slot; entry.length() as usize]);
        bed.set::<u64>("SERVICES", self.id, self.entry.0);
    }

    /// Empties the list. A former table stays.
    pub fn empty(&self, bed: &Bed) {
        let Self { entry, .. } = self;
        bed.set::<u64>("SERVICES", self.id, ServiceEntry::new(entry.offset(), 0, entry.flags()).0);
    }

    /// Empties the list. Its slots stay.
    pub fn vacate(&self, bed: &Bed) {
        let Service { entry, .. } = self;
        let vacant = ServiceEntry::new(entry.offset(), entry.length(), entry.flags() | SERVICE_VACANT);
        bed.set::<u64>("SERVICES", self.id, vacant.0);
    }

    fn hash<A: Address>(&self, frame: &Frame) -> u32 {
        let key = key_of::<A>(frame);
        if self.flags & FRONTEND_AFFINITY == 0 { flow_hash(&key) } else { client_hash(&key.source) }
    }
}

/// Returns the hash that nodes share, of a client's frame.
#[must_use]
pub fn hash_of(frame: &Frame) -> u32 {
    match frame.source() {
        SocketAddr::V4(_) => flow_hash(&key_of::<Addr4>(frame)),
        SocketAddr::V6(_) => flow_hash(&key_of::<Addr6>(frame)),
    }
}

fn key_of<A: Address>(frame: &Frame) -> FlowKey<A> {
    let word = |address: IpAddr| A::from_ip(address).expect("a frame of one family");
    let (source, destination) = (frame.source(), frame.destination());
    FlowKey {
        source: word(source.ip()),
        destination: word(destination.ip()),
        source_port: source.port().to_be(),
        destination_port: destination.port().to_be(),
        protocol: match frame.layers.last() {
            Some(Layer::Udp(_)) => protocol::UDP,
            Some(Layer::Sctp(_)) => protocol::SCTP,
            Some(Layer::Icmp(_)) if source.is_ipv4() => protocol::ICMP,
            Some(Layer::Icmp(_)) => protocol::ICMP6,
            _ => protocol::TCP,
        },
        reserved: 0,
        unused: 0,
    }
}

/// Returns the hint that nodes share, of a backend.
#[must_use]
pub fn hint_of(at: SocketAddr) -> u16 {
    match at.ip() {
        IpAddr::V4(address) => hint(&Addr4::from(address), at.port().to_be()),
        IpAddr::V6(address) => hint(&Addr6::from(address), at.port().to_be()),
    }
}

/// The forms in which tests write addresses.
pub trait IntoSocketAddr {
    /// Returns the address and port.
    fn into_socket_addr(self) -> SocketAddr;
}

impl IntoSocketAddr for SocketAddr {
    fn into_socket_addr(self) -> SocketAddr {
        self
    }
}

impl IntoSocketAddr for &str {
    fn into_socket_addr(self) -> SocketAddr {
        self.parse().unwrap_or_else(|error| panic!("{self}: {error}"))
    }
}
