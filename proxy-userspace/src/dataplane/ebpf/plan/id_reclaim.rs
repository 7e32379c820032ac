//! Service ids wait for the deletion of their flow and affinity entries.
//!
//! These entries are keyed by service id and may be older than any rest. The plan does not give an
//! id to another service while a flow or affinity entry has it. Otherwise clients would reach
//! backends of the former service.

use std::time::Duration;

use super::Plan;

/// A service id that has rested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestedId {
    /// The id.
    pub id: u32,
    /// The end of its rest. No program adds an entry with the id after that.
    pub until: Duration,
}

impl Plan {
    /// Returns the service ids that wait for the deletion of their flow and affinity entries.
    #[must_use]
    pub fn ids_to_reclaim(&self, now: Duration) -> Vec<RestedId> {
        self.services.ids_to_reclaim(now).collect()
    }

    /// Returns whether the entries of a service id can be deleted.
    #[must_use]
    pub fn is_unassigned(&self, service: u32, now: Duration) -> bool {
        self.services.is_unassigned(service, now)
    }

    /// Records that all entries of these ids were deleted after the call of
    /// [`ids_to_reclaim`](Self::ids_to_reclaim) that returned them.
    pub fn entries_removed(&mut self, ids: impl IntoIterator<Item = RestedId>) {
        for resting in ids {
            self.services.entries_removed(resting);
        }
    }
}
