//! Desired states, and a kernel in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::dataplane::SyncReport;
use crate::dataplane::ipvs::plan::{Kernel, Op, Plan, Rules};
use crate::dataplane::ipvs::state::{Element, Set, State, Virtual};
use crate::model::{
    Algorithm, Desired, Dirty, Endpoint, Family, Forwarding, Frontend, FrontendKind, List, PortKey, Protocol,
    Scope, ServiceKey, ServicePort,
};
use crate::node::Topology;

/// Returns the key of service `n`.
pub fn key(n: u8) -> PortKey {
    let service = ServiceKey { namespace: "default".to_owned(), name: format!("svc{n}") };
    PortKey { service, port: String::new(), family: Family::V4 }
}

pub fn cluster_ip(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 96, 0, n], 80))
}

pub fn load_balancer(n: u8) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, n], 80))
}

pub fn node_port(n: u8) -> SocketAddr {
    SocketAddr::from(([172, 16, 0, 1], 30_000 + u16::from(n)))
}

/// Returns endpoint `n`. Endpoints below 10 are on this node.
pub fn endpoint(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 244, 1, n], 8080))
}

pub fn tcp(address: SocketAddr) -> Virtual {
    Virtual::Address { protocol: Protocol::Tcp, address }
}

pub fn member(set: Set, address: SocketAddr) -> (Set, Element) {
    (set, Element::Port(Protocol::Tcp, address))
}

/// Returns a port of service `n` with a ClusterIP, a NodePort and a load balancer's address.
pub fn port(n: u8, endpoints: &[u8]) -> ServicePort {
    let kinds = [
        (cluster_ip(n), FrontendKind::ClusterIp),
        (node_port(n), FrontendKind::NodePort),
        (load_balancer(n), FrontendKind::LoadBalancer),
    ];
    let frontend = |(address, kind), scope| Frontend { address, scope, kind, list: List::Cluster };
    let frontends = kinds
        .into_iter()
        .flat_map(|place| [frontend(place, Scope::Internal), frontend(place, Scope::External)])
        .collect();
    let endpoints: BTreeMap<SocketAddr, Endpoint> = endpoints
        .iter()
        .map(|n| {
            let local = *n < 10;
            (endpoint(*n), Endpoint { node: None, local, ready: true, serving: true, terminating: false })
        })
        .collect();
    ServicePort {
        protocol: Protocol::Tcp,
        frontends,
        forwarding: Forwarding::Snat,
        algorithm: Algorithm::Random,
        scheduler: None,
        affinity_seconds: 0,
        source_ranges: None,
        has_any: !endpoints.is_empty(),
        cluster: Some(endpoints.keys().copied().collect()),
        local: Some(endpoints.iter().filter(|(_, one)| one.local).map(|(address, _)| *address).collect()),
        endpoints,
    }
}

/// Sets externalTrafficPolicy Local. It does not apply to the ClusterIP.
pub fn local_policy(mut port: ServicePort) -> ServicePort {
    let local = |frontend: Frontend| match (frontend.scope, frontend.kind) {
        (Scope::External, FrontendKind::NodePort | FrontendKind::LoadBalancer) => {
            Frontend { list: List::Local, ..frontend }
        }
        _ => frontend,
    };
    port.frontends = port.frontends.into_iter().map(local).collect();
    port
}

/// Sets Direct Server Return, and puts the endpoints outside this node on another node.
pub fn direct(mut port: ServicePort) -> ServicePort {
    port.forwarding = Forwarding::Dsr;
    for endpoint in port.endpoints.values_mut().filter(|endpoint| !endpoint.local) {
        endpoint.node = Some("elsewhere".into());
    }
    let node_ports = port.frontends.iter().filter(|one| one.kind == FrontendKind::NodePort);
    let any = |one: &Frontend| SocketAddr::from(([0, 0, 0, 0], one.address.port()));
    let inner: Vec<_> = node_ports
        .map(|one| Frontend { address: any(one), scope: Scope::Encapsulated, ..one.clone() })
        .collect();
    port.frontends.extend(inner);
    port
}

pub fn restricted(mut port: ServicePort, ranges: &[&str]) -> ServicePort {
    port.source_ranges = Some(ranges.iter().map(|range| range.parse().unwrap()).collect());
    port
}

pub fn topology() -> Topology {
    Topology {
        addresses: BTreeSet::from([IpAddr::from([172, 16, 0, 1])]),
        uplinks: BTreeSet::from(["eth0".to_owned()]),
        ..Topology::default()
    }
}

/// A kernel that carries out every operation, unless a test makes it fail.
#[derive(Debug, Default)]
pub struct FakeKernel {
    pub state: State,
    /// All operations so far, in order.
    pub done: Vec<Op>,
    /// The number of operations before all others fail.
    pub patience: Option<usize>,
    /// Whether the kernel has no module for decapsulating devices.
    pub refuses_tunnels: bool,
    /// Members that must exist whenever their virtual services do.
    pub guarded: BTreeSet<(Set, Element)>,
}

