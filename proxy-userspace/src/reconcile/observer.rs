//! Observers of the task that owns model and data plane: health, metrics and Events.

use std::time::Duration;

use crate::dataplane::{Check, SyncReport};
use crate::model::{Desired, Dirty, Problem};
use crate::source::SourceEvent;

/// An observer of the task. Its methods run in the task's own thread: they must not wait or do I/O.
pub trait Observer: Send + std::fmt::Debug {
    /// Called for each batch of the first listing, before the model sees it.
    fn listing(&mut self, _batch: &[SourceEvent]) {}
    /// Called for each later batch, before the model sees it.
    fn received(&mut self, _batch: &[SourceEvent]) {}
    /// Called after each sync.
    fn synced(&mut self, _synced: &Synced<'_>) {}
    /// Called when a problem with an object begins. It is repeated only after the problem was gone
    /// in between.
    fn problem(&mut self, _problem: &Problem) {}
    /// Called after the data plane has checked itself.
    fn checked(&mut self, _check: &Check) {}
}

/// The result of a sync.
#[derive(Clone, Copy, Debug)]
pub struct Synced<'a> {
    /// The state that the data plane was brought to.
    pub desired: &'a Desired,
    /// The changes that the sync took.
    pub dirty: &'a Dirty,
    /// The work that was done, and the failures.
    pub report: &'a SyncReport,
    /// Time from its begin to its end.
    pub took: Duration,
}
