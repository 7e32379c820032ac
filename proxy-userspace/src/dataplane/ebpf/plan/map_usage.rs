//! The use of the maps whose entries the plan allocates.

use super::Plan;

/// The use of one map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapUsage {
    /// Name of the map.
    pub map: &'static str,
    /// Entries in use.
    pub used: u32,
    /// Entries of the map.
    pub entries: u32,
}

impl Plan {
    /// Returns the use of all maps with entries allocated by number. Resting entries do not count,
    /// because they are free in some seconds.
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
