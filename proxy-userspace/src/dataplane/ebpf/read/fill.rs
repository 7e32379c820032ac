//! How large the maps are, how many of their entries are in use, and the memory that they take.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use aya::maps::MapData;
use millrace_views::MapView;
use proxy_common::Address;
use proxy_common::config::{AGENT_BACKENDS, AGENT_FLOWS, COUNTED};

use super::{PinnedMaps, ReadError};
use crate::dataplane::ebpf::bpffs::entries;
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::maps::FamilyMaps;

/// The entries in use, by map.
type Used = BTreeMap<&'static str, usize>;

impl PinnedMaps {
    /// Returns all maps, sorted by name. Those that would have to be counted one by one have no number in use.
    pub(super) fn fill(&self) -> Result<Vec<MapView>, ReadError> {
        let used = self.used()?;
        let mut views = Vec::new();
        for path in entries(&self.layout.maps())? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let failed = |error| OpenError::Map { map: name.to_owned(), error };
            let map = MapData::from_pin(&path).map_err(failed)?;
            views.push(MapView {
                name: name.to_owned(),
                entries: map.info().map_err(failed)?.max_entries(),
                used: used.get(name).map(|used| u32::try_from(*used).unwrap_or(u32::MAX)),
                memory_bytes: memory(map.fd().as_fd()),
            });
        }
        Ok(views)
    }

    fn used(&self) -> Result<Used, ReadError> {
        let maps = &self.maps;
        let mut used = Used::from([
            // Service 0 is none, and its word is 0.
            ("SERVICES", maps.services.used()),
            ("SELECTION", maps.selection.used()),
            (maps.ways.name(), self.ways()?.len()),
            (maps.hints.name(), maps.hints.count()?),
            (maps.peers.name(), maps.peers.count()?),
            (maps.vips.name(), maps.vips.count()?),
            (maps.names.name(), maps.names.count()?),
        ]);
        // The agent counts these. Counting them here would slow every scrape of the metrics.
        let (backends, flows) = (self.counted(AGENT_BACKENDS), self.counted(AGENT_FLOWS));
        family(&maps.of4, [backends.map(|[v4, _]| v4), flows.map(|[v4, _]| v4)], &mut used)?;
        family(&maps.of6, [backends.map(|[_, v6]| v6), flows.map(|[_, v6]| v6)], &mut used)?;
        Ok(used)
    }

    /// Returns the agent's counts for IPv4 and IPv6; none before it has counted.
    fn counted(&self, index: u32) -> Option<[usize; 2]> {
        let word = Some(self.maps.agent.load(index)).filter(|word| word & COUNTED != 0)? & !COUNTED;
        Some([0, 32].map(|shift| (word >> shift) as u32 as usize))
    }
}

/// Adds the maps of a family, with the agent's counts of backends and flows.
fn family<A: Address>(
    maps: &FamilyMaps<A>,
    [backends, flows]: [Option<usize>; 2],
    used: &mut Used,
) -> Result<(), ReadError> {
    used.extend([
        (maps.frontends.name(), maps.frontends.count()?),
        (maps.source_ranges.name(), maps.source_ranges.all()?.len()),
        (maps.affinity.name(), maps.affinity.count()?),
    ]);
    used.extend(backends.map(|backends| (maps.backends.name(), backends)));
    used.extend(flows.map(|flows| (maps.flows.name(), flows)));
    Ok(())
}

/// Returns the bytes that the kernel counts for a map. Linux below 6.4 counts a full one.
fn memory(map: BorrowedFd<'_>) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse().ok()
}
