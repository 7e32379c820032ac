//! The pools of nodes that Services name.

use std::collections::BTreeMap;

/// The label that puts nodes into a pool, and names the pool of a Service.
pub(super) const POOL_LABEL: &str = "millrace.dev/lb-pool";
/// The label of k3s with the same purpose.
pub(super) const K3S_POOL_LABEL: &str = "svccontroller.k3s.cattle.io/lbpool";

/// The pools that a Service names, or that a node is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pool {
    pub own: Option<String>,
    pub k3s: Option<String>,
}

impl Pool {
    /// Reads the labels of an object. An empty value names no pool.
    pub fn of(labels: Option<&BTreeMap<String, String>>) -> Self {
        let label = |name: &str| {
            labels.and_then(|labels| labels.get(name)).filter(|value| !value.is_empty()).cloned()
        };
        Self { own: label(POOL_LABEL), k3s: label(K3S_POOL_LABEL) }
    }

    /// Returns whether a node of this pool serves a Service that names `wanted`. Pools of k3s count only if
    /// `heeds_k3s`.
    pub fn serves(&self, wanted: &Self, heeds_k3s: bool) -> bool {
        let has = |mine: &Option<String>, wanted: &Option<String>| wanted.is_none() || mine == wanted;
        has(&self.own, &wanted.own) && (!heeds_k3s || has(&self.k3s, &wanted.k3s))
    }
}
