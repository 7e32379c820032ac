//! What is in the maps after a sync.

use millrace::dataplane::Dataplane;
use millrace::dataplane::ebpf::EbpfDataplane;
use millrace::dataplane::ebpf::read::PinnedMaps;
use millrace::model::Desired;

use crate::support::{Scratch, all, desired, dsr, key, port};

fn two_services() -> Desired {
    desired([(key("web"), port(1, 3)), (key("dsr"), dsr(2, 2))])
}

#[test]
fn what_is_synced_is_read_back() {
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
    assert_eq!((dsr.algorithm, dsr.slots, web.algorithm, web.slots), ("maglev", 251, "random", 3));
    assert_eq!(
        web.backends.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.1.1:8080", "10.0.1.2:8080", "10.0.1.3:8080"]
    );
    assert_eq!(dsr.backends.len(), 2);
    let frontend = |view: &millrace::dataplane::ebpf::read::FrontendView| {
        (view.address.to_string(), view.protocol, view.scope, view.kind, view.forwarding)
    };
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
fn what_went_away_while_no_agent_ran_is_removed_and_the_rest_keeps_its_ids() {
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
    // Hash maps of the kernel hold exactly what they were made for; each service has two frontends.
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
fn a_heartbeat_is_seen_by_those_who_only_read() {
    let scratch = Scratch::new();
    let mut dataplane = scratch.open();
    let maps = PinnedMaps::open(&scratch.path).unwrap();
    assert_eq!(maps.status().unwrap().heartbeat_age_seconds, None);
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap().tv_sec();
    dataplane.housekeep(u64::try_from(now).unwrap());
    assert!(maps.status().unwrap().heartbeat_age_seconds.unwrap() <= 5);
}
