//! Which maps are nearly full: it is said before something finds no room.

use std::collections::BTreeSet;

use tracing::warn;

use super::plan::Level;

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
    pub fn tell(&mut self, levels: &[Level]) {
        for Level { map, used, entries } in self.news(levels) {
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

    fn news(&mut self, levels: &[Level]) -> Vec<Level> {
        let reaches =
            |level: &Level, percent: u64| u64::from(level.used) * 100 >= u64::from(level.entries) * percent;
        self.crowded.retain(|map| levels.iter().any(|level| level.map == *map && reaches(level, EASED)));
        let crowded = levels.iter().filter(|level| reaches(level, CROWDED));
        crowded.filter(|level| self.crowded.insert(level.map)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_named_once_from_four_fifths_on_until_it_has_eased() {
        let mut fill = Fill::default();
        let mut is_told = |used: u32| {
            let levels = [
                Level { map: "SELECTION", used, entries: 1000 },
                Level { map: "SERVICES", used: 1, entries: 9 },
            ];
            fill.news(&levels).iter().map(|level| level.map).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(is_told(799), none);
        assert_eq!(is_told(800), ["SELECTION"]);
        for used in [801, 1000, 750] {
            assert_eq!(is_told(used), none, "{used}");
        }
        assert_eq!(is_told(699), none);
        assert_eq!(is_told(900), ["SELECTION"]);
    }
}
