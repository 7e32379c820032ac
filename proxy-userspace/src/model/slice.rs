//! Parses EndpointSlice objects.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint as RawEndpoint, EndpointPort, EndpointSlice};

use super::address::{address_of, port, protocol};
use super::names::Names;
use super::problem::Notes;
use super::{Family, Protocol, ServiceKey};

/// The label with the name of a slice's Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The label of a headless Service's slices, which kube-proxy does not read.
///
/// A Service with this label and a cluster IP is served by its other slices.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SliceSpec {
    /// The Service, if the slice names one.
    pub service: Option<ServiceKey>,
    /// `None` for slices with names instead of addresses: no data plane can reach those.
    pub family: Option<Family>,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port that every endpoint of the slice has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SlicePort {
    /// Its index in `ports`.
    pub index: usize,
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

/// An endpoint without its port.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SliceEndpoint {
    pub address: IpAddr,
    pub node: Option<Arc<str>>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// Sorted.
    pub zone_hints: Box<[Arc<str>]>,
    /// Sorted.
    pub node_hints: Box<[Arc<str>]>,
}

impl SliceSpec {
    /// Returns every address with every port.
    pub fn sockets(&self) -> impl Iterator<Item = SocketAddr> {
        let with = |port: u16| self.endpoints.iter().map(move |one| SocketAddr::new(one.address, port));
        self.ports.iter().flat_map(move |port| with(port.port))
    }
}

pub(super) fn read_slice(
    slice: &EndpointSlice,
    namespace: &str,
    names: &mut Names,
    notes: &mut Notes,
) -> SliceSpec {
    let labels = slice.metadata.labels.as_ref();
    let label = |name: &str| labels.and_then(|labels| labels.get(name));
    let headless = label(HEADLESS_LABEL).is_some();
    let name = label(SERVICE_NAME_LABEL).filter(|name| !name.is_empty() && !headless);
    if name.is_none() && !headless {
        let field = format!("metadata.labels[{SERVICE_NAME_LABEL}]");
        notes.info(field, "not set; the slice belongs to no Service");
    }
    let family = match slice.address_type.as_str() {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        "FQDN" => None,
        other => {
            notes.warn("addressType", format!("{other:?} is not accepted; takes IPv4, IPv6 or FQDN"));
            None
        }
    };
    SliceSpec {
        service: name.map(|name| ServiceKey { namespace: namespace.to_owned(), name: name.clone() }),
        family,
        ports: read_ports(slice.ports.as_deref().unwrap_or_default(), notes),
        endpoints: family.map_or_else(Vec::new, |family| {
            read_endpoints(slice.endpoints.as_deref().unwrap_or_default(), family, names, notes)
        }),
    }
}

/// Parses the ports. A port without number belongs to a headless Service, and is left out without a
/// problem.
fn read_ports(entries: &[EndpointPort], notes: &mut Notes) -> Vec<SlicePort> {
    let mut ports = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let Some(number) = entry.port.filter(|number| *number != 0) else { continue };
        let number = port(number).map_err(|wrong| notes.warn(format!("ports[{index}].port"), wrong));
        let protocol = protocol(entry.protocol.as_deref())
            .map_err(|wrong| notes.warn(format!("ports[{index}].protocol"), wrong));
        if let (Ok(port), Ok(protocol)) = (number, protocol) {
            ports.push(SlicePort { index, name: entry.name.clone().unwrap_or_default(), protocol, port });
        }
    }
    ports.shrink_to_fit();
    ports
}

/// Parses the endpoints. By the API's definition only the first address of an endpoint has a
/// meaning.
fn read_endpoints(
    entries: &[RawEndpoint],
    family: Family,
    names: &mut Names,
    notes: &mut Notes,
) -> Vec<SliceEndpoint> {
    let mut endpoints = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let text = entry.addresses.first().map(String::as_str).unwrap_or_default();
        match address_of(family, text) {
            Ok(address) => endpoints.push(read_endpoint(entry, address, names)),
            Err(wrong) => notes.warn(format!("endpoints[{index}].addresses[0]"), wrong),
        }
    }
    endpoints
}

fn read_endpoint(entry: &RawEndpoint, address: IpAddr, names: &mut Names) -> SliceEndpoint {
    let conditions = entry.conditions.as_ref();
    let hints = entry.hints.as_ref();
    let zones = hints.and_then(|hints| hints.for_zones.as_deref()).unwrap_or_default();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_deref()).unwrap_or_default();
    SliceEndpoint {
        address,
        node: entry.node_name.as_deref().filter(|name| !name.is_empty()).map(|name| names.intern(name)),
        ready: conditions.and_then(|conditions| conditions.ready).unwrap_or(true),
        serving: conditions.and_then(|conditions| conditions.serving).unwrap_or(true),
        terminating: conditions.and_then(|conditions| conditions.terminating).unwrap_or(false),
        zone_hints: read_hints(zones.iter().map(|zone| zone.name.as_str()), names),
        node_hints: read_hints(nodes.iter().map(|node| node.name.as_str()), names),
    }
}

fn read_hints<'a>(hints: impl Iterator<Item = &'a str>, names: &mut Names) -> Box<[Arc<str>]> {
    let mut hints: Vec<_> = hints.map(|hint| names.intern(hint)).collect();
    hints.sort();
    hints.dedup();
    hints.into_boxed_slice()
}

#[cfg(test)]
#[path = "slice_tests.rs"]
mod tests;
