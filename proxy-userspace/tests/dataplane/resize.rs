//! Maps of another size: an agent replaces them, and connections keep their entries.

use std::fs;

use anyhow::Result;
use aya::maps::{Array, HashMap, Map, MapData, MapInfo, MapType};
use millrace::dataplane::Dataplane;
use millrace::dataplane::ebpf::read::PinnedMaps;
use millrace::dataplane::ebpf::{EbpfDataplane, Settings, Sizes};
use millrace_lab::program::monotonic_seconds;
use proxy_common::Addr4;
use proxy_common::config::AGENT_HOLD;
use proxy_common::flow::{FLOW_ESTABLISHED, FLOW_REPLY, FLOW_REWRITE_DESTINATION, Flow, FlowKey};

use crate::attach::{attached, in_namespace, topology};
use crate::support::{Scratch, all, desired, key, port};

type Flows = HashMap<MapData, FlowKey<Addr4>, Flow<Addr4>>;

fn flows(scratch: &Scratch, directory: &str) -> Result<Flows> {
    let map = MapData::from_pin(scratch.root().join(directory).join("FLOWS4"))?;
    // An LRU map of a former layout, too.
    Ok(Map::from_map_data(map)?.try_into()?)
}

fn flow_key(client: u16) -> FlowKey<Addr4> {
    let (source, destination) = (Addr4([1]), Addr4([2]));
    FlowKey { source, destination, source_port: client, protocol: 6, ..FlowKey::default() }
}

/// Writes both entries of a connection, last seen that many seconds ago.
fn connect(flows: &mut Flows, service: u32, client: u16, silence: u32) -> Result<()> {
    let last_seen = u32::try_from(monotonic_seconds())? - silence;
    let request = Flow {
        source: Addr4([1]),
        source_port: client,
        destination: Addr4([3]),
        flags: FLOW_REWRITE_DESTINATION,
        state: FLOW_ESTABLISHED,
        service,
        last_seen,
        ..Flow::default()
    };
    let twin = request.twin(&flow_key(client));
    let reply = Flow { flags: FLOW_REPLY, destination: Addr4([1]), destination_port: client, ..request };
    flows.insert(flow_key(client), request, 0)?;
    flows.insert(twin, reply, 0)?;
    Ok(())
}

/// Serves a Service at eth0 with that many connections, and returns the settings. The higher a client's number is, the
/// longer it is silent.
fn serve(scratch: &Scratch, connections: u16) -> Result<Settings> {
    let state = desired([(key("web"), port(1, 3))]);
    let mut dataplane = EbpfDataplane::open(scratch.settings())?;
    assert!(dataplane.sync(&state, &all(&state)).is_complete());
    assert!(dataplane.set_topology(&topology("eth0")).is_complete());
    let service = PinnedMaps::open(&scratch.path)?.services()?.first().map(|view| view.id).unwrap();
    let mut table = flows(scratch, "maps")?;
    for client in 1..=connections {
        connect(&mut table, service, client, client.into())?;
    }
    Ok(scratch.settings())
}

/// Returns the numbers of the clients with both entries.
fn clients(flows: &Flows) -> Vec<u16> {
    let has_both = |client: &u16| {
        let request = flows.get(&flow_key(*client), 0);
        request.is_ok_and(|flow| flows.get(&flow.twin(&flow_key(*client)), 0).is_ok())
    };
    (1..=200).filter(has_both).collect()
}

fn with_flows(settings: &Settings, flows: u32) -> Settings {
    Settings { sizes: Sizes { flows, ..settings.sizes }, ..settings.clone() }
}

fn size(scratch: &Scratch, map: &str) -> Result<u32> {
    Ok(MapInfo::from_pin(scratch.root().join("maps").join(map))?.max_entries())
}

/// Returns whether pins of former maps are left, at any step of a replacement.
fn has_former(scratch: &Scratch) -> bool {
    ["former-maps", "leaving-maps", "replaced-maps"].iter().any(|name| scratch.root().join(name).exists())
}

