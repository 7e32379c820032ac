//! What connections leave behind in the maps is keyed by service id, and may be older than any rest: an id is not
//! given to another service before no flow and no affinity entry has it, or clients would be sent to backends of the
//! service that had it before.

use std::time::Duration;

use super::Plan;

/// A service id that has rested, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestedId {
    /// The id.
    pub id: u32,
    /// When its rest was over: no program adds an entry with it after that.
    pub until: Duration,
}

impl Plan {
    /// Service ids that wait for their flow and affinity entries to be deleted.
    #[must_use]
    pub fn ids_to_reclaim(&self, now: Duration) -> Vec<RestedId> {
        self.services.ids_to_reclaim(now).collect()
    }

    /// Whether entries of a service id can be deleted.
    #[must_use]
    pub fn is_unassigned(&self, service: u32, now: Duration) -> bool {
        self.services.is_unassigned(service, now)
    }

    /// Takes note that the entries of these ids were all deleted since [`ids_to_reclaim`](Self::ids_to_reclaim) named them.
    pub fn entries_removed(&mut self, ids: impl IntoIterator<Item = RestedId>) {
        for resting in ids {
            self.services.entries_removed(resting);
        }
    }
}
