//! `millrace maps`.

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::output::{Column, Group, List, ListArgs, Row};
use super::place::Place;
use crate::dataplane::ebpf::read::MapView;

/// Arguments of `millrace maps`.
#[derive(Args, Clone, Debug)]
pub struct MapsArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// The use of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Map {
    #[serde(flatten)]
    view: MapView,
    /// Entries in use, in percent; none for maps that are not counted.
    used_percent: Option<u32>,
}

/// Prints the fill of the maps.
pub fn run(args: &MapsArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || {
        let maps: Vec<Map> = args.place.maps()?.status()?.maps.into_iter().map(Map::of).collect();
        Ok(List::new("MapList", vec![Group::of("ebpf", &maps, args.list.is_wide())?]))
    })
}

/// Returns the entries in use in percent, rounded down.
pub fn percent(view: &MapView) -> Option<u32> {
    let used = u64::from(view.used?);
    u32::try_from((used * 100).checked_div(u64::from(view.entries))?).ok()
}

/// Returns bytes in the largest unit of which there is at least one.
pub fn readable(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes.div_ceil(1024)),
        _ => format!("{} MiB", bytes.div_ceil(1_048_576)),
    }
}

impl Map {
    fn of(view: MapView) -> Self {
        Self { used_percent: percent(&view), view }
    }
}

impl Row for Map {
    const COLUMNS: &'static [Column] = &[
        Column::new("MAP", "name"),
        Column::new("USED", "used"),
        Column::new("ENTRIES", "entries"),
        Column::new("USE", "used_percent"),
        Column::new("MEMORY", "memory_bytes"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.view.name.clone(),
            self.view.used.map(|used| used.to_string()).unwrap_or_default(),
            self.view.entries.to_string(),
            self.used_percent.map(|percent| format!("{percent}%")).unwrap_or_default(),
            self.view.memory_bytes.map(readable).unwrap_or_default(),
        ]
    }

    fn name(&self) -> String {
        self.view.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_of_a_map_is_in_percent_where_it_is_counted() {
        let map = |used, entries| {
            Map::of(MapView { name: "WAYS".to_owned(), entries, used, memory_bytes: Some(3 << 19) })
                .cells(false)
        };
        assert_eq!(map(Some(3), 4), ["WAYS", "3", "4", "75%", "2 MiB"]);
        assert_eq!(map(None, 4), ["WAYS", "", "4", "", "2 MiB"]);
        assert_eq!(map(Some(u32::MAX), u32::MAX)[3], "100%");
        assert_eq!(map(Some(0), 0)[3], "");
    }
    #[test]
    fn memory_has_a_unit_and_is_not_shown_too_small() {
        let texts = [0, 1023, 1024, 1025, 1 << 20, (1 << 20) + 1, 7 << 30].map(readable);
        assert_eq!(texts, ["0 B", "1023 B", "1 KiB", "2 KiB", "1 MiB", "2 MiB", "7168 MiB"]);
    }
}
