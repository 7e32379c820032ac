//! The frontends of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::environment::Environment;
use super::problem::{Notes, Topic};
use super::service::{PortSpec, ServiceSpec};
use super::source_ranges::{SourceRanges, with_vips};
use super::{ClusterIpClients, Family, Forwarding, Frontend, FrontendKind, List, ModelSettings, Scope};

/// The external addresses that a Service has and may have.
#[derive(Debug, Default)]
pub(super) struct Reach {
    external_ips: Vec<IpAddr>,
    ingress: Vec<IpAddr>,
    node_addresses: Vec<IpAddr>,
    /// Whether other nodes forward traffic of their NodePorts with DSR.
    direct_return: bool,
    cluster_ip_clients: ClusterIpClients,
    /// The sources that may reach `ingress`.
    pub source_ranges: SourceRanges,
}

/// The frontends of one port in one family.
#[derive(Debug)]
pub(super) struct Exposure {
    pub frontends: BTreeSet<Frontend>,
    /// Whether clients outside the cluster can reach the port, on this node or another.
    pub accessible: bool,
    /// Frontends that are not served, because the API server listens there.
    pub refused: BTreeSet<SocketAddr>,
    /// Whether the port has a nodePort, and this node no address to serve it on.
    pub without_address: bool,
}

/// Drops the external addresses that the Service must not have.
///
/// `former`: addresses of this node that the Service's status no longer names.
pub(super) fn accept_addresses(
    spec: &ServiceSpec,
    former: &[IpAddr],
    settings: &ModelSettings,
    environment: &Environment,
    notes: &mut Notes,
) -> Reach {
    let node_addresses = environment.node_port_addresses(&settings.node_ports).collect();
    let direct_return = spec.overrides.forwarding(settings) == Forwarding::Dsr;
    let cluster_ip_clients = settings.cluster_ip_clients;
    let mut reach = Reach { node_addresses, direct_return, cluster_ip_clients, ..Reach::default() };
    for (index, address) in &spec.external_ips {
        let refusal = match environment.refuse_external_ip(*address) {
            Some(owned) => Some((owned.topic(), owned.to_string())),
            None => out_of_range(settings, *address)
                .or_else(|| foreign_family(spec, *address))
                .map(|why| (Topic::RefusedAddress, why.to_owned())),
        };
        match refusal {
            None => reach.external_ips.push(*address),
            Some((topic, why)) => {
                let field = format!("spec.externalIPs[{index}]");
                notes.warn_about(topic, field, format!("{address} {why}; not served"));
            }
        }
    }
    let with_mapped = |address: IpAddr| [Some(address), environment.mapped(address)].into_iter().flatten();
    for (index, address) in &spec.ingress {
        let refusal = match environment.refuse_ingress(*address) {
            None => foreign_family(spec, *address).map(str::to_owned),
            Some(owned) => Some(owned.to_string()),
        };
        let field = format!("status.loadBalancer.ingress[{index}].ip");
        match refusal {
            None => {
                reach.ingress.extend(with_mapped(*address));
            }
            Some(why) => {
                notes.warn_about(Topic::RefusedAddress, field, format!("{address} {why}; not served"));
            }
        }
    }
    let former = former.iter().filter(|address| environment.refuse_ingress(**address).is_none());
    reach.ingress.extend(former.flat_map(|address| with_mapped(*address)));
    reach.source_ranges = with_vips(spec.source_ranges.clone(), &reach.ingress, &environment.own_addresses());
    reach
}

/// Returns the frontends of one port in one family, including those that an older Service has.
pub(super) fn expose(
    spec: &ServiceSpec,
    port: &PortSpec,
    family: Family,
    reach: &Reach,
    environment: &Environment,
) -> Exposure {
    let mut found = BTreeMap::new();
    let mut add = |address: IpAddr, number: u16, kind: FrontendKind, scope: Scope, local: bool| {
        let address = SocketAddr::new(address, number);
        let list = if local { List::Local } else { List::Cluster };
        found.entry((address, scope)).or_insert(Frontend { address, scope, kind, list });
    };
    if let Some(cluster_ip) = spec.families.get(&family).copied().flatten() {
        let external = match reach.cluster_ip_clients {
            ClusterIpClients::Inside => Scope::ExternalInside,
            ClusterIpClients::All => Scope::External,
        };
        for scope in [Scope::Internal, external] {
            add(cluster_ip, port.port, FrontendKind::ClusterIp, scope, spec.internal_local);
        }
    }
    // If an address is given twice, the load balancer's entry counts: source ranges apply to it.
    let of_family = |address: &&IpAddr| Family::of(**address) == family;
    let node_addresses: Vec<&IpAddr> = reach.node_addresses.iter().filter(of_family).collect();
    let node_ports = port
        .node_port
        .iter()
        .flat_map(|number| node_addresses.iter().map(|address| (**address, *number, FrontendKind::NodePort)));
    let ingress = reach.ingress.iter().filter(of_family);
    let external_ips = reach.external_ips.iter().filter(of_family);
    let vips = ingress
        .map(|address| (*address, port.port, FrontendKind::LoadBalancer))
        .chain(external_ips.map(|address| (*address, port.port, FrontendKind::ExternalIp)));
    // A load balancer may have the address of a node with an API server, but not that server's
    // port.
    let is_free = |(address, number, kind): &(IpAddr, u16, FrontendKind)| {
        *kind == FrontendKind::NodePort || !environment.is_api_server(SocketAddr::new(*address, *number))
    };
    let (outside, refused): (Vec<_>, Vec<_>) = node_ports.chain(vips).partition(is_free);
    for (address, number, kind) in &outside {
        // Clients on this node may use every endpoint, whatever externalTrafficPolicy is.
        add(*address, *number, *kind, Scope::External, spec.external_local);
        add(*address, *number, *kind, Scope::Internal, false);
    }
    // Only sockets in the node's network namespace reach this: each pod has a loopback device of
    // its own.
    if let Some(number) = port.node_port {
        let loopback = match family {
            Family::V4 => IpAddr::from(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::from(Ipv6Addr::LOCALHOST),
        };
        add(loopback, number, FrontendKind::NodePort, Scope::Internal, false);
    }
    // The address is that of the node that the client contacted. The port is the same on all nodes.
    if let Some(number) = port.node_port.filter(|_| reach.direct_return) {
        let any = match family {
            Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        add(any, number, FrontendKind::NodePort, Scope::Encapsulated, spec.external_local);
    }
    Exposure {
        frontends: found.into_values().collect(),
        refused: refused.into_iter().map(|(address, number, _)| SocketAddr::new(address, number)).collect(),
        accessible: port.node_port.is_some() || !outside.is_empty(),
        without_address: port.node_port.is_some() && node_addresses.is_empty(),
    }
}

fn out_of_range(settings: &ModelSettings, address: IpAddr) -> Option<&'static str> {
    let ranges = &settings.external_ip_ranges;
    if ranges.iter().any(|range| range.contains(&address)) {
        return None;
    }
    Some(if ranges.is_empty() {
        "is outside every --service-external-ip-range: none is set"
    } else {
        "is outside every --service-external-ip-range"
    })
}

fn foreign_family(spec: &ServiceSpec, address: IpAddr) -> Option<&'static str> {
    let family = Family::of(address);
    match (spec.families.contains_key(&family), family) {
        (true, _) => None,
        (false, Family::V4) => Some("is IPv4, which the Service has no cluster IP of"),
        (false, Family::V6) => Some("is IPv6, which the Service has no cluster IP of"),
    }
}

#[cfg(test)]
#[path = "frontends_tests.rs"]
mod tests;
