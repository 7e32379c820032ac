//! What an earlier agent left while not every object could be read: it may be what those objects ask for, so it
//! stays until somebody claims it or everything was read. Of a Service that could be read this concerns its endpoints
//! only: where it is reached and by whom is its own to say.

use super::Plan;
use super::frontends::ListIds;
use super::ports::needs;
use super::services::name_of;
use crate::model::{Algorithm, Desired, List, PortKey, ServicePort};

impl Plan {
    /// Everything was read: what was found and nobody has claimed is unwanted. False if that was known before.
    pub(super) fn release_unclaimed(&mut self) -> bool {
        let kept_unclaimed = self.nodes.keeps_unclaimed();
        self.frontends.release_unclaimed();
        self.services.release_unclaimed();
        self.backends_v4.release_unclaimed();
        self.backends_v6.release_unclaimed();
        self.nodes.release_unclaimed();
        kept_unclaimed
    }

    /// Whether a port's lists stay as they were found for now: its Service was read, but none of its EndpointSlices.
    pub(super) fn awaits_endpoints(&self, key: &PortKey, desired: &Desired) -> bool {
        let has_none = desired.ports.get(key).is_some_and(|port| port.endpoints.is_empty());
        let names = || [List::Cluster, List::Local].map(|list| name_of(key, list)).into_iter();
        // One that is claimed had its endpoints read before, and has lost them.
        let is_claimed =
            |name: &String| self.services.is_known(name) && self.services.unclaimed(name).is_none();
        has_none
            && names().any(|name| self.services.unclaimed(&name).is_some())
            && !names().any(|name| is_claimed(&name))
    }

    /// The lists a port needs, as they were found; `None` if one was not, or is not of the kind that it shall be.
    pub(super) fn unclaimed_lists(&self, key: &PortKey, port: &ServicePort) -> Option<ListIds> {
        let is_maglev = matches!(port.algorithm, Algorithm::Maglev(_));
        let id = |list| {
            if !needs(port, list) {
                return Some(0);
            }
            let id = self.services.unclaimed(&name_of(key, list))?;
            self.services.get(id).filter(|state| state.is_maglev() == is_maglev).map(|_| id)
        };
        Some(ListIds { cluster: id(List::Cluster)?, local: id(List::Local)? })
    }
}
