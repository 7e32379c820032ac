//! Computes the service ports of one Service from it and its slices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::categorise::{Needed, Place, categorise};
use super::claims::Rank;
use super::endpoints::merge;
use super::environment::Environment;
use super::former::FormerAddress;
use super::frontends::{Exposure, accept_addresses, expose};
use super::health_checks::health_check;
use super::index::{SlicesOf, Stored, StoredService};
use super::problem::{Notes, Problem, Topic};
use super::service::{PortSpec, ServiceSpec};
use super::slice::SERVICE_NAME_LABEL;
use super::{Family, FrontendKind, HealthCheck, ModelSettings, PortKey, ServiceKey, ServicePort};

/// The result for one Service. It is empty if the Service is gone.
#[derive(Debug)]
pub(super) struct Computed {
    /// The service ports, with every frontend that they request.
    pub ports: BTreeMap<PortKey, ServicePort>,
    pub rank: Rank,
    /// Families without a node address for the Service's nodePort.
    pub without_address: BTreeSet<Family>,
    pub health_check: Option<HealthCheck>,
    pub problems: Vec<Problem>,
}

/// The inputs of the computation.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub settings: &'a ModelSettings,
    pub environment: &'a Environment,
    /// The Service; `None` if none has this name.
    pub service: Option<&'a StoredService>,
    /// The slices that name the Service.
    pub slices: &'a SlicesOf,
    /// Addresses of this node that its status no longer names.
    pub former: &'a [FormerAddress],
}

pub(super) fn compute(key: &ServiceKey, inputs: Inputs<'_>) -> Computed {
    let mut computed = Computed {
        ports: BTreeMap::new(),
        rank: Rank::new(None),
        without_address: BTreeSet::new(),
        health_check: None,
        problems: Vec::new(),
    };
    match inputs.service {
        // Beside another proxy, most slices belong to Services that this agent does not read.
        None if inputs.settings.service_proxy_name.is_some() => {}
        None => computed.problems = orphans(key, inputs.slices),
        Some(Stored { spec: None, notes }) => computed.problems.clone_from(&notes.problems),
        Some(Stored { spec: Some(spec), notes }) => {
            let mut notes = notes.clone();
            computed.rank = Rank::new(spec.created);
            compute_ports(key, spec, inputs, &mut notes, &mut computed);
            computed.health_check = spec.health_check.map(|port| health_check(port, &computed.ports));
            if inputs.slices.is_empty() {
                notes.info("", "no EndpointSlice names this Service; its clients are refused");
            }
            computed.problems = notes.problems;
            computed.problems.extend(slice_problems(key, spec, inputs.slices));
        }
    }
    computed
}

fn compute_ports(
    key: &ServiceKey,
    spec: &ServiceSpec,
    inputs: Inputs<'_>,
    notes: &mut Notes,
    computed: &mut Computed,
) {
    let former: Vec<IpAddr> = inputs.former.iter().map(|former| former.address).collect();
    let reach = accept_addresses(spec, &former, inputs.settings, inputs.environment, notes);
    for family in spec.families.keys().copied() {
        for port in &spec.ports {
            let exposure = expose(spec, port, family, &reach, inputs.environment);
            for address in &exposure.refused {
                let message = format!("{address} is the API server's; not served there");
                notes.warn_about(Topic::RefusedAddress, format!("spec.ports[{}].port", port.index), message);
            }
            if exposure.without_address {
                computed.without_address.insert(family);
            }
            let port_key = PortKey { service: key.clone(), port: port.name.clone(), family };
            let source_ranges = reach.source_ranges.get(&family).cloned();
            let mut computed_port = compute_port(spec, port, family, exposure, inputs);
            leave_to_others(&mut computed_port, port, inputs);
            leave_to_sockets(&mut computed_port, port, inputs.environment, notes);
            computed.ports.insert(port_key, ServicePort { source_ranges, ..computed_port });
        }
    }
}

