//! The content of the maps after a sync.

use millrace::dataplane::Dataplane;
use millrace::dataplane::ebpf::EbpfDataplane;
use millrace::dataplane::ebpf::read::{FailuresView, FrontendView, PinnedMaps};
use millrace::model::Desired;

use crate::support::{Scratch, all, closed, desired, dsr, key, port};

fn two_services() -> Desired {
    desired([(key("web"), port(1, 3)), (key("dsr"), dsr(2, 2))])
}

#[test]
fn a_synced_state_is_read_back() {
    let scratch = Scratch::new();
    let mut dataplane = scratch.open();
    let state = two_services();
    let report = dataplane.sync(&state, &all(&state));
    assert!(report.is_complete(), "{report:?}");
    let maps = PinnedMaps::open(&scratch.path).unwrap();

    let services = maps.services().unwrap();
    let names: Vec<_> = services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["dsr", "web"]);
    let [dsr, web] = &services[..] else { panic!("{services:?}") };
    assert_eq!((&*dsr.algorithm, dsr.slots, &*web.algorithm, web.slots), ("maglev", 251, "random", 3));
    assert_eq!(
        web.backends.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.1.1:8080", "10.0.1.2:8080", "10.0.1.3:8080"]
    );
    assert_eq!(dsr.backends.len(), 2);
    assert_eq!(
        dsr.frontends.iter().map(frontend).collect::<Vec<_>>(),
        [
            ("192.0.2.2:80".to_owned(), "TCP", "external", "LoadBalancer", "dsr"),
            ("192.0.2.2:80".to_owned(), "TCP", "internal", "LoadBalancer", "snat"),
        ]
    );

    let backends = maps.backends().unwrap();
    assert_eq!(backends.len(), 5);
    assert!(backends.iter().all(|backend| backend.exists && backend.ready && backend.hint != 0));
    let remote = backends.iter().find(|backend| !backend.local).unwrap();
    assert_eq!(remote.node, Some([172, 16, 0, 2].into()));
    assert_eq!(remote.services, ["default/web:http"]);

    let ways = maps.ways().unwrap();
    assert_eq!(
        ways.iter().map(|way| (way.target, way.resolved)).collect::<Vec<_>>(),
        [([172, 16, 0, 2].into(), false)]
    );
}

#[test]
fn a_restart_writes_nothing_when_nothing_changed() {
    let scratch = Scratch::new();
    let state = two_services();
    let mut dataplane = scratch.open();
    assert!(dataplane.sync(&state, &all(&state)).writes > 0);
    assert_eq!(dataplane.sync(&state, &all(&state)).writes, 0);
    let before = PinnedMaps::open(&scratch.path).unwrap().services().unwrap();
    drop(dataplane);

    let mut restarted = scratch.open();
    let report = restarted.sync(&state, &all(&state));
    assert_eq!(report.writes, 0, "{report:?}");
    assert_eq!(PinnedMaps::open(&scratch.path).unwrap().services().unwrap(), before);
}

#[test]
fn services_deleted_while_no_agent_ran_are_removed_and_the_rest_keep_their_ids() {
    let scratch = Scratch::new();
    let state = two_services();
    let mut dataplane = scratch.open();
    dataplane.sync(&state, &all(&state));
    let maps = PinnedMaps::open(&scratch.path).unwrap();
    let id = |name: &str| maps.services().unwrap().iter().find(|view| view.name == name).map(|view| view.id);
    let web = id("web");
    drop(dataplane);

    let mut restarted = scratch.open();
    let state = desired([(key("web"), port(1, 2)), (key("new"), port(3, 1))]);
    let report = restarted.sync(&state, &all(&state));
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(id("web"), web);
    assert_eq!(id("dsr"), None);
    let new = id("new");
    assert!(new.is_some() && new != web);
    let living = maps.backends().unwrap().into_iter().filter(|backend| backend.exists);
    assert_eq!(
        living.map(|backend| backend.address.to_string()).collect::<Vec<_>>(),
        ["10.0.1.1:8080", "10.0.1.2:8080", "10.0.3.1:8080"]
    );
}

#[test]
fn a_full_map_leaves_one_service_pending_and_the_others_served() {
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    // The kernel's hash maps hold exactly the size that they were made with. Each Service has two
    // frontends.
    settings.sizes.frontends = 4;
    let mut dataplane = EbpfDataplane::open(settings).unwrap();
    let mut state = desired([(key("a"), port(1, 1)), (key("b"), port(2, 1)), (key("c"), port(3, 1))]);
    let report = dataplane.sync(&state, &all(&state));
    let [(pending, why)] = &report.pending[..] else { panic!("{report:?}") };
    assert_eq!(*pending, key("c"));
    assert_eq!(why, "FRONTENDS4 is full: it has 4 entries");
    let maps = PinnedMaps::open(&scratch.path).unwrap();
    assert_eq!(maps.services().unwrap().len(), 2);

    state.ports.remove(&key("a"));
    let report = dataplane.sync(&state, &all(&state));
    assert_eq!(report.pending.len(), 1, "room is made after it was asked for");
    let removed = millrace::model::Dirty { ports: [key("a")].into(), ..Default::default() };
    dataplane.sync(&state, &removed);
    let report = dataplane.sync(&state, &millrace::model::Dirty::default());
    assert!(report.is_complete(), "{report:?}");
    let names: Vec<_> = maps.services().unwrap().into_iter().map(|view| view.name).collect();
    assert_eq!(names, ["b", "c"]);
}

