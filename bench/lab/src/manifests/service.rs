//! A Service with its EndpointSlices.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};

use crate::topology::{Dual, Family, Node, Pod, cluster_ip};
use crate::traffic::Protocol;

/// A dual-stack Service in the namespace `default`, and its endpoints.
///
/// Its type follows from its settings: `LoadBalancer` with load balancer addresses, else `NodePort`
/// with node ports, else `ClusterIP`.
#[derive(Clone, Debug)]
pub struct Service {
    name: String,
    number: u8,
    families: Vec<Family>,
    local: bool,
    internal_local: bool,
    affinity_seconds: Option<u32>,
    source_ranges: Vec<String>,
    ports: Vec<Port>,
    load_balancer: Vec<IpAddr>,
    external: Vec<IpAddr>,
    annotations: Map<String, Value>,
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug)]
struct Port {
    protocol: Protocol,
    number: u16,
    target: u16,
    on_nodes: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Ready,
    Draining,
    Unready,
}

#[derive(Clone, Debug)]
struct Endpoint {
    addresses: Dual,
    node: String,
    condition: Condition,
}

impl Service {
    /// Returns a Service without ports and endpoints. `number` determines its ClusterIPs and must
    /// be unique.
    #[must_use]
    pub fn new(name: &str, number: u8) -> Self {
        Self {
            name: name.to_owned(),
            number,
            families: Family::ALL.to_vec(),
            local: false,
            internal_local: false,
            affinity_seconds: None,
            source_ranges: Vec::new(),
            ports: Vec::new(),
            load_balancer: Vec::new(),
            external: Vec::new(),
            annotations: Map::new(),
            endpoints: Vec::new(),
        }
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a port over TCP and over UDP.
    #[must_use]
    pub fn port(mut self, number: u16, target: u16) -> Self {
        self.ports.extend(Protocol::ALL.map(|protocol| Port { protocol, number, target, on_nodes: None }));
        self
    }

    /// Makes it a Service of one family.
    #[must_use]
    pub fn single_stack(mut self, family: Family) -> Self {
        self.families = vec![family];
        self
    }

    /// Adds a port over SCTP.
    #[must_use]
    pub fn sctp_port(mut self, number: u16, target: u16) -> Self {
        self.ports.push(Port { protocol: Protocol::Sctp, number, target, on_nodes: None });
        self
    }

    /// Gives the ports node ports from `first` on, one for each port number.
    #[must_use]
    pub fn node_ports(mut self, first: u16) -> Self {
        let mut numbers: Vec<u16> = self.ports.iter().map(|port| port.number).collect();
        numbers.dedup();
        for port in &mut self.ports {
            let index = numbers.iter().position(|number| *number == port.number);
            port.on_nodes = index.and_then(|index| u16::try_from(index).ok()).map(|index| first + index);
        }
        self
    }

    /// Sets `externalTrafficPolicy: Local`.
    #[must_use]
    pub const fn local(mut self) -> Self {
        self.local = true;
        self
    }

    /// Sets `internalTrafficPolicy: Local`.
    #[must_use]
    pub const fn internal_local(mut self) -> Self {
        self.internal_local = true;
        self
    }

    /// Sets `sessionAffinity: ClientIP` with this time-out.
    #[must_use]
    pub const fn affinity(mut self, seconds: u32) -> Self {
        self.affinity_seconds = Some(seconds);
        self
    }

    /// Sets `loadBalancerSourceRanges`.
    #[must_use]
    pub fn source_ranges(mut self, ranges: &[&str]) -> Self {
        self.source_ranges = ranges.iter().map(|range| (*range).to_owned()).collect();
        self
    }

    /// Gives it load balancer addresses.
    #[must_use]
    pub fn load_balancer(mut self, addresses: Dual) -> Self {
        self.load_balancer.extend(addresses.both());
        self
    }

    /// Gives it external IPs.
    #[must_use]
    pub fn external(mut self, addresses: Dual) -> Self {
        self.external.extend(addresses.both());
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.to_owned(), Value::from(value));
        self
    }

    /// Adds a pod as a ready endpoint.
    #[must_use]
    pub fn pod(self, node: &Node, pod: &Pod) -> Self {
        self.endpoint(node, pod.addresses())
    }

    /// Adds a host process of a node as a ready endpoint.
    #[must_use]
    pub fn host(self, node: &Node) -> Self {
        self.endpoint(node, node.addresses())
    }

    /// Makes a pod's endpoint terminate: it serves its connections and gets no new ones.
    #[must_use]
    pub fn draining(self, pod: &Pod) -> Self {
        self.with_condition(pod, Condition::Draining)
    }

    /// Makes a pod's endpoint neither Ready nor Serving, while it exists.
    #[must_use]
    pub fn unready(self, pod: &Pod) -> Self {
        self.with_condition(pod, Condition::Unready)
    }

    fn with_condition(mut self, pod: &Pod, condition: Condition) -> Self {
        let of_pod = |endpoint: &&mut Endpoint| endpoint.addresses.both() == pod.addresses().both();
        for endpoint in self.endpoints.iter_mut().filter(of_pod) {
            endpoint.condition = condition;
        }
        self
    }

