//! The pods with the policies that select them, for people.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::index::Index;
use super::object::NamespacedName;
use super::pod::{Network, PodSpec};
use super::spec::Direction;

/// A pod, and the policies that select it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView<'a> {
    /// Its name.
    pub name: &'a NamespacedName,
    /// The name of its node; empty before the pod is scheduled.
    pub node: &'a str,
    /// Its addresses.
    pub addresses: &'a BTreeSet<IpAddr>,
    /// Whether it is in the host's network, where no policy selects it.
    pub is_host_network: bool,
    /// The policies that select it, by name.
    pub policies: Vec<Selecting<'a>>,
}

/// A policy that selects a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selecting<'a> {
    /// The policy.
    pub policy: &'a NamespacedName,
    /// The directions in which it isolates the pod.
    pub directions: Vec<Direction>,
}

impl PodView<'_> {
    /// Returns whether a policy isolates the pod in a direction.
    #[must_use]
    pub fn is_isolated(&self, direction: Direction) -> bool {
        self.policies.iter().any(|policy| policy.directions.contains(&direction))
    }
}

impl Index {
    /// Returns every pod that has not ended, by name.
    pub fn pods(&self) -> impl Iterator<Item = PodView<'_>> {
        self.all_pods().map(|(name, pod)| self.view(name, pod))
    }

    /// Returns every pod on a node that has not ended, by name.
    pub fn pods_of_node(&self, node: &str) -> impl Iterator<Item = PodView<'_>> {
        self.pods_on(node).map(|(name, pod)| self.view(name, pod))
    }

    /// Returns the namespaces of pods and policies whose own objects are not known. Their labels may be anything.
    #[must_use]
    pub fn unknown_namespaces(&self) -> BTreeSet<&str> {
        let of_pods = self.all_pods().map(|(name, _)| name);
        let all = of_pods.chain(self.policies().map(|(name, _)| name)).map(|name| name.namespace.as_str());
        all.filter(|name| !self.has_namespace(name)).collect()
    }

    fn view<'a>(&'a self, name: &'a NamespacedName, pod: &'a PodSpec) -> PodView<'a> {
        let is_host_network = pod.network == Network::Host;
        let selecting = self.selecting(&pod.traits).filter(|_| !is_host_network);
        let policies = selecting.map(|(policy, spec)| Selecting {
            policy,
            directions: Direction::ALL.into_iter().filter(|one| spec.rules(*one).is_some()).collect(),
        });
        PodView {
            name,
            node: &pod.node,
            addresses: &pod.addresses,
            is_host_network,
            policies: policies.collect(),
        }
    }
}
