//! Parses Service objects. Unreadable fields become problems and are left out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServiceSpec as RawSpec};
use k8s_openapi::jiff::Timestamp;

use super::address::{address, port, protocol};
use super::annotations::{Overrides, read_annotations};
use super::problem::Notes;
use super::source_ranges::{SourceRanges, read_source_ranges};
use super::{Family, ModelSettings, Protocol};

const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
const LONGEST_AFFINITY_SECONDS: i32 = 86_400;

/// A Service that this agent serves.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServiceSpec {
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// The families that it is served in, each with its cluster IP if that is valid.
    pub families: BTreeMap<Family, Option<IpAddr>>,
    pub ports: Vec<PortSpec>,
    /// `spec.externalIPs`, each with its index.
    pub external_ips: Vec<(usize, IpAddr)>,
    /// Whether it is of type LoadBalancer.
    pub is_load_balancer: bool,
    /// The addresses of `status.loadBalancer.ingress`, each with its index.
    pub ingress: Vec<(usize, IpAddr)>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: SourceRanges,
    /// `spec.healthCheckNodePort`, if type and externalTrafficPolicy give it a meaning.
    pub health_check: Option<u16>,
    /// Whether externalTrafficPolicy is Local and the type gives it a meaning.
    pub external_local: bool,
    /// Whether internalTrafficPolicy is Local.
    pub internal_local: bool,
    pub affinity_seconds: u32,
    pub overrides: Overrides,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PortSpec {
    /// Its index in `spec.ports`.
    pub index: usize,
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

/// Parses a Service. Returns `None` if another proxy serves it, or none does.
pub(super) fn read_service(
    service: &Service,
    settings: &ModelSettings,
    notes: &mut Notes,
) -> Option<ServiceSpec> {
    let raw = service.spec.as_ref()?;
    if !is_ours(service, raw, settings) {
        return None;
    }
    let kind = service_type(raw, notes)?;
    let families = read_families(raw, notes)?;
    let loads = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = loads.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    let external_ips = raw.external_ips.as_deref().unwrap_or_default();
    let outside = kind != Type::ClusterIp || !external_ips.is_empty();
    let external_local =
        is_local(raw.external_traffic_policy.as_deref(), "spec.externalTrafficPolicy", notes) && outside;
    Some(ServiceSpec {
        created: service.metadata.creation_timestamp.as_ref().map(|time| time.0),
        families,
        ports: read_ports(raw, kind, notes),
        external_ips: read_addresses("spec.externalIPs", "", external_ips.iter().map(Some), notes),
        is_load_balancer: kind == Type::LoadBalancer,
        ingress: match kind {
            Type::LoadBalancer => {
                let addresses = ingress.iter().map(|entry| {
                    let vip = entry.ip_mode.as_deref().is_none_or(|mode| mode == "VIP");
                    entry.ip.as_ref().filter(|ip| vip && !ip.is_empty())
                });
                read_addresses("status.loadBalancer.ingress", ".ip", addresses, notes)
            }
            Type::ClusterIp | Type::NodePort => Vec::new(),
        },
        source_ranges: read_source_ranges(
            raw.load_balancer_source_ranges.as_deref().unwrap_or_default(),
            notes,
        ),
        health_check: read_health_check(raw, kind, notes),
        external_local,
        internal_local: is_local(raw.internal_traffic_policy.as_deref(), "spec.internalTrafficPolicy", notes),
        affinity_seconds: read_affinity(raw, notes),
        overrides: read_annotations(service.metadata.annotations.as_ref(), settings, notes),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    ClusterIp,
    NodePort,
    LoadBalancer,
}

fn is_ours(service: &Service, raw: &RawSpec, settings: &ModelSettings) -> bool {
    let labels = service.metadata.labels.as_ref();
    let label = |name: &str| labels.and_then(|labels| labels.get(name));
    let headless = raw.cluster_ip.as_deref() == Some("None")
        || raw.cluster_ips.as_ref().is_some_and(|ips| ips.iter().any(|ip| ip == "None"));
    label(PROXY_NAME_LABEL) == settings.service_proxy_name.as_ref()
        && raw.type_.as_deref() != Some("ExternalName")
        && !headless
}

fn service_type(raw: &RawSpec, notes: &mut Notes) -> Option<Type> {
    match raw.type_.as_deref() {
        None | Some("ClusterIP") => Some(Type::ClusterIp),
        Some("NodePort") => Some(Type::NodePort),
        Some("LoadBalancer") => Some(Type::LoadBalancer),
        Some(other) => {
            let takes = "takes ClusterIP, NodePort, LoadBalancer or ExternalName";
            notes.warn("spec.type", format!("{other:?} is not a type of Service; {takes}; it is not served"));
            None
        }
    }
}

/// Returns the families of the cluster IPs.
///
/// An invalid cluster IP keeps the family of `spec.ipFamilies`, so that the Service's other
/// addresses are served.
fn read_families(raw: &RawSpec, notes: &mut Notes) -> Option<BTreeMap<Family, Option<IpAddr>>> {
    let several = raw.cluster_ips.as_deref().filter(|ips| !ips.is_empty());
    let texts = several.unwrap_or(raw.cluster_ip.as_slice());
    let declared = raw.ip_families.as_deref().unwrap_or_default();
    let mut families = BTreeMap::new();
    for (index, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
        let field =
            if several.is_some() { format!("spec.clusterIPs[{index}]") } else { "spec.clusterIP".to_owned() };
        match address(text) {
            Ok(address) if families.get(&Family::of(address)).is_some_and(Option::is_some) => {
                notes.warn(field, format!("{address} is a second address of its family; takes one of each"));
            }
            Ok(address) => {
                families.insert(Family::of(address), Some(address));
            }
            Err(wrong) => {
                notes.warn(field, wrong);
                let family = match declared.get(index).map(String::as_str) {
                    Some("IPv4") => Family::V4,
                    Some("IPv6") => Family::V6,
                    _ => continue,
                };
                families.entry(family).or_insert(None);
            }
        }
    }
    if texts.iter().all(String::is_empty) {
        notes.info("spec.clusterIP", "not set; the Service is not served");
    }
    Some(families).filter(|families| !families.is_empty())
}

fn read_ports(raw: &RawSpec, kind: Type, notes: &mut Notes) -> Vec<PortSpec> {
    let mut ports: Vec<PortSpec> = Vec::new();
    for (index, entry) in raw.ports.iter().flatten().enumerate() {
        let field = format!("spec.ports[{index}]");
        let name = entry.name.clone().unwrap_or_default();
        if ports.iter().any(|other| other.name == name) {
            notes.warn(
                format!("{field}.name"),
                format!("{name:?} is the name of another port; takes a name of its own"),
            );
            continue;
        }
        let number = port(entry.port).map_err(|wrong| notes.warn(format!("{field}.port"), wrong));
        let protocol = protocol(entry.protocol.as_deref())
            .map_err(|wrong| notes.warn(format!("{field}.protocol"), wrong));
        let (Ok(port), Ok(protocol)) = (number, protocol) else { continue };
        let node_port = read_node_port(entry.node_port, kind, &field, notes);
        ports.push(PortSpec { index, name, protocol, port, node_port });
    }
    ports.shrink_to_fit();
    ports
}

fn read_node_port(number: Option<i32>, kind: Type, field: &str, notes: &mut Notes) -> Option<u16> {
    let number = number.filter(|number| *number != 0)?;
    let field = format!("{field}.nodePort");
    if kind == Type::ClusterIp {
        notes.warn(field, "is ignored; takes effect with spec.type NodePort or LoadBalancer");
        return None;
    }
    port(number).map_err(|wrong| notes.warn(field, format!("{wrong}; no NodePort is served"))).ok()
}

/// Parses a list of addresses. Absent ones are left out, wrong ones are reported.
fn read_addresses<'a>(
    list: &str,
    member: &str,
    texts: impl Iterator<Item = Option<&'a String>>,
    notes: &mut Notes,
) -> Vec<(usize, IpAddr)> {
    let mut addresses = Vec::new();
    for (index, text) in texts.enumerate() {
        match text.map(|text| address(text)) {
            None => {}
            Some(Ok(address)) => addresses.push((index, address)),
            Some(Err(wrong)) => notes.warn(format!("{list}[{index}]{member}"), wrong),
        }
    }
    addresses
}

fn read_health_check(raw: &RawSpec, kind: Type, notes: &mut Notes) -> Option<u16> {
    const FIELD: &str = "spec.healthCheckNodePort";
    let number = raw.health_check_node_port.filter(|number| *number != 0)?;
    if kind != Type::LoadBalancer || raw.external_traffic_policy.as_deref() != Some("Local") {
        notes.warn(
            FIELD,
            "is ignored; takes effect with spec.type LoadBalancer and externalTrafficPolicy Local",
        );
        return None;
    }
    port(number).map_err(|wrong| notes.warn(FIELD, format!("{wrong}; health checks are not answered"))).ok()
}

fn is_local(policy: Option<&str>, field: &str, notes: &mut Notes) -> bool {
    match policy {
        None | Some("Cluster") => false,
        Some("Local") => true,
        Some(other) => {
            notes.warn(field, format!("{other:?} is not accepted; takes Cluster or Local; Cluster is used"));
            false
        }
    }
}

fn read_affinity(raw: &RawSpec, notes: &mut Notes) -> u32 {
    match raw.session_affinity.as_deref() {
        None | Some("None") => return 0,
        Some("ClientIP") => {}
        Some(other) => {
            let message = format!("{other:?} is not accepted; takes None or ClientIP; None is used");
            notes.warn("spec.sessionAffinity", message);
            return 0;
        }
    }
    let config = raw.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    match config.and_then(|config| config.timeout_seconds) {
        None => DEFAULT_AFFINITY_SECONDS,
        Some(seconds) if (1..=LONGEST_AFFINITY_SECONDS).contains(&seconds) => seconds.unsigned_abs(),
        Some(seconds) => {
            let takes = format!("takes 1 to {LONGEST_AFFINITY_SECONDS}; {DEFAULT_AFFINITY_SECONDS} is used");
            notes.warn(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                format!("{seconds} is not accepted; {takes}"),
            );
            DEFAULT_AFFINITY_SECONDS
        }
    }
}
