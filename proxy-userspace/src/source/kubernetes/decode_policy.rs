//! Parses what NetworkPolicies depend on, without the parts that they ignore.
//!
//! A cluster has many pods, and each changes often: ended probes, restarts, usage. Of a pod, only what
//! `policy` reads is kept, and a change of any other part is none.

use k8s_openapi::api::core::v1::{Container, ContainerPort, Namespace, Pod, PodIP, PodSpec, PodStatus};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::decode::{Decoded, Undecodable, WireMeta, hash, read};
use crate::policy::{Kind, Object};
use crate::source::feed::Feed;
use crate::source::policies::{Policies, stand_in};

/// Parses one object.
pub(super) fn decode_policy_kind(
    kind: Kind,
    json: &str,
) -> Result<Decoded<Policies>, Box<Undecodable<Policies>>> {
    match kind {
        Kind::Namespace => read(kind, json, |wire: WireNamespace| {
            let metadata = wire.metadata.names_and_labels();
            let version = hash(&metadata.labels);
            (metadata, version, |metadata| {
                Object::Namespace(Box::new(Namespace { metadata, ..Namespace::default() }))
            })
        }),
        Kind::Pod => read(kind, json, |wire: WirePod| {
            let metadata = wire.metadata.names_and_labels();
            let kept = keep(wire.spec.unwrap_or_default(), wire.status.unwrap_or_default());
            let version = hash(&(&metadata.labels, &kept));
            (metadata, version, move |metadata| Object::Pod(Box::new(pod(metadata, kept))))
        }),
        Kind::NetworkPolicy => {
            let policy = read(kind, json, |wire: WirePolicy| {
                let mut metadata = wire.metadata.names_and_labels();
                metadata.labels = None;
                // An annotation or a status is no change.
                let version = hash(&serde_json::to_string(&wire.spec).unwrap_or_default());
                (metadata, version, move |metadata| {
                    Object::NetworkPolicy(Box::new(NetworkPolicy { metadata, spec: wire.spec }))
                })
            });
            policy.map_err(|undecodable| with_stand_in(undecodable, json))
        }
    }
}

fn with_stand_in(mut undecodable: Box<Undecodable<Policies>>, json: &str) -> Box<Undecodable<Policies>> {
    if let Some(identity) = &undecodable.identity {
        let (namespace, name) = Policies::names(&identity.key);
        let metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let whole: Value = serde_json::from_str(json).unwrap_or_default();
        undecodable.stand_in = Some(stand_in(metadata, &whole["spec"]));
    }
    undecodable
}

#[derive(Deserialize)]
struct WireNamespace {
    metadata: WireMeta,
}

#[derive(Deserialize)]
struct WirePolicy {
    metadata: WireMeta,
    spec: Option<NetworkPolicySpec>,
}

#[derive(Deserialize)]
struct WirePod {
    metadata: WireMeta,
    spec: Option<WirePodSpec>,
    status: Option<WirePodStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePodSpec {
    node_name: Option<String>,
    host_network: Option<bool>,
    containers: Option<Vec<WireContainer>>,
    init_containers: Option<Vec<WireContainer>>,
}

#[derive(Deserialize, Hash)]
#[serde(rename_all = "camelCase")]
struct WireContainer {
    name: String,
    restart_policy: Option<String>,
    ports: Option<Vec<WirePort>>,
}

#[derive(Deserialize, Hash)]
#[serde(rename_all = "camelCase")]
struct WirePort {
    name: Option<String>,
    container_port: i32,
    protocol: Option<String>,
}

#[derive(Default, Deserialize)]
struct WirePodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<WireAddress>>,
}

#[derive(Deserialize)]
struct WireAddress {
    ip: String,
}

/// What is kept of a pod besides its metadata.
#[derive(Default, Hash)]
struct Kept {
    /// The phase in which the pod has ended. Of such a pod, nothing else is kept.
    ended: Option<String>,
    node_name: Option<String>,
    host_network: Option<bool>,
    /// Containers with named ports.
    containers: Vec<WireContainer>,
    /// The same of init containers that go on running beside them.
    init_containers: Vec<WireContainer>,
    addresses: Vec<String>,
}

fn keep(spec: WirePodSpec, status: WirePodStatus) -> Kept {
    // Other phases make no difference.
    let ended = status.phase.filter(|phase| matches!(phase.as_str(), "Succeeded" | "Failed"));
    if ended.is_some() {
        return Kept { ended, ..Kept::default() };
    }
    let addresses = status.pod_ips.into_iter().flatten().map(|address| address.ip);
    let mut addresses: Vec<String> = addresses.filter(|address| !address.is_empty()).collect();
    if addresses.is_empty() {
        addresses.extend(status.pod_ip.filter(|address| !address.is_empty()));
    }
    let goes_on = |container: &WireContainer| container.restart_policy.as_deref() == Some("Always");
    let init = spec.init_containers.into_iter().flatten().filter(goes_on);
    Kept {
        ended: None,
        node_name: spec.node_name,
        host_network: spec.host_network,
        containers: spec.containers.into_iter().flatten().filter_map(with_named_ports).collect(),
        init_containers: init.filter_map(with_named_ports).collect(),
        addresses,
    }
}

/// Returns a container without the ports that no policy can name; `None` if none is left.
fn with_named_ports(mut container: WireContainer) -> Option<WireContainer> {
    let ports = container.ports.as_mut()?;
    ports.retain(|port| port.name.as_deref().is_some_and(|name| !name.is_empty()));
    (!ports.is_empty()).then_some(container)
}

fn pod(metadata: ObjectMeta, kept: Kept) -> Pod {
    let init = kept.init_containers.into_iter().map(container).collect::<Vec<_>>();
    let addresses = kept.addresses.into_iter().map(|ip| PodIP { ip }).collect::<Vec<_>>();
    let spec = PodSpec {
        node_name: kept.node_name,
        host_network: kept.host_network,
        containers: kept.containers.into_iter().map(container).collect(),
        init_containers: Some(init).filter(|init| !init.is_empty()),
        ..PodSpec::default()
    };
    let status = PodStatus {
        phase: kept.ended,
        pod_ips: Some(addresses).filter(|addresses| !addresses.is_empty()),
        ..PodStatus::default()
    };
    Pod { metadata, spec: Some(spec), status: Some(status) }
}

fn container(wire: WireContainer) -> Container {
    let port = |port: WirePort| ContainerPort {
        name: port.name,
        container_port: port.container_port,
        protocol: port.protocol,
        ..ContainerPort::default()
    };
    Container {
        name: wire.name,
        restart_policy: wire.restart_policy,
        ports: Some(wire.ports.into_iter().flatten().map(port).collect()),
        ..Container::default()
    }
}
