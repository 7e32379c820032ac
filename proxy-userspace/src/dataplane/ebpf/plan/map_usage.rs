//! How much of the maps is in use, as far as the plan gives out their entries.

use super::Plan;

/// One map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapUsage {
    /// Its name.
    pub map: &'static str,
    /// Entries in use.
    pub used: u32,
    /// Entries it has.
    pub entries: u32,
}

impl Plan {
    /// The levels of all maps whose entries are given out by number. What rests does not count: it is free in some seconds.
    #[must_use]
    pub fn map_usage(&self) -> [MapUsage; 4] {
        let slots = self.capacities.slots;
        let usage = |map, used, entries| MapUsage { map, used, entries };
        [
            usage("SERVICES", self.services.used(), self.services.capacity()),
            usage("SELECTION", slots.saturating_sub(self.slot_allocator.spare()), slots),
            usage("BACKENDS4", self.backends_v4.used(), self.backends_v4.capacity()),
            usage("BACKENDS6", self.backends_v6.used(), self.backends_v6.capacity()),
        ]
    }
}
