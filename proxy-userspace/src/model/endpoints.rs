//! Merges the endpoints of one service port over all its slices: endpoints move between slices.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::categorise::Candidate;
use super::service::PortSpec;
use super::slice::{SliceEndpoint, SliceSpec};
use super::{Endpoint, EndpointAddress, Family};

/// Returns the endpoints that the slices give a service port in one family.
///
/// An endpoint may have two copies with the same address and port. The one that does not terminate
/// counts, else the first by slice name, as in kube-proxy (`addEndpoints` in
/// pkg/proxy/endpointslicecache.go).
pub(super) fn merge<'a>(
    slices: impl Iterator<Item = &'a SliceSpec>,
    port: &PortSpec,
    family: Family,
    node_name: &str,
) -> BTreeMap<EndpointAddress, Candidate<'a>> {
    let mut merged: BTreeMap<EndpointAddress, Candidate<'a>> = BTreeMap::new();
    for slice in slices.filter(|slice| slice.family == Some(family)) {
        let same = |name: &str, protocol| name == port.name && protocol == port.protocol;
        for number in slice.ports.iter().filter(|entry| same(&entry.name, entry.protocol)) {
            for endpoint in &slice.endpoints {
                let address = SocketAddr::new(endpoint.address, number.port);
                let candidate = candidate(endpoint, node_name);
                match merged.get(&address) {
                    Some(first) if !candidate.replaces(first) => {}
                    _ => {
                        merged.insert(address, candidate);
                    }
                }
            }
        }
    }
    merged
}

fn candidate<'a>(endpoint: &'a SliceEndpoint, node_name: &str) -> Candidate<'a> {
    Candidate {
        endpoint: Endpoint {
            node: endpoint.node.clone(),
            local: endpoint.node.as_deref() == Some(node_name),
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
        },
        zone_hints: &endpoint.zone_hints,
        node_hints: &endpoint.node_hints,
    }
}
