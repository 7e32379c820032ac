//! What an earlier agent left while not every object could be read: it may be what those objects ask for, so it
//! stays until somebody claims it or everything was read.

use super::Plan;
use super::services::name_of;
use crate::model::{Desired, List, PortKey};

impl Plan {
    /// Everything was read: what was found and nobody has claimed is unwanted. False if that was known before.
    pub(super) fn let_go(&mut self) -> bool {
        let was_holding = self.nodes.is_holding();
        self.frontends.let_go();
        self.services.let_go();
        self.backends_v4.let_go();
        self.backends_v6.let_go();
        self.nodes.let_go();
        was_holding
    }

    /// Whether a port is served as it was found for now: its Service was read, but none of its EndpointSlices.
    pub(super) fn awaits_endpoints(&self, key: &PortKey, desired: &Desired) -> bool {
        let has_none = desired.ports.get(key).is_some_and(|port| port.endpoints.is_empty());
        let is_held = |list| self.services.is_held(&name_of(key, list));
        has_none && [List::Cluster, List::Local].into_iter().any(is_held)
    }
}
