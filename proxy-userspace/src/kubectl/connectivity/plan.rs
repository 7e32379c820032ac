//! The cases: who asks which address, and what is right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::objects::{Kind, Role, SERVICE_PORT};
use crate::echo::{Probe, Protocol};

/// Requests of most probes.
const REQUESTS: u16 = 4;
/// Requests that must all meet one server.
const STICKY_REQUESTS: u16 = 10;
const BYTES: usize = 64;
/// More than a packet takes, also a jumbo frame: several segments, or fragments.
const MANY_BYTES: usize = 20_000;

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// The name on the command line and in the output.
    pub id: &'static str,
    /// What must be so.
    pub about: &'static str,
}

const fn test(id: &'static str, about: &'static str) -> Test {
    Test { id, about }
}

const CLUSTERIP_POD: Test = test("clusterip.pod", "a pod reaches a ClusterIP");
const CLUSTERIP_HOST: Test = test("clusterip.host", "a process of a node reaches a ClusterIP");
const CLUSTERIP_LARGE: Test = test("clusterip.large", "what is larger than a packet arrives");
const CLUSTERIP_LOCAL: Test = test("clusterip.local", "internalTrafficPolicy Local keeps a pod on its node");
const CLUSTERIP_STICKY: Test = test("clusterip.affinity", "session affinity keeps a pod at one server");
const CLUSTERIP_HAIRPIN: Test = test("clusterip.hairpin", "a pod reaches itself");
const CLUSTERIP_EMPTY: Test = test("clusterip.empty", "a Service without endpoints refuses");
const NODEPORT_POD: Test = test("nodeport.pod", "a pod reaches a NodePort of each node");
const NODEPORT_HOST: Test = test("nodeport.host", "a process of a node reaches a NodePort of each node");
const NODEPORT_LARGE: Test = test("nodeport.large", "what is larger than a packet arrives");
const NODEPORT_LOCAL: Test = test(
    "nodeport.local",
    "externalTrafficPolicy Local serves beside the server alone, with the client's address",
);
const LOADBALANCER_POD: Test = test("loadbalancer.pod", "a pod reaches the address of a load balancer");
const LOADBALANCER_HOST: Test =
    test("loadbalancer.host", "a process of a node reaches the address of a load balancer");
const LOADBALANCER_SOURCES: Test =
    test("loadbalancer.sources", "loadBalancerSourceRanges keep out whoever is in none");
const OUTSIDE_NODEPORT: Test = test("outside.nodeport", "a client outside reaches a NodePort of each node");
const OUTSIDE_LARGE: Test = test("outside.large", "what is larger than a packet arrives");
const OUTSIDE_LOCAL: Test = test(
    "outside.local",
    "externalTrafficPolicy Local serves beside the server alone, with the client's address",
);
const OUTSIDE_DSR: Test = test("outside.dsr", "Direct Server Return keeps the client's address at each node");

/// All, in their order.
pub const ALL: [Test; 18] = [
    CLUSTERIP_POD,
    CLUSTERIP_HOST,
    CLUSTERIP_LARGE,
    CLUSTERIP_LOCAL,
    CLUSTERIP_STICKY,
    CLUSTERIP_HAIRPIN,
    CLUSTERIP_EMPTY,
    NODEPORT_POD,
    NODEPORT_HOST,
    NODEPORT_LARGE,
    NODEPORT_LOCAL,
    LOADBALANCER_POD,
    LOADBALANCER_HOST,
    LOADBALANCER_SOURCES,
    OUTSIDE_NODEPORT,
    OUTSIDE_LARGE,
    OUTSIDE_LOCAL,
    OUTSIDE_DSR,
];

impl Test {
    /// Whether the name is this test's, or its first part.
    pub fn is_named(self, name: &str) -> bool {
        self.id == name || self.id.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// A pod.
    Pod {
        /// Its node.
        node: String,
    },
    /// A process in a node's network.
    Host {
        /// The node.
        node: String,
    },
    /// This machine.
    Here,
}

impl Client {
    /// Returns the pod that asks; none is this machine.
    pub fn pod(&self) -> Option<String> {
        match self {
            Self::Pod { node } => Some(Role::First.pod(node)),
            Self::Host { node } => Some(Role::Host.pod(node)),
            Self::Here => None,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { node } => write!(f, "a pod on {node}"),
            Self::Host { node } => f.write_str(node),
            Self::Here => f.write_str("this machine"),
        }
    }
}

/// What is right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expected {
    /// One of these servers answers each request.
    Answer {
        /// Their pods.
        servers: BTreeSet<String>,
        /// One of them answers all.
        is_one: bool,
        /// They see the client's own address.
        is_source_kept: bool,
    },
    /// The request is refused.
    Refusal,
    /// Nobody answers: it is refused or dropped.
    NoAnswer,
}

/// A probe of a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The test that it belongs to.
    pub test: Test,
    /// Who asks.
    pub client: Client,
    /// The requests.
    pub probe: Probe,
    /// What is right.
    pub expected: Expected,
}

