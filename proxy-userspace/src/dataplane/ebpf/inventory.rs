//! The maps of the object and their sizes.

use std::path::Path;

use aya::Ebpf;
use aya::maps::MapInfo;
use proxy_common::event::EVENTS_PER_CPU;
use proxy_common::fragment::HELD_PER_CPU;
use proxy_common::part::PART_ARRAYS;
use proxy_common::trace::TRACE_MAPS;
use proxy_common::verdict::COUNTER_ENTRIES;
use tracing::info;

use super::error::OpenError;
use super::layout::Layout;
use super::settings::Sizes;

/// Returns the maps of the object with the wanted size of each; `None` keeps the size in the object.
pub fn maps(sizes: &Sizes) -> [(&'static str, Option<u32>); 61] {
    [
        ("ADDRESS_FILTER", None),
        ("AFFINITY4", Some(sizes.affinity)),
        ("AFFINITY6", Some(sizes.affinity)),
        ("AGENT", None),
        ("ANNOUNCED", None),
        ("BACKEND_CONNECTIONS4", Some(sizes.backends)),
        ("BACKEND_CONNECTIONS6", Some(sizes.backends)),
        ("BACKENDS4", Some(sizes.backends)),
        ("BACKENDS6", Some(sizes.backends)),
        ("COUNTERS", None),
        ("DEVICE_MACS", None),
        ("DEVICES", None),
        ("EVENTS", Some(per_cpu(EVENTS_PER_CPU))),
        ("FLOWS4", Some(sizes.flows)),
        ("FLOWS6", Some(sizes.flows)),
        ("FLOWS_NEW4", Some(sizes.new_flows)),
        ("FLOWS_NEW6", Some(sizes.new_flows)),
        ("FRAGMENTS4", None),
        ("FRAGMENTS6", None),
        ("FRONTEND_INDEX4", None),
        ("FRONTEND_INDEX6", None),
        ("FRONTENDS4", Some(sizes.frontends)),
        ("FRONTENDS6", Some(sizes.frontends)),
        ("HANDSHAKES", None),
        ("HELD", Some(per_cpu(HELD_PER_CPU))),
        ("HINTS", Some(sizes.hints)),
        ("HOPS4", Some(sizes.backends)),
        ("HOPS6", Some(sizes.backends)),
        ("ANSWERS", None),
        ("ICMP_SOURCES", None),
        ("ICMP_TOTAL", None),
        ("KEYS4", None),
        ("KEYS6", None),
        ("LINKS", None),
        ("MONITOR", None),
        ("NAMES", Some(sizes.services)),
        ("NARROWED", Some(sizes.nodes)),
        ("NODE_FLOWS4", None),
        ("NODE_FLOWS6", None),
        ("NODE_PORTS", None),
        ("PEERS", Some(sizes.nodes)),
        ("BUFFER", None),
        ("RECORDING", None),
        ("SCRATCH4", None),
        ("SCRATCH6", None),
        ("SELECTION", Some(sizes.slots)),
        ("SERVED_PORTS", None),
        ("SERVICE_CONNECTIONS", Some(sizes.services)),
        ("SERVICE_DROPS", None),
        ("SERVICE_HANDSHAKES", Some(sizes.services)),
        ("SERVICES", Some(sizes.services)),
        ("SERVICE_STATS", Some(sizes.services)),
        ("SNAT_FULL", None),
        ("SOCK_REV4", Some(sizes.sockets)),
        ("SOCK_REV6", Some(sizes.sockets)),
        ("SOCK_TCP4", Some(sizes.sockets)),
        ("SOCK_TCP6", Some(sizes.sockets)),
        ("SOURCE_RANGES4", Some(sizes.source_ranges)),
        ("SOURCE_RANGES6", Some(sizes.source_ranges)),
        ("VIPS", Some(sizes.frontends)),
        ("WAYS", Some(sizes.nodes)),
    ]
}

/// Returns the size for the creation of a map. A pinned map keeps its own, because its entries are in use, until
/// [`Resize`](super::resize::Resize) replaces it. The new one has room for all of its entries, except in FLOWS: the
/// operator chooses its size.
pub fn size_of_map(layout: &Layout, name: &str, wanted: Option<u32>) -> Option<u32> {
    let name = indexed_as(name);
    let pinned = |maps: &Path| MapInfo::from_pin(maps.join(name)).ok().map(|info| info.max_entries());
    if let Some(entries) = pinned(&layout.maps()) {
        return Some(entries);
    }
    if is_chosen(name) {
        return wanted;
    }
    let former = pinned(&layout.former_maps()).or_else(|| pinned(&layout.leaving_maps()));
    wanted.map(|wanted| former.map_or(wanted, |former| former.max(wanted)))
}

/// Whether the operator chooses the size of a map: `--flow-table-size`.
pub fn is_chosen(name: &str) -> bool {
    matches!(name, "FLOWS4" | "FLOWS6")
}

/// The counters of an earlier build may have no room for those of this build. They begin anew, as after a
/// restart of the node.
pub fn renew_counters(maps: &Path) -> Result<(), OpenError> {
    let path = maps.join("COUNTERS");
    let is_outgrown = MapInfo::from_pin(&path).is_ok_and(|pinned| pinned.max_entries() < COUNTER_ENTRIES);
    if is_outgrown {
        std::fs::remove_file(&path).map_err(|error| OpenError::File { path, error })?;
        info!("the counters of an earlier build have too little room and begin anew");
    }
    Ok(())
}

/// Without its pin, a map would be lost with the agent.
pub fn check_maps(object: &Ebpf) -> Result<(), OpenError> {
    let known = maps(&Sizes::default()).map(|(name, _)| name);
    // The arrays of parts are pinned beside their programs, and what a trace build logs is nobody's later.
    let is_known = |name: &str| {
        name.starts_with('.')
            || known.contains(&name)
            || PART_ARRAYS.contains(&name)
            || TRACE_MAPS.contains(&name)
    };
    let unknown = object.maps().map(|(name, _)| name).find(|name| !is_known(name));
    unknown.map_or(Ok(()), |name| Err(OpenError::UnknownMap { map: name.to_owned() }))
}

/// Returns the entries of a map in which each CPU uses only its own.
fn per_cpu(entries: u32) -> u32 {
    let cpus = aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok());
    cpus.unwrap_or(1).saturating_mul(entries)
}

/// Returns the map whose ids index a map; the map itself if there is none.
pub fn indexed_as(name: &str) -> &str {
    match name {
        "HOPS4" | "BACKEND_CONNECTIONS4" => "BACKENDS4",
        "HOPS6" | "BACKEND_CONNECTIONS6" => "BACKENDS6",
        "SERVICE_CONNECTIONS" | "SERVICE_HANDSHAKES" => "SERVICES",
        "NARROWED" => "WAYS",
        _ => name,
    }
}
