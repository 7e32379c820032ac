//! Entries of an earlier agent while not every object could be read.
//!
//! An unread object may need these entries. They stay until a port claims them or until the source
//! has read everything. For a Service that was read, this concerns the endpoints only: the Service
//! itself says its addresses and its source ranges.

use super::Plan;
use super::former_table::Turn;
use super::frontends::ListIds;
use super::lists::wanted;
use super::ports::needs;
use super::services::{ServiceState, name_of};
use crate::model::{Algorithm, Desired, List, PortKey, ServicePort};

impl Plan {
    /// Releases everything found in the maps and not claimed: the source has read everything.
    /// Returns false if that was known before.
    pub(super) fn release_unclaimed(&mut self) -> bool {
        let kept_unclaimed = self.nodes.keeps_unclaimed();
        self.frontends.release_unclaimed();
        self.services.release_unclaimed();
        self.backends_v4.release_unclaimed();
        self.backends_v6.release_unclaimed();
        self.nodes.release_unclaimed();
        kept_unclaimed
    }

    /// Returns whether the lists of a port stay as found: the Service was read, but none of its
    /// EndpointSlices.
    pub(super) fn awaits_endpoints(&self, key: &PortKey, desired: &Desired) -> bool {
        let has_none = desired.ports.get(key).is_some_and(|port| port.endpoints.is_empty());
        let names = || [List::Cluster, List::Local].map(|list| name_of(key, list)).into_iter();
        // A claimed list had its endpoints read before, and has lost them.
        let is_claimed =
            |name: &String| self.services.is_known(name) && self.services.unclaimed(name).is_none();
        has_none
            && names().any(|name| self.services.unclaimed(&name).is_some())
            && !names().any(|name| is_claimed(&name))
    }

    /// Returns the lists of a port as found; `None` if a list was not found or has another
    /// algorithm.
    pub(super) fn unclaimed_lists(&self, key: &PortKey, port: &ServicePort) -> Option<ListIds> {
        let is_maglev = matches!(port.algorithm, Algorithm::Maglev(_));
        let id = |list| {
            if !needs(port, list) {
                return Some(0);
            }
            let id = self.services.unclaimed(&name_of(key, list))?;
            // What the slots lead must not change before the list can be planned.
            let stays = |turn: Turn| !turn.goes_by_slot && !turn.leaves;
            let as_found = |state: &&ServiceState| {
                state.is_maglev() == is_maglev && stays(state.turn(wanted(port, list)))
            };
            self.services.get(id).filter(as_found).map(|_| id)
        };
        Some(ListIds { cluster: id(List::Cluster)?, local: id(List::Local)? })
    }
}
