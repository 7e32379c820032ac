//! Health, metrics and events hang off the results of the one task that owns model and data plane.

use std::time::Duration;

use crate::dataplane::{Check, SyncReport};
use crate::model::{Desired, Dirty, Problem};
use crate::source::SourceEvent;

/// Somebody who is told what the task does, in its own thread: none of these may wait or do I/O.
pub trait Observer: Send + std::fmt::Debug {
    /// The source told something of all there is, before the task began; the model has not seen it yet.
    fn listing(&mut self, _batch: &[SourceEvent]) {}
    /// The source told something since then; the model has not seen it yet.
    fn received(&mut self, _batch: &[SourceEvent]) {}
    /// A sync is over.
    fn synced(&mut self, _synced: &Synced<'_>) {}
    /// Something has become wrong with an object. Each comes once, until it has been right in between.
    fn problem(&mut self, _problem: &Problem) {}
    /// The data plane has looked at itself.
    fn checked(&mut self, _check: &Check) {}
}

/// A sync.
#[derive(Clone, Copy, Debug)]
pub struct Synced<'a> {
    /// The state it brought the data plane to.
    pub desired: &'a Desired,
    /// What had changed.
    pub dirty: &'a Dirty,
    /// What was done, and what failed.
    pub report: &'a SyncReport,
    /// From its begin to its end.
    pub took: Duration,
}