#[test]
fn flow_tables_get_the_size_of_the_setting_and_connections_keep_their_entries() -> Result<()> {
    in_namespace("resize-flows", async || {
        let scratch = Scratch::new();
        let settings = serve(&scratch, 100)?;
        let before = attached(&scratch);
        for wanted in [4096, 256, 1024] {
            drop(EbpfDataplane::open(with_flows(&settings, wanted))?);
            assert_eq!((size(&scratch, "FLOWS4")?, size(&scratch, "FLOWS6")?), (wanted, wanted));
            assert_eq!(clients(&flows(&scratch, "maps")?).len(), 100, "{wanted}");
            assert!(!has_former(&scratch));
            let after = attached(&scratch);
            assert_eq!(after.len(), before.len());
            assert!(after.iter().all(|now| before.iter().all(|then| then.program_id != now.program_id)));
            let agent =
                Array::<_, u64>::try_from(Map::Array(MapData::from_pin(scratch.root().join("maps/AGENT"))?))?;
            assert_eq!(agent.get(&AGENT_HOLD, 0)?, 0, "connections move to FLOWS again");
        }
        let programs = fs::read_dir(scratch.root().join("programs"))?.count();
        assert_eq!(programs, 1, "those of former maps are gone");
        Ok(())
    })
}

#[test]
fn a_smaller_table_keeps_the_connections_with_the_latest_packets() -> Result<()> {
    in_namespace("resize-less", async || {
        let scratch = Scratch::new();
        let settings = serve(&scratch, 120)?;
        drop(EbpfDataplane::open(with_flows(&settings, 64))?);
        assert_eq!(clients(&flows(&scratch, "maps")?), (1..=32).collect::<Vec<_>>());
        Ok(())
    })
}

/// Layouts 1 to 8 had an LRU map.
#[test]
fn a_table_of_a_former_layout_is_replaced_with_its_entries() -> Result<()> {
    in_namespace("resize-lru", async || {
        let scratch = Scratch::new();
        let settings = serve(&scratch, 0)?;
        let lru = scratch.root().join("maps/FLOWS_NEW4");
        let pin = scratch.root().join("maps/FLOWS4");
        fs::remove_file(&pin)?;
        MapData::from_pin(&lru)?.pin(&pin)?;
        let mut table = flows(&scratch, "maps")?;
        connect(&mut table, 1, 7, 0)?;
        drop(EbpfDataplane::open(settings)?);
        assert_eq!(MapInfo::from_pin(&pin)?.map_type()?, MapType::Hash);
        assert_eq!(clients(&flows(&scratch, "maps")?), [7]);
        Ok(())
    })
}

#[test]
fn maps_grow_with_the_services_and_keep_their_content() -> Result<()> {
    in_namespace("resize-services", async || {
        let scratch = Scratch::new();
        let settings = serve(&scratch, 10)?;
        let before = PinnedMaps::open(&scratch.path)?;
        let (services, backends) = (before.services()?, before.backends()?);
        let sizes = Sizes { services: 128, backends: 512, slots: 4096, frontends: 256, ..settings.sizes };
        let mut dataplane = EbpfDataplane::open(Settings { sizes, ..settings })?;
        for (map, wanted) in [("SERVICES", 128), ("SERVICE_STATS", 128), ("BACKENDS4", 512), ("HOPS6", 512)] {
            assert_eq!(size(&scratch, map)?, wanted, "{map}");
        }
        let after = PinnedMaps::open(&scratch.path)?;
        assert_eq!(format!("{:?}", after.services()?), format!("{services:?}"));
        assert_eq!(format!("{:?}", after.backends()?), format!("{backends:?}"));
        let state = desired([(key("web"), port(1, 3))]);
        assert!(dataplane.set_topology(&topology("eth0")).is_complete());
        let report = dataplane.sync(&state, &all(&state));
        assert_eq!((report.writes, report.is_complete()), (0, true), "the content is the former agent's");
        assert_eq!(clients(&flows(&scratch, "maps")?).len(), 10, "FLOWS has the size it had");
        Ok(())
    })
}