#[test]
fn source_ranges_affinity_and_the_clusters_own_sources_are_read_back_and_found_again() {
    let scratch = Scratch::new();
    let ranges = ["10.0.0.0/8", "192.0.2.0/24"];
    let web = millrace::model::ServicePort { affinity_seconds: 600, ..closed(port(1, 1), &ranges) };
    let mut state = desired([(key("nobody"), closed(port(2, 1), &[])), (key("web"), web)]);
    let inside = ["10.1.0.0/16", "fd00::/64"];
    state.cluster_sources = inside.iter().map(|net| net.parse().unwrap()).collect();
    let mut dataplane = scratch.open();
    assert!(dataplane.sync(&state, &all(&state)).is_complete());
    drop(dataplane);

    let maps = PinnedMaps::open(&scratch.path).unwrap();
    let services = serde_json::to_value(maps.services().unwrap()).unwrap();
    assert_eq!(services[0]["frontends"][0]["source_ranges"], serde_json::json!([]));
    assert_eq!(services[1]["frontends"][0]["source_ranges"], serde_json::json!(ranges));
    assert_eq!(services[1]["frontends"][0]["affinity_seconds"], 600);
    let status = maps.status().unwrap();
    assert_eq!(status.cluster_sources.iter().map(ToString::to_string).collect::<Vec<_>>(), inside);
    let used = |name: &str| status.maps.iter().find(|map| map.name == name).unwrap().used;
    assert_eq!(
        (used("SOURCE_RANGES4"), used("SOURCE_RANGES6"), used("AFFINITY4")),
        (Some(3), Some(1), Some(0))
    );

    let mut restarted = scratch.open();
    assert_eq!(restarted.sync(&state, &all(&state)).writes, 0);
    state.cluster_sources.clear();
    state.ports.remove(&key("web"));
    let removed = millrace::model::Dirty { ports: [key("web")].into(), nodes: true, ..Default::default() };
    assert!(restarted.sync(&state, &removed).is_complete());
    let maps = maps.status().unwrap().maps;
    let ranges = maps.iter().filter(|map| map.name.starts_with("SOURCE_RANGES"));
    assert_eq!(ranges.map(|map| map.used).collect::<Vec<_>>(), [Some(0), Some(0)]);
}

#[test]
fn a_full_map_of_source_ranges_closes_a_service_and_leaves_the_others_alone() {
    let scratch = Scratch::new();
    let mut settings = scratch.settings();
    settings.sizes.source_ranges = 1;
    let mut dataplane = EbpfDataplane::open(settings).unwrap();
    let mut state = desired([(key("a"), port(1, 1)), (key("b"), port(2, 1))]);
    assert!(dataplane.sync(&state, &all(&state)).is_complete());
    state.ports.insert(key("a"), closed(port(1, 1), &["10.0.0.0/8", "192.0.2.0/24"]));
    let report = dataplane.sync(&state, &all(&state));
    let [(pending, why)] = &report.pending[..] else { panic!("{report:?}") };
    assert_eq!((pending, why.as_str()), (&key("a"), "SOURCE_RANGES4 is full: it has 1 entries"));
    let maps = PinnedMaps::open(&scratch.path).unwrap();
    assert_eq!(maps.status().unwrap().failures, FailuresView { service_ports: 1, ..FailuresView::default() });
    let services = maps.services().unwrap();
    let ranges = |n: usize| services[n].frontends[0].source_ranges.as_ref().map(Vec::len);
    assert_eq!((ranges(0), ranges(1)), (Some(1), None));
}

#[test]
fn readers_see_the_heartbeat() {
    let scratch = Scratch::new();
    let mut dataplane = scratch.open();
    let maps = PinnedMaps::open(&scratch.path).unwrap();
    assert_eq!(maps.status().unwrap().heartbeat_age_seconds, None);
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap().tv_sec();
    dataplane.housekeep(u64::try_from(now).unwrap());
    assert!(maps.status().unwrap().heartbeat_age_seconds.unwrap() <= 5);
}

fn frontend(view: &FrontendView) -> (String, &str, &str, &str, &str) {
    (view.address.to_string(), &view.protocol, &view.scope, &view.kind, &view.forwarding)
}
