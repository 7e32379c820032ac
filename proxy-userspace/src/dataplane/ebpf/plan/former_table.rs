//! The table that a list had before, and what a change of the frontends does to a list.

use std::time::Duration;

use proxy_common::selection::{SERVICE_FORMER, ServiceEntry};

use super::change::Extent;

/// A table that a list had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerTable {
    /// The slot that names it, before the list's slice.
    pub word: u32,
    /// Its slots. Nothing changes them any more: the generation tells which owners are gone.
    pub slice: Extent,
    /// The time of the list's change.
    pub since: Duration,
    /// Whether the next sync removes it.
    pub is_over: bool,
}

impl FormerTable {
    /// Returns the content of the slot that names it.
    #[must_use]
    pub const fn entry(&self) -> ServiceEntry {
        ServiceEntry::new(self.slice.offset, self.slice.length, 0)
    }

    /// Returns the number of its slots at the begin of a room. A slice may be shorter than its room.
    #[must_use]
    pub const fn within(&self, room: Extent) -> u32 {
        let is_there = self.slice.offset == room.offset && self.slice.length <= room.length;
        if is_there { self.slice.length } else { 0 }
    }

    /// Returns the slots that it takes.
    #[must_use]
    pub const fn extents(&self) -> [Extent; 2] {
        [Extent { offset: self.word, length: 1 }, self.slice]
    }
}

/// What the frontends of a list are to have.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Direct Server Return.
    pub dsr: bool,
    /// Session affinity.
    pub affinity: bool,
}

/// What a change of its frontends does to a list's connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// From now on its slots alone may lead packets. Older connections have entries, which must be asked
    /// first.
    pub goes_by_slot: bool,
    /// Another hash chooses the slots, so its connections need the table of now as a former one.
    pub leaves: bool,
}

/// Returns a list's word. An empty list names its slots only if a former table is before them.
pub const fn word_of(slice: Extent, flags: u8, former: Option<FormerTable>) -> ServiceEntry {
    let Extent { offset, length } = slice;
    match former {
        Some(_) => ServiceEntry::new(offset, length, flags | SERVICE_FORMER),
        None => ServiceEntry::new(if length == 0 { 0 } else { offset }, length, flags & !SERVICE_FORMER),
    }
}
