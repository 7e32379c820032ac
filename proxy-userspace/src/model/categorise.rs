//! Picks the endpoints of a service port's Cluster and Local lists, as kube-proxy does
//! (`CategorizeEndpoints` in kubernetes/kubernetes, pkg/proxy/topology.go).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Endpoint, EndpointAddress};

/// An endpoint with the hints of its slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate<'a> {
    pub endpoint: Endpoint,
    pub zone_hints: &'a [Arc<str>],
    pub node_hints: &'a [Arc<str>],
}

/// The lists that a service port needs, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needed {
    pub cluster: bool,
    pub local: bool,
}

/// The place of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub node: &'a str,
    pub zone: Option<&'a str>,
}

/// The lists; `None` = not needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Categorised {
    pub cluster: Option<BTreeSet<EndpointAddress>>,
    pub local: Option<BTreeSet<EndpointAddress>>,
    /// Whether any endpoint on any node is usable.
    pub has_any: bool,
}

impl Needed {
    /// Derives the lists from the policies, and from whether clients outside the cluster can reach
    /// the service port.
    pub fn by(external_local: bool, internal_local: bool, accessible: bool) -> Self {
        Self {
            cluster: !internal_local || accessible,
            local: internal_local || (external_local && accessible),
        }
    }
}

impl Candidate<'_> {
    /// Returns whether this copy of an endpoint counts instead of the first one.
    pub const fn replaces(&self, first: &Self) -> bool {
        first.endpoint.terminating && !self.endpoint.terminating
    }
    fn is_fallback(&self) -> bool {
        self.endpoint.serving && self.endpoint.terminating
    }
}

pub(super) fn categorise(
    endpoints: &BTreeMap<EndpointAddress, Candidate<'_>>,
    needed: Needed,
    place: Place<'_>,
) -> Categorised {
    Categorised {
        cluster: needed.cluster.then(|| cluster_list(endpoints, place)),
        local: needed.local.then(|| local_list(endpoints)),
        has_any: endpoints.values().any(|one| one.endpoint.ready || one.is_fallback()),
    }
}

/// The Ready endpoints that traffic is restricted to.
#[derive(Clone, Copy)]
enum Preference<'a> {
    Nobody,
    Node(&'a str),
    Zone(&'a str),
}

fn cluster_list(
    endpoints: &BTreeMap<EndpointAddress, Candidate<'_>>,
    place: Place<'_>,
) -> BTreeSet<EndpointAddress> {
    let preference = preference(endpoints, place);
    let preferred = pick(endpoints, |one| {
        one.endpoint.ready
            && match preference {
                Preference::Nobody => true,
                Preference::Node(node) => names(one.node_hints, node),
                Preference::Zone(zone) => names(one.zone_hints, zone),
            }
    });
    if preferred.is_empty() { pick(endpoints, Candidate::is_fallback) } else { preferred }
}

/// Returns the restriction of traffic.
///
/// Hints do not count while one Ready endpoint has none, or none names this place: a partial
/// roll-out of hints must not concentrate traffic on a few endpoints.
fn preference<'a>(endpoints: &BTreeMap<EndpointAddress, Candidate<'_>>, place: Place<'a>) -> Preference<'a> {
    let all_hint = |hints: for<'h> fn(&Candidate<'h>) -> &'h [Arc<str>], here: &str| {
        let mut ready = endpoints.values().filter(|one| one.endpoint.ready).map(hints);
        let mut some_here = false;
        ready.all(|hints| {
            some_here |= names(hints, here);
            !hints.is_empty()
        }) && some_here
    };
    if all_hint(|one| one.node_hints, place.node) {
        return Preference::Node(place.node);
    }
    match place.zone {
        Some(zone) if all_hint(|one| one.zone_hints, zone) => Preference::Zone(zone),
        _ => Preference::Nobody,
    }
}

/// Returns the Ready endpoints of this node, else those that serve while they terminate. Hints do
/// not count.
fn local_list(endpoints: &BTreeMap<EndpointAddress, Candidate<'_>>) -> BTreeSet<EndpointAddress> {
    let ready = pick(endpoints, |one| one.endpoint.local && one.endpoint.ready);
    if ready.is_empty() { pick(endpoints, |one| one.endpoint.local && one.is_fallback()) } else { ready }
}

fn names(hints: &[Arc<str>], here: &str) -> bool {
    hints.iter().any(|hint| **hint == *here)
}

fn pick<'a>(
    endpoints: &BTreeMap<EndpointAddress, Candidate<'a>>,
    wanted: impl Fn(&Candidate<'a>) -> bool,
) -> BTreeSet<EndpointAddress> {
    endpoints.iter().filter(|(_, one)| wanted(one)).map(|(address, _)| *address).collect()
}

#[cfg(test)]
#[path = "categorise_tests.rs"]
mod tests;
