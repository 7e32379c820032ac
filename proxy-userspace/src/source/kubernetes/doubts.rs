//! Doubts about the versions of all kinds.
//!
//! An API server that was restored from a backup gives versions out a second time. All kinds share
//! its versions: if those of one kind are doubtful, so are the others'.

use tokio::sync::watch::{Receiver, Sender};

/// The doubts that were raised, as one follower sees them.
#[derive(Clone, Debug)]
pub(super) struct Doubts {
    sender: Sender<u64>,
    seen: Receiver<u64>,
}

impl Default for Doubts {
    fn default() -> Self {
        let sender = Sender::new(0);
        Self { seen: sender.subscribe(), sender }
    }
}

impl Doubts {
    /// Raises a doubt for the followers of all kinds, this one included. Returns `false` if another
    /// one did so that this one has not seen yet.
    pub fn raise(&self) -> bool {
        let is_first = !self.seen.has_changed().unwrap_or(false);
        if is_first {
            self.sender.send_modify(|count| *count = count.wrapping_add(1));
        }
        is_first
    }

    /// Returns whether a doubt was raised since the last one that this follower has seen. It counts
    /// as seen now.
    pub fn take(&mut self) -> bool {
        let is_raised = self.seen.has_changed().unwrap_or(false);
        self.seen.mark_unchanged();
        is_raised
    }

    /// Waits for a doubt. It does not count as seen: [`take`](Self::take) returns it.
    pub async fn raised(&mut self) {
        // The sender lives as long as this, so the channel is never closed.
        let _ = self.seen.changed().await;
        self.seen.mark_changed();
    }
}

/// Returns whether a version is older than another. Versions have always been numbers; Kubernetes promises
/// it since 1.35.
pub(super) fn is_older(version: &str, than: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    number(version).zip(number(than)).is_some_and(|(version, than)| version < than)
}
