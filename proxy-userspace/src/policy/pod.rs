//! What policies depend on of a pod.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};

use super::labels::Labels;
use super::ports::NamedPort;
use super::problem::Notes;
use crate::model::{parse_address, parse_port, parse_protocol};

/// What selectors and names of ports can tell of a pod. To every policy, pods with equal traits are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Traits {
    pub namespace: String,
    pub labels: Labels,
    pub ports: BTreeSet<NamedPort>,
}

/// A pod that runs or may still run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodSpec {
    /// `metadata.uid`, which tells pods of the same name apart.
    pub uid: String,
    /// Empty before the pod is scheduled.
    pub node: String,
    pub network: Network,
    /// Its addresses; none before it has any.
    pub addresses: BTreeSet<IpAddr>,
    pub traits: Arc<Traits>,
}

/// The network namespace of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// One of its own.
    Pod,
    /// The node's (`hostNetwork`), with the node's addresses.
    Host,
}

/// Parses a pod. A pod that has ended is `None`: the node may give its address to another one.
pub(super) fn read_pod(pod: &Pod, namespace: &str, notes: &mut Notes) -> Option<PodSpec> {
    let status = pod.status.as_ref();
    if matches!(status.and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed")) {
        return None;
    }
    let spec = pod.spec.as_ref();
    let is_host = spec.and_then(|spec| spec.host_network).unwrap_or(false);
    Some(PodSpec {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        network: if is_host { Network::Host } else { Network::Pod },
        addresses: status.map(|status| read_addresses(status, notes)).unwrap_or_default(),
        traits: Arc::new(Traits {
            namespace: namespace.to_owned(),
            labels: Labels::of_pod(pod.metadata.labels.as_ref()),
            ports: read_named_ports(pod, notes),
        }),
    })
}

fn read_addresses(status: &PodStatus, notes: &mut Notes) -> BTreeSet<IpAddr> {
    let all = status.pod_ips.iter().flatten().map(|one| one.ip.as_str());
    let mut texts: Vec<(String, &str)> =
        all.enumerate().map(|(index, text)| (format!("status.podIPs[{index}].ip"), text)).collect();
    if texts.is_empty() {
        texts.extend(status.pod_ip.as_deref().map(|text| ("status.podIP".to_owned(), text)));
    }
    let mut addresses = BTreeSet::new();
    for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        match parse_address(text) {
            Some(address) => {
                addresses.insert(address);
            }
            None => notes.warn(field, format!("{text:?} is not an IP address; takes IPv4 or IPv6")),
        }
    }
    addresses
}

/// Reads the named ports of all containers that run beside each other.
///
/// An init container with `restartPolicy: Always` does. The others have ended before the pod serves.
fn read_named_ports(pod: &Pod, notes: &mut Notes) -> BTreeSet<NamedPort> {
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let runs_on = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let init = spec.init_containers.iter().flatten().filter(runs_on);
    let mut named = BTreeSet::new();
    for container in spec.containers.iter().chain(init) {
        for port in container.ports.iter().flatten() {
            let Some(name) = port.name.clone().filter(|name| !name.is_empty()) else { continue };
            let number = parse_port(port.container_port);
            match (number, parse_protocol(port.protocol.as_deref())) {
                (Ok(number), Ok(protocol)) => {
                    named.insert(NamedPort { name, protocol, number });
                }
                (Err(wrong), _) | (_, Err(wrong)) => {
                    let field = format!("spec.containers[{}].ports[{name}]", container.name);
                    notes.warn(field, format!("{wrong}; no policy finds this port by its name"));
                }
            }
        }
    }
    named
}
