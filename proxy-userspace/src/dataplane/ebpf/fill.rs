//! Warnings of maps that are nearly full and can't grow, before an entry finds no room.

use std::collections::BTreeSet;

use tracing::warn;

use super::plan::MapUsage;
use super::settings::{MOST, NEARLY_FULL};

/// The percentage in use below which a map has enough room again.
const EASED: u64 = 70;

const DURING_CHANGE: &str = "maps do not grow while the node changes its mode; they do after that";
const SMALLER_TABLES: &str = "lower --maglev-table-size";
const LARGEST: &str = "the map can't be larger";

/// The maps that are nearly full.
#[derive(Debug, Default)]
pub struct Fill {
    crowded: BTreeSet<&'static str>,
}

impl Fill {
    /// Warns of each map that has become nearly full, unless it is to grow. The next warning of a map comes only
    /// after its use was clearly lower.
    pub fn warn_of_full_maps(&mut self, usages: &[MapUsage], may_grow: bool) {
        for MapUsage { map, used, entries } in self.newly_full(usages) {
            let advice = match map {
                _ if entries < MOST && may_grow => continue,
                _ if entries < MOST => DURING_CHANGE,
                "SELECTION" => SMALLER_TABLES,
                _ => LARGEST,
            };
            warn!(map, used, entries, advice, "a map is nearly full: new entries may find no room");
        }
    }

    fn newly_full(&mut self, usages: &[MapUsage]) -> Vec<MapUsage> {
        let reaches = |usage: &MapUsage, percent: u64| {
            u64::from(usage.used) * 100 >= u64::from(usage.entries) * percent
        };
        self.crowded.retain(|map| usages.iter().any(|usage| usage.map == *map && reaches(usage, EASED)));
        let crowded = usages.iter().filter(|usage| reaches(usage, NEARLY_FULL));
        crowded.filter(|usage| self.crowded.insert(usage.map)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_reported_once_from_four_fifths_on_until_it_has_eased() {
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
