//! The objects of the test: a namespace, pods on each node, and Services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use serde_json::{Value, json};

use crate::cli::CliError;

/// The label of the namespace, by which a later test knows it as ours.
pub const OWNER: (&str, &str) = ("app.kubernetes.io/managed-by", "kubectl-millrace");
/// The annotation of the namespace while a test runs in it: the time by which the test is over.
pub const RUNNING: &str = "millrace.dev/test-runs";
/// The container of each pod.
pub const CONTAINER: &str = "echo";
/// The port of the servers, for both protocols.
const PORT: u16 = 8080;
/// The port of each Service.
pub const SERVICE_PORT: u16 = 80;
/// The class of load balancers whose addresses the test itself gives.
const BALANCER_CLASS: &str = "millrace.dev/test";
/// Ranges that no client is in.
const NOBODY: [&str; 2] = ["198.18.254.0/24", "2001:2:0:fe::/64"];
/// The label of all servers.
const ALL: &str = "all";

/// What a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A server, from which probes start, too.
    First,
    /// A second server.
    Second,
    /// A client in the node's own network. It serves nothing.
    Host,
}

impl Role {
    /// All.
    pub const ALL: [Self; 3] = [Self::First, Self::Second, Self::Host];

    /// Returns the name of the pod on a node.
    pub fn pod(self, node: &str) -> String {
        let role = match self {
            Self::First => "echo-a",
            Self::Second => "echo-b",
            Self::Host => "host",
        };
        format!("{role}-{node}")
    }
}

/// A Service of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// NodePorts, and all servers.
    Plain,
    /// NodePorts with externalTrafficPolicy Local, and the first node's first server.
    External,
    /// internalTrafficPolicy Local, and all servers.
    Internal,
    /// Session affinity, and all servers.
    Sticky,
    /// The first node's first server, which asks itself.
    Hairpin,
    /// No endpoints.
    Empty,
    /// NodePorts by Direct Server Return, and the first node's first server.
    Dsr,
    /// Addresses of a load balancer, and all servers.
    Balanced,
    /// The same, for clients that nobody is.
    Restricted,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 9] = [
        Self::Plain,
        Self::External,
        Self::Internal,
        Self::Sticky,
        Self::Hairpin,
        Self::Empty,
        Self::Dsr,
        Self::Balanced,
        Self::Restricted,
    ];

    /// Returns the name of the Service.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::External => "external-local",
            Self::Internal => "internal-local",
            Self::Sticky => "sticky",
            Self::Hairpin => "hairpin",
            Self::Empty => "empty",
            Self::Dsr => "dsr",
            Self::Balanced => "balanced",
            Self::Restricted => "restricted",
        }
    }

    /// Returns the addresses that the test gives the Service, as a controller of load balancers would.
    ///
    /// They are for benchmarks alone (RFC 2544, RFC 5180), so nobody has them.
    pub const fn balancer_ips(self) -> &'static [IpAddr] {
        const fn v4(last: u8) -> IpAddr {
            IpAddr::V4(Ipv4Addr::new(198, 18, 255, last))
        }
        const fn v6(last: u16) -> IpAddr {
            IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0xff, 0, 0, 0, last))
        }
        match self {
            Self::Balanced => &const { [v4(1), v6(1)] },
            Self::Restricted => &const { [v4(2), v6(2)] },
            _ => &[],
        }
    }

    /// Returns the pods behind the Service.
    pub fn servers(self, nodes: &[String]) -> Vec<String> {
        match self {
            Self::Plain | Self::Internal | Self::Sticky | Self::Balanced | Self::Restricted => {
                nodes.iter().flat_map(|node| [Role::First.pod(node), Role::Second.pod(node)]).collect()
            }
            Self::External | Self::Hairpin | Self::Dsr => {
                nodes.first().map(|node| Role::First.pod(node)).into_iter().collect()
            }
            Self::Empty => Vec::new(),
        }
    }
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, CliError> {
    Ok(serde_json::from_value(value)?)
}

/// Returns the namespace of a test that is over by this time. Pods in the nodes' network are allowed in it.
pub fn namespace(name: &str, until: Timestamp) -> Result<Namespace, CliError> {
    parsed(json!({
        "metadata": {
            "name": name,
            "labels": {OWNER.0: OWNER.1, "pod-security.kubernetes.io/enforce": "privileged"},
            "annotations": {RUNNING: until.to_string()},
        },
    }))
}