/// Moves the pins of two maps to a directory, as an agent does that is killed then.
fn move_aside(scratch: &Scratch, directory: &str) -> Result<()> {
    let former = scratch.root().join(directory);
    fs::create_dir(&former)?;
    for map in ["FLOWS4", "SERVICES"] {
        fs::rename(scratch.root().join("maps").join(map), former.join(map))?;
    }
    Ok(())
}

/// Pins empty maps of that size in the place of those two, as the loader makes them.
fn make_new(scratch: &Scratch, flows: u32) -> Result<()> {
    let other = Scratch::new();
    drop(EbpfDataplane::open(with_flows(&other.settings(), flows))?);
    for map in ["FLOWS4", "SERVICES"] {
        MapData::from_pin(other.root().join("maps").join(map))?.pin(scratch.root().join("maps").join(map))?;
    }
    Ok(())
}

#[test]
fn pins_that_a_killed_agent_moved_aside_go_back_before_any_link_has_another_program() -> Result<()> {
    for has_new in [false, true] {
        in_namespace(&format!("resize-killed-{has_new}"), async move || {
            let scratch = Scratch::new();
            let settings = serve(&scratch, 50)?;
            let before = attached(&scratch);
            move_aside(&scratch, "former-maps")?;
            if has_new {
                make_new(&scratch, 2048)?;
            }
            drop(EbpfDataplane::open(settings)?);
            assert_eq!(size(&scratch, "FLOWS4")?, 256);
            assert_eq!(clients(&flows(&scratch, "maps")?).len(), 50);
            assert_eq!(attached(&scratch), before, "the same programs with the same maps");
            assert!(!has_former(&scratch));
            Ok(())
        })?;
    }
    Ok(())
}

/// Some links may run programs with the new maps, and some with the former ones.
#[test]
fn a_replacement_that_a_killed_agent_began_is_completed_with_the_entries_of_both_maps() -> Result<()> {
    in_namespace("resize-half", async || {
        let scratch = Scratch::new();
        let settings = serve(&scratch, 50)?;
        move_aside(&scratch, "leaving-maps")?;
        make_new(&scratch, 2048)?;
        let mut table = flows(&scratch, "maps")?;
        connect(&mut table, 1, 150, 0)?;
        // One that was opened anew, and is not confirmed.
        let reopened = flow_key(7);
        let embryos = MapData::from_pin(scratch.root().join("maps/FLOWS_NEW4"))?;
        let mut embryos: Flows = Map::from_map_data(embryos)?.try_into()?;
        embryos.insert(reopened, Flow { last_seen: u32::MAX, ..Flow::default() }, 0)?;
        drop(EbpfDataplane::open(with_flows(&settings, 2048))?);
        let kept = clients(&flows(&scratch, "maps")?);
        let expected: Vec<u16> = (1..=50).filter(|client| *client != 7).chain([150]).collect();
        assert_eq!(kept, expected);
        assert!(!has_former(&scratch));
        Ok(())
    })
}

#[test]
fn maps_that_no_link_uses_any_more_are_only_removed() -> Result<()> {
    in_namespace("resize-last", async || {
        let scratch = Scratch::new();
        let settings = serve(&scratch, 50)?;
        move_aside(&scratch, "replaced-maps")?;
        make_new(&scratch, 256)?;
        let before = size(&scratch, "SERVICES")?;
        drop(EbpfDataplane::open(settings)?);
        assert_eq!((clients(&flows(&scratch, "maps")?), size(&scratch, "SERVICES")?), (Vec::new(), before));
        assert!(!has_former(&scratch));
        Ok(())
    })
}
