//! Take-over from agents with another map layout.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use aya::maps::{Array, HashMap, Map, MapData, MapInfo};
use aya::programs::links::{FdLink, PinnedLink};
use millrace::dataplane::ebpf::read::{AttachedView, PinnedMaps};
use millrace::dataplane::ebpf::{EbpfDataplane, OpenError, Settings};
use millrace::dataplane::{Dataplane, Mark};
use millrace::model::{Desired, Dirty};
use millrace::node::Topology;
use millrace_lab::net::{Namespace, Netlink};
use nix::sched::{CloneFlags, unshare};
use proxy_common::flow::{FLOW_ESTABLISHED, Flow, FlowKey};
use proxy_common::verdict::COUNTER_ENTRIES;
use proxy_common::{Addr4, LAYOUT_VERSION};

use crate::attach::{attached, in_namespace, topology};
use crate::support::{Scratch, all, closed, desired, key, port};

/// A layout that this agent does not know.
const UNKNOWN: u32 = LAYOUT_VERSION + 1;
/// The maps that layouts 2 to 9 added.
const NEW_MAPS: [(u32, &str); 34] = [
    (2, "AFFINITY4"),
    (2, "AFFINITY6"),
    (2, "SOURCE_RANGES4"),
    (2, "SOURCE_RANGES6"),
    (3, "DEVICES"),
    (3, "FRAGMENTS4"),
    (3, "FRAGMENTS6"),
    (3, "HELD"),
    (3, "HOPS4"),
    (3, "HOPS6"),
    (3, "ICMP_SOURCES"),
    (3, "ICMP_TOTAL"),
    (3, "VIPS"),
    (3, "KEYS4"),
    (3, "KEYS6"),
    (3, "LINKS"),
    (3, "SCRATCH4"),
    (3, "SCRATCH6"),
    (3, "NARROWED"),
    (3, "BUFFER"),
    (3, "SOCK_REV4"),
    (3, "SOCK_REV6"),
    (3, "SOCK_TCP4"),
    (3, "SOCK_TCP6"),
    (4, "ANSWERS"),
    (4, "SNAT_FULL"),
    (4, "NODE_FLOWS4"),
    (4, "NODE_FLOWS6"),
    (4, "NODE_PORTS"),
    (5, "ADDRESS_FILTER"),
    (6, "FRONTEND_INDEX4"),
    (6, "FRONTEND_INDEX6"),
    (9, "DEVICE_MACS"),
    (9, "ANNOUNCED"),
];

fn root(scratch: &Scratch, version: u32) -> PathBuf {
    scratch.path.join(format!("millrace/v{version}"))
}

fn flow_key() -> FlowKey<Addr4> {
    FlowKey { source: Addr4([1]), destination: Addr4([2]), source_port: 7, protocol: 6, ..FlowKey::default() }
}

/// Serves `state` at eth0 with one connection, then leaves everything as layout `version`. The
/// programs differ from those of [`Scratch::settings`].
fn leave_behind(scratch: &Scratch, state: &Desired, version: u32) -> Result<()> {
    let settings = Settings { mark: Mark { value: 0, mask: 0 }, ..scratch.settings() };
    let mut former = EbpfDataplane::open(settings)?;
    assert!(former.sync(state, &all(state)).is_complete());
    assert!(former.set_topology(&topology("eth0")).is_complete());
    drop(former);
    let services = PinnedMaps::open(&scratch.path)?.services()?;
    let [service] = &services[..] else { panic!("{services:?}") };
    let service = service.id;
    let flows = MapData::from_pin(root(scratch, LAYOUT_VERSION).join("maps/FLOWS4"))?;
    let mut flows: HashMap<_, FlowKey<Addr4>, Flow<Addr4>> = Map::from_map_data(flows)?.try_into()?;
    let flow = Flow { state: FLOW_ESTABLISHED, service, last_seen: u32::MAX, ..Flow::default() };
    flows.insert(flow_key(), flow, 0)?;
    fs::rename(root(scratch, LAYOUT_VERSION), root(scratch, version))?;
    Ok(())
}

/// An earlier build of this layout has fewer programs.
#[test]
fn counters_without_room_for_all_programs_begin_anew() -> Result<()> {
    let scratch = Scratch::new();
    drop(scratch.open());
    let maps = root(&scratch, LAYOUT_VERSION).join("maps");
    fs::remove_file(maps.join("COUNTERS"))?;
    // SERVICE_STATS has the same kind of counters, with room for the 64 Services of a test.
    MapData::from_pin(maps.join("SERVICE_STATS"))?.pin(maps.join("COUNTERS"))?;
    assert!(MapInfo::from_pin(maps.join("COUNTERS"))?.max_entries() < COUNTER_ENTRIES);
    drop(scratch.open());
    assert_eq!(MapInfo::from_pin(maps.join("COUNTERS"))?.max_entries(), COUNTER_ENTRIES);
    Ok(())
}