/// A node of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its internal addresses.
    pub addresses: Vec<IpAddr>,
}

/// Where a Service is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontends {
    /// Its ClusterIPs.
    pub cluster_ips: Vec<IpAddr>,
    /// The addresses that the test gave it, as a load balancer's.
    pub balancer_ips: Vec<IpAddr>,
    /// Its NodePorts.
    pub node_ports: BTreeMap<Protocol, u16>,
}

/// The cluster, as the cases see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The nodes. The first has the server that is alone behind some Services.
    pub nodes: Vec<Node>,
    /// The Services.
    pub services: BTreeMap<Kind, Frontends>,
    /// Whether this machine is a client, too.
    pub from_here: bool,
}

impl Setting {
    /// Returns the cases of these tests, and the tests without one with the reason.
    pub fn cases(&self, tests: &[Test]) -> (Vec<Case>, Vec<(Test, &'static str)>) {
        let (mut cases, mut skipped) = (Vec::new(), Vec::new());
        for test in tests {
            match self.of(*test) {
                Ok(found) => cases.extend(found),
                Err(reason) => skipped.push((*test, reason)),
            }
        }
        (cases, skipped)
    }

    fn of(&self, test: Test) -> Result<Vec<Case>, &'static str> {
        if test.is_named("outside") && !self.from_here {
            return Err("needs a client outside the cluster: --from-here, where this machine is one");
        }
        if test == NODEPORT_LOCAL && self.nodes.len() < 2 {
            return Err("needs two nodes");
        }
        if test.is_named("loadbalancer") && !self.has_balancers() {
            return Err("needs the right to patch the status of Services");
        }
        let one = |kind, requests, bytes| self.cluster_ips(kind, requests, bytes);
        let ports = |kind, bytes| self.node_ports(kind, bytes).map(|(_, probe)| probe).collect::<Vec<_>>();
        Ok(match test {
            CLUSTERIP_POD => self.each(test, &self.pods(), &one(Kind::Plain, REQUESTS, BYTES), Kind::Plain),
            CLUSTERIP_HOST => self.each(test, &self.hosts(), &one(Kind::Plain, REQUESTS, BYTES), Kind::Plain),
            CLUSTERIP_LARGE => {
                let clients = [self.pods(), self.hosts()].concat();
                self.each(test, &clients, &one(Kind::Plain, REQUESTS, MANY_BYTES), Kind::Plain)
            }
            CLUSTERIP_LOCAL => self.internal_local(test),
            CLUSTERIP_STICKY => {
                let probes = one(Kind::Sticky, STICKY_REQUESTS, BYTES);
                let mut cases = self.each(test, &self.pods(), &probes, Kind::Sticky);
                for case in &mut cases {
                    if let Expected::Answer { is_one, .. } = &mut case.expected {
                        *is_one = true;
                    }
                }
                cases
            }
            CLUSTERIP_HAIRPIN => {
                let first = self.pods().into_iter().take(1).collect::<Vec<_>>();
                self.each(test, &first, &one(Kind::Hairpin, REQUESTS, BYTES), Kind::Hairpin)
            }
            CLUSTERIP_EMPTY => {
                let clients = [self.pods(), self.hosts()].concat();
                expecting(
                    self.each(test, &clients, &one(Kind::Empty, 1, BYTES), Kind::Empty),
                    &Expected::Refusal,
                )
            }
            NODEPORT_POD => self.each(test, &self.pods(), &ports(Kind::Plain, BYTES), Kind::Plain),
            NODEPORT_HOST => self.each(test, &self.hosts(), &ports(Kind::Plain, BYTES), Kind::Plain),
            NODEPORT_LARGE => {
                let clients = [self.pods(), self.hosts()].concat();
                self.each(test, &clients, &ports(Kind::Plain, MANY_BYTES), Kind::Plain)
            }
            LOADBALANCER_POD => {
                self.each(test, &self.pods(), &self.balancer_ips(Kind::Balanced), Kind::Balanced)
            }
            LOADBALANCER_HOST => {
                self.each(test, &self.hosts(), &self.balancer_ips(Kind::Balanced), Kind::Balanced)
            }
            LOADBALANCER_SOURCES => {
                let probes: Vec<Probe> = self
                    .balancer_ips(Kind::Restricted)
                    .into_iter()
                    // One silence is enough, and takes its time.
                    .map(|probe| Probe { requests: 1, ..probe })
                    .collect();
                expecting(self.each(test, &self.pods(), &probes, Kind::Restricted), &Expected::NoAnswer)
            }
            OUTSIDE_NODEPORT => self.each(test, &[Client::Here], &ports(Kind::Plain, BYTES), Kind::Plain),
            OUTSIDE_LARGE => self.each(test, &[Client::Here], &ports(Kind::Plain, MANY_BYTES), Kind::Plain),
            OUTSIDE_DSR => {
                let mut cases = self.each(test, &[Client::Here], &ports(Kind::Dsr, BYTES), Kind::Dsr);
                cases.iter_mut().for_each(keep_source);
                cases
            }
            NODEPORT_LOCAL => self.hosts().iter().flat_map(|host| self.external_local(test, host)).collect(),
            OUTSIDE_LOCAL => self.external_local(test, &Client::Here),
            _ => Vec::new(),
        })
    }

