//! What connections leave behind in the maps is keyed by service id, and may be older than any rest: an id is not
//! given to another service before no flow and no affinity entry has it, or clients would be sent to backends of the
//! service that had it before.

use std::time::Duration;

use super::Plan;

/// A service id that has rested, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resting {
    /// The id.
    pub id: u32,
    /// When its rest was over: no program adds an entry with it after that.
    pub until: Duration,
}

impl Plan {
    /// Service ids that wait for their flow and affinity entries to be deleted.
    #[must_use]
    pub fn unswept(&self, now: Duration) -> Vec<Resting> {
        self.services.unswept(now).collect()
    }

    /// Whether entries of a service id can be deleted.
    #[must_use]
    pub fn is_nobodys(&self, service: u32, now: Duration) -> bool {
        self.services.is_nobodys(service, now)
    }

    /// Takes note that the entries of these ids were all deleted since [`unswept`](Self::unswept) named them.
    pub fn swept(&mut self, ids: impl IntoIterator<Item = Resting>) {
        for resting in ids {
            self.services.swept(resting);
        }
    }
}