/// An earlier build of this layout has no DEVICE_MACS.
#[test]
fn a_map_that_an_earlier_build_of_the_layout_lacks_is_made_and_readers_do_without() -> Result<()> {
    let scratch = Scratch::new();
    drop(scratch.open());
    let map = root(&scratch, LAYOUT_VERSION).join("maps/DEVICE_MACS");
    fs::remove_file(&map)?;
    PinnedMaps::open(&scratch.path)?.status()?;
    let mut dataplane = scratch.open();
    assert!(dataplane.set_topology(&topology("lo")).is_complete());
    assert!(map.exists());
    Ok(())
}

/// Removes the maps that a former layout did not have.
fn forget_new_maps(scratch: &Scratch, version: u32) -> Result<()> {
    let new = NEW_MAPS.iter().filter(|(since, _)| *since > version);
    for (_, map) in new {
        fs::remove_file(root(scratch, version).join("maps").join(map))?;
    }
    Ok(())
}

/// Returns the kernel's ids of the links below a layout's root, by name.
fn link_ids(root: &Path) -> Result<BTreeMap<String, u32>> {
    let mut ids = BTreeMap::new();
    for entry in fs::read_dir(root.join("links"))? {
        let path = entry?.path();
        let link = FdLink::from(PinnedLink::from_pin(&path)?);
        ids.insert(path.file_name().unwrap().to_string_lossy().into_owned(), link.info()?.id());
    }
    Ok(ids)
}

/// Returns whether ADDRESS_FILTER has any bit.
fn looks_at_some_address(scratch: &Scratch) -> Result<bool> {
    let map = MapData::from_pin(root(scratch, LAYOUT_VERSION).join("maps/ADDRESS_FILTER"))?;
    let filter = Array::<_, u64>::try_from(Map::Array(map))?;
    Ok(filter.iter().any(|word| word.is_ok_and(|word| word != 0)))
}

fn map_id(root: &Path, name: &str) -> Result<u32> {
    Ok(MapInfo::from_pin(root.join("maps").join(name))?.id())
}

fn program_ids(attached: &[AttachedView]) -> BTreeSet<u32> {
    attached.iter().map(|view| view.program_id).collect()
}

