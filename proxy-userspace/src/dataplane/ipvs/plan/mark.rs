//! The marks of Service ports.

use std::collections::{BTreeMap, BTreeSet};

use crate::dataplane::ipvs::state::marks;
use crate::model::{PortKey, Protocol};

/// The marks in use.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    by_port: BTreeMap<PortKey, u32>,
    given: BTreeSet<u32>,
}

impl Marks {
    /// Returns the port's mark: its present one, one of `found`, or a free one; `None` if none is free.
    ///
    /// `is_in_use` returns whether the kernel uses a mark.
    pub fn give(
        &mut self,
        port: &PortKey,
        protocol: Protocol,
        found: impl Iterator<Item = u32>,
        is_in_use: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let is_of = |mark: &u32| mark & !marks::NUMBER == protocol.mark();
        if let Some(mark) = self.by_port.get(port).filter(|mark| is_of(mark)) {
            return Some(*mark);
        }
        self.release(port);
        let mut found = found.filter(|mark| is_of(mark) && !self.given.contains(mark));
        let free = || {
            let mut all = (1..=marks::NUMBER).map(|number| protocol.mark() | number);
            all.find(|mark| !self.given.contains(mark) && !is_in_use(*mark))
        };
        let mark = found.next().or_else(free)?;
        self.by_port.insert(port.clone(), mark);
        self.given.insert(mark);
        Some(mark)
    }

    /// Frees the mark of a port.
    pub fn release(&mut self, port: &PortKey) {
        if let Some(mark) = self.by_port.remove(port) {
            self.given.remove(&mark);
        }
    }
}