impl Kernel for FakeKernel {
    fn apply(&mut self, op: &Op) -> Result<(), String> {
        if let Some(left) = &mut self.patience {
            *left = left.checked_sub(1).ok_or("no patience")?;
        }
        if self.refuses_tunnels && matches!(op, Op::AddTunnel(_)) {
            return Err("no such module".to_owned());
        }
        self.act(op);
        self.judge();
        self.done.push(op.clone());
        Ok(())
    }
}

impl FakeKernel {
    fn act(&mut self, op: &Op) {
        let state = &mut self.state;
        match op.clone() {
            Op::PutService(service, scheduling) => {
                state.services.insert(service, scheduling);
            }
            Op::DeleteService(service) => {
                assert!(state.services.remove(&service).is_some(), "{service} does not exist");
                state.servers.retain(|(of, _), _| *of != service);
            }
            Op::PutServer(service, address, server) => {
                assert!(state.services.contains_key(&service), "{service} does not exist");
                state.servers.insert((service, address), server);
            }
            Op::DeleteServer(service, address) => {
                assert!(state.servers.remove(&(service, address)).is_some(), "{address} does not exist");
            }
            Op::ChangeMembers { add, delete } => {
                for (member, mark) in delete {
                    assert_eq!(state.members.remove(&member), Some(mark), "{member:?}");
                }
                for (member, mark) in add {
                    assert_eq!(state.members.insert(member, mark), None, "the member exists already");
                }
            }
            Op::AddAddress(address) => assert!(state.addresses.insert(address)),
            Op::DeleteAddress(address) => assert!(state.addresses.remove(&address)),
            Op::AddTunnel(family) => assert!(state.tunnels.insert(family)),
            Op::DeleteTunnel(family) => assert!(state.tunnels.remove(&family)),
        }
    }

    /// Checks what must hold after every single operation, because the next one may never come.
    fn judge(&self) {
        for service in self.state.services.keys() {
            let Virtual::Address { protocol, address } = service else { continue };
            let place = Element::Port(*protocol, *address);
            let has = |set| self.state.members.contains_key(&(set, place.clone()));
            assert!(has(Set::Services), "{service} has no member in `Services`");
            let must = self.guarded.contains(&(Set::Restricted, place.clone()));
            assert!(!must || has(Set::Restricted), "{service} is open to all clients");
        }
        for (member, number) in &self.state.members {
            let leads_somewhere = match (member, number) {
                ((Set::Marks, _), Some(mark)) => {
                    let service = Virtual::Mark { family: Family::V4, mark: *mark };
                    self.state.services.contains_key(&service)
                }
                ((Set::Encapsulated, _), _) => self.state.tunnels.contains(&Family::V4),
                _ => true,
            };
            assert!(leads_somewhere, "{member:?} has no virtual service or device");
        }
    }
}

/// A plan and its kernel.
#[derive(Debug, Default)]
pub struct Scene {
    pub plan: Plan,
    pub kernel: FakeKernel,
    pub desired: Desired,
}

impl Scene {
    pub fn new(rules: Rules) -> Self {
        let mut scene = Self::default();
        let nodes = [("here", node_port(1)), ("elsewhere", SocketAddr::from(([172, 16, 0, 2], 0)))];
        scene.desired.nodes = nodes.map(|(name, address)| (name.to_owned(), [address.ip()].into())).into();
        scene.start(rules);
        scene
    }

    /// Starts a new agent with the state in the kernel.
    pub fn start(&mut self, rules: Rules) {
        self.plan = Plan::new(rules, self.kernel.state.clone());
        self.plan.set_topology(&topology());
        self.kernel.done.clear();
    }

    /// Serves `port` as service `n`; `None` removes the service.
    pub fn serve(&mut self, n: u8, port: Option<ServicePort>) -> SyncReport {
        match port {
            Some(port) => self.desired.ports.insert(key(n), port),
            None => self.desired.ports.remove(&key(n)),
        };
        self.sync([key(n)])
    }

    pub fn sync(&mut self, ports: impl IntoIterator<Item = PortKey>) -> SyncReport {
        self.sync_as(&Dirty { ports: ports.into_iter().collect(), ..Dirty::default() })
    }

    pub fn sync_all(&mut self) -> SyncReport {
        let ports: Vec<PortKey> = self.desired.ports.keys().cloned().collect();
        self.sync(ports)
    }

    pub fn sync_as(&mut self, dirty: &Dirty) -> SyncReport {
        self.kernel.done.clear();
        self.plan.sync(&self.desired, dirty, &mut self.kernel)
    }

    pub fn servers(&self, service: Virtual) -> BTreeMap<SocketAddr, u32> {
        let all = self.kernel.state.servers.iter().filter(|((of, _), _)| *of == service);
        all.map(|((_, address), server)| (*address, server.weight)).collect()
    }

    pub fn has(&self, set: Set, address: SocketAddr) -> bool {
        self.kernel.state.members.contains_key(&member(set, address))
    }

    /// Returns the mark of packets from outside to an address.
    pub fn mark(&self, address: SocketAddr) -> Option<u32> {
        self.kernel.state.members.get(&member(Set::Marks, address)).copied().flatten()
    }
}
