//! The parts of a pod that policies depend on. No others are parsed or kept.

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// `spec` of a pod, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WirePodSpec {
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

/// `status` of a pod, as far as it is read.
#[derive(Default, Deserialize)]
pub(super) struct WirePodStatus {
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
pub(super) struct Kept {
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

/// Returns the parts that are kept.
pub(super) fn keep(spec: Option<WirePodSpec>, status: Option<WirePodStatus>) -> Kept {
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
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

/// Returns the pod with these parts.
pub(super) fn pod(metadata: ObjectMeta, kept: Kept) -> Pod {
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
