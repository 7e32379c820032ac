//! Which maps are nearly full: it is said before something finds no room.

use std::collections::BTreeSet;

use tracing::warn;

use super::plan::MapUsage;

/// Parts of a hundred from which on a map is nearly full.
const CROWDED: u64 = 80;
/// Parts of a hundred below which there is enough room again.
const EASED: u64 = 70;

/// The maps that are nearly full.
#[derive(Debug, Default)]
pub struct Fill {
    crowded: BTreeSet<&'static str>,
}

impl Fill {
    /// Warns of each map that has become nearly full. One that was is not spoken of again before it has clearly eased.
    pub fn warn_of_full_maps(&mut self, usages: &[MapUsage]) {
        for MapUsage { map, used, entries } in self.newly_full(usages) {
            warn!(
                map,
                used,
                entries,
                "a map is nearly full: what finds no room is not served; `millrace cleanup`, which ends connections, lets the next agent \
                 make it larger{}",
                if map == "SELECTION" { "; a smaller --maglev-table-size needs fewer slots" } else { "" }
            );
        }
    }

    fn newly_full(&mut self, usages: &[MapUsage]) -> Vec<MapUsage> {
        let reaches = |usage: &MapUsage, percent: u64| {
            u64::from(usage.used) * 100 >= u64::from(usage.entries) * percent
        };
        self.crowded.retain(|map| usages.iter().any(|usage| usage.map == *map && reaches(usage, EASED)));
        let crowded = usages.iter().filter(|usage| reaches(usage, CROWDED));
        crowded.filter(|usage| self.crowded.insert(usage.map)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_named_once_from_four_fifths_on_until_it_has_eased() {
        let mut fill = Fill::default();
        let mut newly_full = |used: u32| {
            let usages = [
                MapUsage { map: "SELECTION", used, entries: 1000 },
                MapUsage { map: "SERVICES", used: 1, entries: 9 },
            ];
            fill.newly_full(&usages).iter().map(|usage| usage.map).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(newly_full(799), none);
        assert_eq!(newly_full(800), ["SELECTION"]);
        for used in [801, 1000, 750] {
            assert_eq!(newly_full(used), none, "{used}");
        }
        assert_eq!(newly_full(699), none);
        assert_eq!(newly_full(900), ["SELECTION"]);
    }
}