fn layouts(scratch: &Scratch) -> Vec<String> {
    let entries = fs::read_dir(scratch.path.join("millrace")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn flows_ids_and_links_of_former_layouts_live_on_under_our_programs() -> Result<()> {
    for version in [1, 2, 3, 4, 5] {
        in_namespace(&format!("migrate-{version}"), async move || migrate(version))?;
    }
    Ok(())
}

fn migrate(version: u32) -> Result<()> {
    let scratch = Scratch::new();
    let state = desired([(key("web"), port(1, 3))]);
    leave_behind(&scratch, &state, version)?;
    forget_new_maps(&scratch, version)?;
    // Before layout 4 its keys were shorter. Any other map has a different shape, too.
    let maps = root(&scratch, version).join("maps");
    if maps.join("ICMP_SOURCES").exists() {
        fs::remove_file(maps.join("ICMP_SOURCES"))?;
        MapData::from_pin(maps.join("COUNTERS"))?.pin(maps.join("ICMP_SOURCES"))?;
    }
    let links = link_ids(&root(&scratch, version))?;
    assert_eq!(links.len(), 3);
    let selection = map_id(&root(&scratch, version), "SELECTION")?;

    let mut dataplane = scratch.open();
    assert_eq!(layouts(&scratch), [format!("v{LAYOUT_VERSION}")]);
    assert_eq!(link_ids(&root(&scratch, LAYOUT_VERSION))?, links, "links were never gone");
    assert_eq!(map_id(&root(&scratch, LAYOUT_VERSION), "SELECTION")?, selection);
    assert!(looks_at_some_address(&scratch)?, "our programs run, and pass what they don't look at");
    let maps = PinnedMaps::open(&scratch.path)?;
    assert_eq!(maps.flows(10, |_, _| true)?.len(), 1);
    let renewed = attached(&scratch);
    assert_eq!(program_ids(&renewed).len(), 3);

    let topology = dataplane.set_topology(&topology("eth0"));
    assert_eq!(topology.writes, 0, "all links run our programs already");
    let devices = usize::from(version < 3);
    let synced = dataplane.sync(&state, &all(&state));
    assert_eq!(synced.writes, devices, "ids and slots are the former agent's, devices those of layout 3");
    assert_eq!(attached(&scratch), renewed);
    Ok(())
}

#[test]
fn no_program_of_layout_1_runs_when_source_ranges_are_first_written() -> Result<()> {
    in_namespace("migrate-closed", async || {
        let scratch = Scratch::new();
        let state = desired([(key("web"), port(1, 3))]);
        leave_behind(&scratch, &state, 1)?;
        let former = root(&scratch, 1).join("programs");
        let former = fs::read_dir(former)?.next().unwrap()?.path();
        let ids = ["xdp_ingress", "tc_ingress", "tc_egress"]
            .map(|name| aya::programs::ProgramInfo::from_pin(former.join(name)).unwrap().id());
        forget_new_maps(&scratch, 1)?;
        let mut dataplane = scratch.open();
        assert!(program_ids(&attached(&scratch)).is_disjoint(&ids.into()));
        let state = desired([(key("web"), closed(port(1, 3), &["10.0.0.0/8"]))]);
        assert!(dataplane.sync(&state, &all(&state)).is_complete());
        let services = PinnedMaps::open(&scratch.path)?.services()?;
        assert!(services[0].frontends.iter().all(|frontend| frontend.source_ranges.is_some()));
        Ok(())
    })
}

#[test]
fn an_agent_killed_while_it_takes_over_goes_on_when_it_starts_again() -> Result<()> {
    in_namespace("migrate-killed", async || {
        let scratch = Scratch::new();
        let state = desired([(key("web"), port(1, 3))]);
        leave_behind(&scratch, &state, 1)?;
        forget_new_maps(&scratch, 1)?;
        let (former, ours) = (root(&scratch, 1), root(&scratch, LAYOUT_VERSION));
        let (links, services) = (link_ids(&former)?, map_id(&former, "SERVICES")?);
        // One map and one link are pinned twice. Another map is no longer pinned at its place.
        for directory in ["maps", "links"] {
            fs::create_dir_all(ours.join(directory))?;
        }
        MapData::from_pin(former.join("maps/SERVICES"))?.pin(ours.join("maps/SERVICES"))?;
        MapData::from_pin(former.join("maps/WAYS"))?.pin(ours.join("maps/WAYS"))?;
        fs::remove_file(former.join("maps/WAYS"))?;
        let link = links.keys().next().unwrap();
        FdLink::from(PinnedLink::from_pin(former.join("links").join(link))?)
            .pin(ours.join("links").join(link))?;

        let mut dataplane = scratch.open();
        assert_eq!(layouts(&scratch), [format!("v{LAYOUT_VERSION}")]);
        assert_eq!((link_ids(&ours)?, map_id(&ours, "SERVICES")?), (links, services));
        assert_eq!(dataplane.sync(&state, &all(&state)).writes, 0);
        Ok(())
    })
}

#[test]
fn another_layout_serves_until_our_maps_are_filled_and_its_links_are_ours_then() -> Result<()> {
    for version in [0, 9] {
        in_namespace(&format!("replace-{version}"), async move || replace(version))?;
    }
    Ok(())
}

fn replace(version: u32) -> Result<()> {
    let scratch = Scratch::new();
    let state = desired([(key("web"), port(1, 3))]);
    leave_behind(&scratch, &state, version)?;
    let other = root(&scratch, version);
    let links = link_ids(&other)?;

    let mut dataplane = scratch.open();
    assert!(dataplane.set_topology(&topology("eth0")).is_complete());
    assert_eq!(link_ids(&other)?, links, "our maps are empty");
    let incomplete = Dirty { incomplete: true, ..all(&state) };
    assert!(dataplane.sync(&Desired::default(), &incomplete).is_complete());
    assert_eq!(link_ids(&other)?, links, "not everything could be read");

    let report = dataplane.sync(&state, &all(&state));
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(layouts(&scratch), [format!("v{LAYOUT_VERSION}")]);
    assert_eq!(link_ids(&root(&scratch, LAYOUT_VERSION))?, links, "each was given our program in one step");
    assert_eq!(program_ids(&attached(&scratch)).len(), 3);
    assert_eq!(dataplane.set_topology(&topology("eth0")).writes, 0);
    assert_eq!(PinnedMaps::open(&scratch.path)?.services()?.len(), 1);
    Ok(())
}

/// Returns the inodes of the pins below a layout's root. A new pin has another inode.
fn pins(root: &Path) -> Result<BTreeMap<String, u64>> {
    let mut pins = BTreeMap::new();
    for entry in fs::read_dir(root.join("links"))? {
        let entry = entry?;
        pins.insert(entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.ino());
    }
    Ok(pins)
}

#[test]
fn a_pin_moves_to_our_layout_in_one_step() -> Result<()> {
    in_namespace("replace-pins", async || {
        let scratch = Scratch::new();
        let state = desired([(key("web"), port(1, 3))]);
        leave_behind(&scratch, &state, UNKNOWN)?;
        let before = pins(&root(&scratch, UNKNOWN))?;
        assert_eq!(before.len(), 3);
        let mut dataplane = scratch.open();
        dataplane.set_topology(&topology("eth0"));
        assert!(dataplane.sync(&state, &all(&state)).is_complete());
        assert_eq!(pins(&root(&scratch, LAYOUT_VERSION))?, before);
        Ok(())
    })
}

#[test]
fn links_that_a_killed_agent_left_in_two_layouts_stay_attached() -> Result<()> {
    in_namespace("replace-killed", async || {
        let scratch = Scratch::new();
        let state = desired([(key("web"), port(1, 3))]);
        leave_behind(&scratch, &state, UNKNOWN)?;
        let (other, ours) = (root(&scratch, UNKNOWN), root(&scratch, LAYOUT_VERSION));
        let links = link_ids(&other)?;
        fs::create_dir_all(ours.join("links"))?;
        for name in links.keys() {
            let link = FdLink::from(PinnedLink::from_pin(other.join("links").join(name))?);
            link.pin(ours.join("links").join(name))?;
        }
        let mut dataplane = scratch.open();
        assert!(dataplane.set_topology(&topology("eth0")).is_complete());
        assert!(dataplane.sync(&state, &all(&state)).is_complete());
        assert_eq!(layouts(&scratch), [format!("v{LAYOUT_VERSION}")]);
        assert_eq!(link_ids(&ours)?, links);
        assert_eq!(attached(&scratch).len(), 3);
        assert_eq!(dataplane.set_topology(&topology("eth0")).writes, 0, "nothing was detached");
        Ok(())
    })
}

#[test]
fn another_layout_that_serves_nothing_does_not_delay_the_start() -> Result<()> {
    in_namespace("replace-empty", async || {
        let scratch = Scratch::new();
        let state = desired([(key("web"), port(1, 3))]);
        leave_behind(&scratch, &state, UNKNOWN)?;
        // The device of its links was deleted, and another one was made.
        Netlink::open()?.delete_link("eth0").await?;
        let peer = Namespace::create("replace-empty-next")?;
        let netlink = Netlink::open()?;
        netlink.add_veth("eth1", "eth1", &peer.file()?).await?;
        netlink.set_up("eth1").await?;

        let mut dataplane = scratch.open();
        let incomplete = Dirty { incomplete: true, ..all(&state) };
        let report = dataplane.set_topology(&topology("eth1"));
        assert!(report.is_complete(), "{report:?}");
        assert!(dataplane.sync(&state, &incomplete).is_complete());
        assert_eq!(attached(&scratch).len(), 3, "an unreadable object must not delay the others");
        assert_eq!(dataplane.set_topology(&topology("eth1")).writes, 0);
        assert!(root(&scratch, UNKNOWN).exists());
        assert!(dataplane.sync(&state, &all(&state)).is_complete());
        assert_eq!(layouts(&scratch), [format!("v{LAYOUT_VERSION}")]);
        assert_eq!(attached(&scratch).len(), 3);
        Ok(())
    })
}

#[test]
fn unwanted_links_of_another_layout_are_detached() -> Result<()> {
    in_namespace("replace-surplus", async || {
        let scratch = Scratch::new();
        let state = desired([(key("web"), port(1, 3))]);
        leave_behind(&scratch, &state, UNKNOWN)?;
        let mut dataplane = scratch.open();
        dataplane.set_topology(&Topology::default());
        assert!(dataplane.sync(&state, &all(&state)).is_complete());
        assert_eq!(layouts(&scratch), [format!("v{LAYOUT_VERSION}")]);
        assert!(attached(&scratch).is_empty());
        // The hook is free at once.
        let other = Scratch::new();
        assert_eq!(other.open().set_topology(&topology("eth0")).writes, 3);
        Ok(())
    })
}

#[test]
fn pins_of_another_layout_and_network_namespace_are_refused() {
    let scratch = Scratch::new();
    drop(scratch.open());
    fs::rename(root(&scratch, LAYOUT_VERSION), root(&scratch, 1)).unwrap();
    let in_namespace = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let error = EbpfDataplane::open(scratch.settings()).unwrap_err();
        assert!(matches!(error, OpenError::OtherNamespace { .. }), "{error}");
        assert_eq!(layouts(&scratch), ["v1"]);
    };
    std::thread::spawn(in_namespace).join().unwrap();
}