/// Returns a pod of this image.
pub fn pod(role: Role, node: &str, is_first: bool, image: &str) -> Result<Pod, CliError> {
    let name = role.pod(node);
    let is_server = role != Role::Host;
    let mut command = vec!["millrace".to_owned(), "echo".to_owned(), name.clone()];
    if is_server {
        command.push(format!("--port={PORT}"));
    }
    let probe = is_server.then(|| json!({"tcpSocket": {"port": PORT}, "periodSeconds": 1}));
    // The pod that is alone behind a Service has one more label.
    let is_alone = is_first && role == Role::First;
    let labels = is_server.then(|| json!({"echo": ALL, "alone": is_alone.to_string()}));
    parsed(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node,
            "hostNetwork": !is_server,
            "dnsPolicy": "Default",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": command,
                "readinessProbe": probe,
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "128Mi"}},
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": 65534,
                    "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        },
    }))
}

/// Returns a Service of the families that the cluster has.
pub fn service(kind: Kind) -> Result<Service, CliError> {
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": SERVICE_PORT, "targetPort": PORT});
    let selector = match kind {
        Kind::Plain | Kind::Internal | Kind::Sticky | Kind::Balanced | Kind::Restricted => {
            json!({"echo": ALL})
        }
        Kind::External | Kind::Hairpin | Kind::Dsr => json!({"alone": "true"}),
        Kind::Empty => json!({"echo": "none"}),
    };
    let has_node_ports = matches!(kind, Kind::Plain | Kind::External | Kind::Dsr);
    let type_ = match kind {
        Kind::Balanced | Kind::Restricted => "LoadBalancer",
        _ if has_node_ports => "NodePort",
        _ => "ClusterIP",
    };
    let is_balanced = type_ == "LoadBalancer";
    let annotations = (kind == Kind::Dsr).then(|| json!({"millrace.dev/forwarding": "dsr"}));
    parsed(json!({
        "metadata": {"name": kind.name(), "annotations": annotations},
        "spec": {
            "type": type_,
            // The cluster's own controllers leave it alone.
            "loadBalancerClass": is_balanced.then_some(BALANCER_CLASS),
            "allocateLoadBalancerNodePorts": is_balanced.then_some(false),
            "loadBalancerSourceRanges": (kind == Kind::Restricted).then_some(NOBODY),
            "ipFamilyPolicy": "PreferDualStack",
            "ports": [port("TCP"), port("UDP")],
            "selector": selector,
            "externalTrafficPolicy": (kind == Kind::External).then_some("Local"),
            "internalTrafficPolicy": (kind == Kind::Internal).then_some("Local"),
            "sessionAffinity": (kind == Kind::Sticky).then_some("ClientIP"),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_of_each_service_are_the_pods_that_it_selects() {
        let nodes = ["node-a", "node-b"].map(str::to_owned);
        let mut pods = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            for role in Role::ALL {
                pods.push(pod(role, node, index == 0, "millrace:1").unwrap());
            }
        }
        for kind in Kind::ALL {
            let selector = service(kind).unwrap().spec.unwrap().selector.unwrap();
            let is_selected = |pod: &&Pod| {
                let labels = pod.metadata.labels.clone().unwrap_or_default();
                selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            };
            let selected: Vec<_> =
                pods.iter().filter(is_selected).filter_map(|pod| pod.metadata.name.clone()).collect();
            assert_eq!(selected, kind.servers(&nodes), "{kind:?}");
        }
    }

    #[test]
    fn pods_have_no_rights_and_only_servers_a_port() {
        for role in Role::ALL {
            let spec = pod(role, "node-a", true, "millrace:1").unwrap().spec.unwrap();
            let container = spec.containers.first().unwrap();
            let context = container.security_context.as_ref().unwrap();
            assert_eq!(
                (context.run_as_non_root, context.allow_privilege_escalation),
                (Some(true), Some(false))
            );
            let is_host = role == Role::Host;
            assert_eq!(spec.host_network, Some(is_host));
            let has_port = container.command.iter().flatten().any(|word| word.starts_with("--port"));
            assert_eq!(has_port, !is_host);
            assert_eq!(container.readiness_probe.is_none(), is_host);
        }
    }
}