    fn pods(&self) -> Vec<Client> {
        self.nodes.iter().map(|node| Client::Pod { node: node.name.clone() }).collect()
    }

    fn hosts(&self) -> Vec<Client> {
        self.nodes.iter().map(|node| Client::Host { node: node.name.clone() }).collect()
    }

    fn servers(&self, kind: Kind) -> BTreeSet<String> {
        let names: Vec<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        kind.servers(&names).into_iter().collect()
    }

    /// Returns probes of a Service's ClusterIPs.
    fn cluster_ips(&self, kind: Kind, requests: u16, bytes: usize) -> Vec<Probe> {
        let addresses =
            self.services.get(&kind).map(|found| found.cluster_ips.as_slice()).unwrap_or_default();
        at_service_port(addresses, requests, bytes)
    }

    /// Returns probes of a Service's addresses of a load balancer.
    fn balancer_ips(&self, kind: Kind) -> Vec<Probe> {
        let addresses =
            self.services.get(&kind).map(|found| found.balancer_ips.as_slice()).unwrap_or_default();
        at_service_port(addresses, REQUESTS, BYTES)
    }

    fn has_balancers(&self) -> bool {
        self.services.values().any(|found| !found.balancer_ips.is_empty())
    }

    /// Returns probes of a Service's NodePorts on each node, with the node.
    fn node_ports(&self, kind: Kind, bytes: usize) -> impl Iterator<Item = (&Node, Probe)> {
        let found = self.services.get(&kind);
        // A Service of one family has NodePorts at the nodes' addresses of that family alone.
        let families = found.map(|found| found.cluster_ips.as_slice()).unwrap_or_default();
        let ports = found.into_iter().flat_map(|found| &found.node_ports);
        ports.flat_map(move |(protocol, port)| {
            self.nodes.iter().flat_map(move |node| {
                let is_served =
                    |address: &&IpAddr| families.iter().any(|one| one.is_ipv4() == address.is_ipv4());
                node.addresses.iter().filter(is_served).map(move |address| {
                    let target = SocketAddr::new(*address, *port);
                    (node, Probe { protocol: *protocol, target, requests: REQUESTS, bytes })
                })
            })
        })
    }

    /// Returns a case for each client and probe, which any server of the Service may answer.
    fn each(&self, test: Test, clients: &[Client], probes: &[Probe], kind: Kind) -> Vec<Case> {
        let expected = answer(self.servers(kind));
        let cases = clients.iter().flat_map(|client| {
            let case = |probe: &Probe| Case {
                test,
                client: client.clone(),
                probe: *probe,
                expected: expected.clone(),
            };
            probes.iter().map(case)
        });
        cases.collect()
    }

    fn internal_local(&self, test: Test) -> Vec<Case> {
        let probes = self.cluster_ips(Kind::Internal, REQUESTS, BYTES);
        let cases = self.nodes.iter().flat_map(|node| {
            let client = Client::Pod { node: node.name.clone() };
            let beside = [Role::First, Role::Second].map(|role| role.pod(&node.name));
            expecting(self.each(test, &[client], &probes, Kind::Internal), &answer(beside.into()))
        });
        cases.collect()
    }

    /// A client asks each other node. Only the first has a server.
    fn external_local(&self, test: Test, client: &Client) -> Vec<Case> {
        let is_own = |node: &Node| matches!(client, Client::Host { node: own } if *own == node.name);
        let cases = self.node_ports(Kind::External, BYTES).filter(|(node, _)| !is_own(node));
        let cases = cases.map(|(node, probe)| {
            let is_beside = self.nodes.first().is_some_and(|first| first.name == node.name);
            let expected = if is_beside { answer(self.servers(Kind::External)) } else { Expected::NoAnswer };
            // One silence is enough, and takes its time.
            let requests = if is_beside { REQUESTS } else { 1 };
            let mut case =
                Case { test, client: client.clone(), probe: Probe { requests, ..probe }, expected };
            keep_source(&mut case);
            case
        });
        cases.collect()
    }
}

fn at_service_port(addresses: &[IpAddr], requests: u16, bytes: usize) -> Vec<Probe> {
    let probes = addresses.iter().flat_map(|address| {
        let target = SocketAddr::new(*address, SERVICE_PORT);
        Protocol::ALL.map(|protocol| Probe { protocol, target, requests, bytes })
    });
    probes.collect()
}

fn expecting(cases: Vec<Case>, expected: &Expected) -> Vec<Case> {
    cases.into_iter().map(|case| Case { expected: expected.clone(), ..case }).collect()
}

const fn answer(servers: BTreeSet<String>) -> Expected {
    Expected::Answer { servers, is_one: false, is_source_kept: false }
}

/// Expects that servers see the client's own address.
const fn keep_source(case: &mut Case) {
    if let Expected::Answer { is_source_kept, .. } = &mut case.expected {
        *is_source_kept = true;
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