/// Takes away the frontends at former addresses that another Service has now.
fn leave_to_others(port: &mut ServicePort, spec: &PortSpec, inputs: Inputs<'_>) {
    let yielded = inputs.former.iter().filter(|former| former.without.contains(&(port.protocol, spec.port)));
    for former in yielded {
        let addresses = [Some(former.address), inputs.environment.mapped(former.address)];
        port.frontends.retain(|frontend| {
            frontend.kind != FrontendKind::LoadBalancer || !addresses.contains(&Some(frontend.address.ip()))
        });
    }
}

/// Takes away a load balancer's frontends at this node's addresses where a socket of this node has the port:
/// those of sshd or the kubelet must not be lost to a Service.
///
/// A socket of a backend, such as a pod in the node's network, is what the Service is for.
fn leave_to_sockets(port: &mut ServicePort, spec: &PortSpec, environment: &Environment, notes: &mut Notes) {
    let protocol = port.protocol;
    let is_backends = |number: u16| {
        let here = port.endpoints.iter().filter(|(_, endpoint)| endpoint.local).map(|(address, _)| address);
        here.into_iter().any(|address| address.port() == number && environment.is_own(address.ip()))
    };
    let is_taken =
        |address: SocketAddr| environment.has_listener(protocol, address) && !is_backends(address.port());
    let of_balancer = port.frontends.iter().filter(|frontend| frontend.kind == FrontendKind::LoadBalancer);
    let taken: BTreeSet<SocketAddr> =
        of_balancer.map(|frontend| frontend.address).filter(|address| is_taken(*address)).collect();
    port.frontends
        .retain(|frontend| frontend.kind != FrontendKind::LoadBalancer || !taken.contains(&frontend.address));
    for address in taken {
        let message = format!("a process of this node has {address} {protocol}; not served there");
        notes.warn_about(Topic::RefusedHere, format!("spec.ports[{}].port", spec.index), message);
    }
}

fn compute_port(
    spec: &ServiceSpec,
    port: &PortSpec,
    family: Family,
    exposure: Exposure,
    inputs: Inputs<'_>,
) -> ServicePort {
    let settings = inputs.settings;
    let slices = inputs.slices.values().map(|slice| &slice.spec);
    let candidates = merge(slices, port, family, &settings.node_name);
    let needed = Needed::by(spec.external_local, spec.internal_local, exposure.accessible);
    let zone = inputs.environment.own().and_then(|own| own.own.zone.as_deref());
    let lists = categorise(&candidates, needed, Place { node: &settings.node_name, zone });
    ServicePort {
        protocol: port.protocol,
        frontends: exposure.frontends,
        forwarding: spec.overrides.forwarding(settings),
        algorithm: spec.overrides.algorithm(settings),
        scheduler: spec.overrides.scheduler,
        affinity_seconds: spec.affinity_seconds,
        source_ranges: None,
        endpoints: candidates.into_iter().map(|(address, one)| (address, one.endpoint)).collect(),
        cluster: lists.cluster,
        local: lists.local,
        has_any: lists.has_any,
    }
}

/// Returns the problems in the slices of a served Service, including ports that match none of its
/// own.
fn slice_problems(key: &ServiceKey, spec: &ServiceSpec, slices: &SlicesOf) -> Vec<Problem> {
    let names: Vec<String> =
        spec.ports.iter().map(|port| format!("{:?} {}", port.name, port.protocol)).collect();
    let mut problems = Vec::new();
    for slice in slices.values() {
        let mut notes = slice.notes.clone();
        for port in &slice.spec.ports {
            let matches = |own: &PortSpec| own.name == port.name && own.protocol == port.protocol;
            if !spec.ports.iter().any(matches) {
                let (name, protocol, names) = (&port.name, port.protocol, names.join(", "));
                let message = format!("{name:?} {protocol} matches no port of Service {key}; it has {names}");
                notes.warn_about(Topic::Mismatch, format!("ports[{}].name", port.index), message);
            }
        }
        problems.extend(notes.affecting(key));
    }
    problems
}

fn orphans(key: &ServiceKey, slices: &SlicesOf) -> Vec<Problem> {
    let mut problems = Vec::new();
    for slice in slices.values() {
        let mut notes = slice.notes.clone();
        let field = format!("metadata.labels[{SERVICE_NAME_LABEL}]");
        notes.info(field, format!("there is no Service {key}; the slice serves nothing"));
        problems.extend(notes.affecting(key));
    }
    problems
}