    /// Removes all endpoints.
    #[must_use]
    pub fn without_endpoints(mut self) -> Self {
        self.endpoints.clear();
        self
    }

    fn endpoint(mut self, node: &Node, addresses: Dual) -> Self {
        self.endpoints.push(Endpoint {
            addresses,
            node: node.name().to_owned(),
            condition: Condition::Ready,
        });
        self
    }

    /// Returns the addresses of the load balancer.
    #[must_use]
    pub fn load_balancer_addresses(&self) -> &[IpAddr] {
        &self.load_balancer
    }

    /// Returns the addresses and ports of all Ready endpoints.
    #[must_use]
    pub fn backends(&self) -> Vec<SocketAddr> {
        let targets: BTreeSet<u16> = self.ports.iter().map(|port| port.target).collect();
        let ready = self.endpoints.iter().filter(|endpoint| endpoint.condition == Condition::Ready);
        let addresses =
            ready.flat_map(|endpoint| self.families.iter().map(|family| endpoint.addresses.of(*family)));
        addresses
            .flat_map(|address| targets.iter().map(move |port| SocketAddr::new(address, *port)))
            .collect()
    }

    /// Returns the manifest: a List of all objects, in JSON, which is a part of YAML.
    #[must_use]
    pub fn manifest(&self) -> String {
        json!({"apiVersion": "v1", "kind": "List", "items": self.objects()}).to_string()
    }

    /// Returns the Service and an EndpointSlice of each family, even of a family that the Service
    /// does not have.
    #[must_use]
    pub fn objects(&self) -> [Value; 3] {
        let [v4, v6] = Family::ALL.map(|family| self.slice(family));
        [self.service(), v4, v6]
    }

    fn service(&self) -> Value {
        let external_policy = self.is_external().then_some(if self.local { "Local" } else { "Cluster" });
        let cluster_ips: Vec<IpAddr> =
            self.families.iter().map(|family| self.cluster_ips().of(*family)).collect();
        let families: Vec<String> = self.families.iter().map(Family::to_string).collect();
        let policy = if families.len() > 1 { "RequireDualStack" } else { "SingleStack" };
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": "default", "name": self.name, "annotations": self.annotations},
            "spec": {
                "type": self.kind(),
                "clusterIP": cluster_ips.first(),
                "clusterIPs": cluster_ips,
                "ipFamilies": families,
                "ipFamilyPolicy": policy,
                "externalIPs": self.external,
                "externalTrafficPolicy": external_policy,
                "internalTrafficPolicy": if self.internal_local { "Local" } else { "Cluster" },
                "sessionAffinity": if self.affinity_seconds.is_some() { "ClientIP" } else { "None" },
                "sessionAffinityConfig": self
                    .affinity_seconds
                    .map(|seconds| json!({"clientIP": {"timeoutSeconds": seconds}})),
                "loadBalancerSourceRanges": self.source_ranges,
                "ports": self.ports.iter().map(Port::of_service).collect::<Vec<_>>(),
            },
            "status": {"loadBalancer": {
                "ingress": self.load_balancer.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
            }},
        })
    }

    fn slice(&self, family: Family) -> Value {
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(|endpoint| {
                json!({
                    "addresses": [endpoint.addresses.of(family)],
                    "nodeName": endpoint.node,
                    "conditions": {
                        "ready": endpoint.condition == Condition::Ready,
                        "serving": endpoint.condition != Condition::Unready,
                        "terminating": endpoint.condition == Condition::Draining,
                    },
                })
            })
            .collect();
        let family = family.to_string();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default",
                "name": format!("{}-{}", self.name, family.to_lowercase()),
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "addressType": family,
            "ports": self.ports.iter().map(Port::of_slice).collect::<Vec<_>>(),
            "endpoints": endpoints,
        })
    }

    fn kind(&self) -> &'static str {
        if !self.load_balancer.is_empty() {
            "LoadBalancer"
        } else if self.ports.iter().any(|port| port.on_nodes.is_some()) {
            "NodePort"
        } else {
            "ClusterIP"
        }
    }

    /// Returns whether the API server would accept an external traffic policy.
    fn is_external(&self) -> bool {
        self.kind() != "ClusterIP" || !self.external.is_empty()
    }

    /// Returns its cluster IPs.
    #[must_use]
    pub const fn cluster_ips(&self) -> Dual {
        cluster_ip(self.number)
    }
}

impl Port {
    fn name(&self) -> String {
        format!("{}-{}", self.protocol.name().to_lowercase(), self.number)
    }

    fn of_service(&self) -> Value {
        json!({
            "name": self.name(),
            "protocol": self.protocol.name(),
            "port": self.number,
            "targetPort": self.target,
            "nodePort": self.on_nodes,
        })
    }

    fn of_slice(&self) -> Value {
        json!({"name": self.name(), "protocol": self.protocol.name(), "port": self.target})
    }
}
