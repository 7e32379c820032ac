//! The plan checks everything it finds in the maps.

use std::collections::BTreeSet;
use std::time::Duration;

use proxy_common::frontend::FRONTEND_DSR;
use proxy_common::selection::{ServiceEntry, Slot};

use super::access::{Access, assert_access};
use super::kernel::{CAPACITIES, FakeKernel};
use super::world::{assert_serves, backend, closed, desired, dsr, key, port, range};
use crate::dataplane::ebpf::plan::{Found, Plan, REST, RangeAt, frontends};
use crate::model::{Algorithm, Desired, Dirty, Family, Frontend, ServicePort};

const NOW: Duration = Duration::from_secs(1000);
const V4: Family = Family::V4;

fn two_services() -> Desired {
    let service = |n| (key(n, V4), port(n, V4, &[(1, 0, true), (2, 1, true)]));
    desired([service(0), service(1)])
}

fn served() -> FakeKernel {
    let mut kernel = FakeKernel::default();
    kernel.begin(NOW, Vec::new());
    let mut plan = Plan::adopt(CAPACITIES, Found::default(), NOW);
    assert!(plan.sync(&two_services(), &Dirty::default(), NOW, &mut kernel).is_complete());
    kernel
}

fn restart(kernel: &mut FakeKernel) {
    let now = NOW + REST;
    let mut plan = Plan::adopt(CAPACITIES, kernel.found(), now);
    kernel.begin(now, Vec::new());
    let report = plan.sync(&two_services(), &Dirty::default(), now, kernel);
    assert!(report.is_complete(), "{report:?}");
    assert!(report.writes > 0);
    assert_serves(kernel, &two_services());
}

#[test]
fn two_services_with_one_slice_are_told_apart() {
    let mut kernel = served();
    let ids: Vec<u32> = kernel.names.keys().copied().collect();
    let slices: BTreeSet<u32> = kernel.services.values().map(|entry| entry.offset()).collect();
    assert!(slices.len() > 1);
    let entry = kernel.services[&ids[0]];
    for id in &ids {
        kernel.services.insert(*id, entry);
    }
    // The checking kernel refuses two owners of a slot: it gets only one, as the plan does.
    let found = kernel.found();
    ids[1..].iter().for_each(|id| _ = kernel.services.remove(id));
    let now = NOW + REST;
    let mut plan = Plan::adopt(CAPACITIES, found, now);
    kernel.begin(now, Vec::new());
    assert!(plan.sync(&two_services(), &Dirty::default(), now, &mut kernel).is_complete());
    assert_serves(&kernel, &two_services());
}

#[test]
fn a_slice_outside_the_map_is_replaced() {
    let mut found = served().found();
    found.services[0].2 = ServiceEntry::new(u32::MAX - 1, 2, 0);
    found.services[1].2 = ServiceEntry::new(CAPACITIES.slots - 1, 2, 0);
    let mut kernel = served();
    let mut plan = Plan::adopt(CAPACITIES, found, NOW + REST);
    kernel.begin(NOW + REST, Vec::new());
    assert!(plan.sync(&two_services(), &Dirty::default(), NOW + REST, &mut kernel).is_complete());
    assert_serves(&kernel, &two_services());
}

#[test]
fn slots_that_were_overwritten_are_put_right() {
    let mut kernel = served();
    let entry = *kernel.services.values().find(|entry| entry.length() > 0).unwrap();
    kernel.slots.insert(entry.offset(), Slot::default());
    restart(&mut kernel);
}

#[test]
fn entries_that_were_lost_are_written_again() {
    let mut kernel = served();
    kernel.frontends.pop_first();
    kernel.peers.clear();
    kernel.ways.clear();
    restart(&mut kernel);
}

/// Restarts with only a part of the desired state read, then with all of it.
fn restart_with_a_part(part: &Desired, whole: &Desired) {
    let mut kernel = served();
    let before = format!("{:?}", kernel.found());
    let now = NOW + REST;
    let mut plan = Plan::adopt(CAPACITIES, kernel.found(), now);
    let incomplete = Dirty { nodes: true, incomplete: true, ..Dirty::default() };
    for now in [now, now + REST, now + REST * 2] {
        kernel.begin(now, Vec::new());
        assert!(plan.sync(part, &incomplete, now, &mut kernel).is_complete());
        assert_eq!(format!("{:?}", kernel.found()), before);
    }
    let now = now + REST * 3;
    kernel.begin(now, Vec::new());
    assert!(plan.sync(whole, &Dirty::default(), now, &mut kernel).is_complete());
    assert_serves(&kernel, whole);
}

#[test]
fn nothing_that_was_found_goes_before_everything_is_read() {
    let whole = two_services();
    restart_with_a_part(&Desired { node_name: whole.node_name.clone(), ..Desired::default() }, &whole);
    let mut one = whole.clone();
    one.ports.remove(&key(0, V4));
    restart_with_a_part(&one, &whole);
    restart_with_a_part(&one, &one);
    let mut no_nodes = whole.clone();
    no_nodes.nodes.clear();
    restart_with_a_part(&no_nodes, &whole);
    let mut no_endpoints = whole.clone();
    no_endpoints.ports.insert(key(0, V4), port(0, V4, &[]));
    restart_with_a_part(&no_endpoints, &whole);
    restart_with_a_part(&no_endpoints, &no_endpoints);
}

/// Restarts the agent. It can read Service 0, which is `service`, but not the EndpointSlices of it.
fn restart_without_slices(service: ServicePort) -> (Plan, FakeKernel, Desired) {
    let mut kernel = served();
    let now = NOW + REST;
    let mut plan = Plan::adopt(CAPACITIES, kernel.found(), now);
    let mut state = two_services();
    state.ports.insert(key(0, V4), service);
    kernel.begin_guarded(now, Vec::new(), &state);
    let incomplete = Dirty { incomplete: true, ..Dirty::default() };
    assert!(plan.sync(&state, &incomplete, now, &mut kernel).is_complete());
    assert_access(&kernel, &state);
    (plan, kernel, state)
}

fn read_everything(mut plan: Plan, mut kernel: FakeKernel, state: &Desired) {
    let now = NOW + REST * 2;
    kernel.begin(now, Vec::new());
    assert!(plan.sync(state, &Dirty::default(), now, &mut kernel).is_complete());
    assert_serves(&kernel, state);
}

/// Returns the backends of all services and their names.
fn lists(kernel: &FakeKernel) -> String {
    format!("{:?} {:?} {:?} {:?}", kernel.names, kernel.services, kernel.slots, kernel.backends)
}

#[test]
fn a_service_whose_slices_could_not_be_read_says_itself_who_may_use_it() {
    let before = lists(&served());
    let (mut plan, mut kernel, mut state) = restart_without_slices(closed(port(0, V4, &[]), [range(1, V4)]));
    assert_eq!(lists(&kernel), before);
    let frontends: Vec<_> = kernel.frontends.keys().copied().collect();
    assert_eq!(kernel.access(&frontends[0]), Access::Only([range(1, V4)].into()));

    // The Service changes once more.
    for (service, access) in [
        (closed(port(0, V4, &[]), [range(2, V4)]), Access::Only([range(2, V4)].into())),
        (port(0, V4, &[]), Access::Everybody),
    ] {
        state.ports.insert(key(0, V4), service);
        kernel.begin_guarded(NOW + REST, Vec::new(), &state);
        let changed = Dirty { ports: [key(0, V4)].into(), incomplete: true, ..Dirty::default() };
        assert!(plan.sync(&state, &changed, NOW + REST, &mut kernel).is_complete());
        assert_eq!(kernel.access(&frontends[0]), access);
        assert_eq!(lists(&kernel), before);
    }
    read_everything(plan, kernel, &two_services());
}

#[test]
fn a_service_whose_slices_could_not_be_read_is_reached_where_it_says_and_nowhere_else_once_it_is_gone() {
    let mut service = port(0, V4, &[]);
    let another = ([192, 0, 2, 77], 80).into();
    let frontend = service.frontends.first().unwrap().clone();
    let former = frontends::at(&service, &frontend);
    service.frontends = [Frontend { address: another, ..frontend }].into();
    let at = frontends::at(&service, service.frontends.first().unwrap());
    let before = served();
    let (mut plan, mut kernel, mut state) = restart_without_slices(service);
    assert_eq!(lists(&kernel), lists(&before));
    assert_eq!(kernel.frontends[&at], before.frontends[&former], "it leads to the backends there are");
    assert_eq!(kernel.frontends.len(), before.frontends.len() + 1, "what was found stays");

    state.ports.remove(&key(0, V4));
    kernel.begin(NOW + REST, Vec::new());
    let changed = Dirty { ports: [key(0, V4)].into(), incomplete: true, ..Dirty::default() };
    assert!(plan.sync(&state, &changed, NOW + REST, &mut kernel).is_complete());
    assert!(!kernel.frontends.contains_key(&at));
    read_everything(plan, kernel, &state);
}

#[test]
fn a_service_whose_slices_could_not_be_read_is_closed_though_it_shall_have_other_lists() {
    let before = lists(&served());
    let (plan, kernel, state) = restart_without_slices(dsr(closed(port(0, V4, &[]), [range(1, V4)])));
    assert_eq!(lists(&kernel), before);
    assert!(
        kernel.frontends.values().all(|value| value.flags & FRONTEND_DSR == 0),
        "for that it has no table"
    );
    read_everything(plan, kernel, &state);
}

#[test]
fn endpoints_that_were_read_and_go_are_gone_though_another_list_was_found() {
    let mut kernel = served();
    let now = NOW + REST;
    let mut plan = Plan::adopt(CAPACITIES, kernel.found(), now);
    let mut state = two_services();
    let cluster_only = ServicePort { local: None, ..port(0, V4, &[(1, 0, true), (2, 1, true)]) };
    state.ports.insert(key(0, V4), cluster_only);
    let incomplete = Dirty { incomplete: true, ..Dirty::default() };
    kernel.begin(now, Vec::new());
    assert!(plan.sync(&state, &incomplete, now, &mut kernel).is_complete());
    state.ports.insert(key(0, V4), ServicePort { local: None, ..port(0, V4, &[]) });
    kernel.begin(now, Vec::new());
    let changed = Dirty { ports: [key(0, V4)].into(), ..incomplete };
    assert!(plan.sync(&state, &changed, now, &mut kernel).is_complete());
    let value = kernel.frontends.values().next().unwrap();
    assert_eq!(kernel.slice(value.service), []);
}

#[test]
fn a_removal_during_an_incomplete_read_goes_at_once() {
    let mut kernel = served();
    let now = NOW + REST;
    let mut plan = Plan::adopt(CAPACITIES, kernel.found(), now);
    kernel.begin(now, Vec::new());
    let incomplete = Dirty { incomplete: true, ..Dirty::default() };
    plan.sync(&two_services(), &incomplete, now, &mut kernel);
    let mut one = two_services();
    one.ports.remove(&key(0, V4));
    let removed = Dirty { ports: BTreeSet::from([key(0, V4)]), ..incomplete };
    assert!(plan.sync(&one, &removed, now, &mut kernel).is_complete());
    assert_serves(&kernel, &one);
}

#[test]
fn a_way_whose_mtu_a_router_lowered_is_as_it_was_written() {
    let mut kernel = FakeKernel::default();
    kernel.begin(NOW, Vec::new());
    let mut plan = Plan::adopt(CAPACITIES, Found::default(), NOW);
    plan.sync(&two_services(), &Dirty::default(), NOW, &mut kernel);
    let mut written = kernel.found();
    written.ways[0].2.mtu = 1500;
    let plan = Plan::adopt(CAPACITIES, written.clone(), NOW);
    let drift = |mtu, is_narrowed| {
        let mut found = written.clone();
        found.ways[0].2.mtu = mtu;
        found.narrowed.extend(Some(found.ways[0].0).filter(|_| is_narrowed));
        plan.drift(&found)
    };
    assert_eq!(drift(1400, true), Vec::<&str>::new());
    assert_eq!(drift(1500, true), Vec::<&str>::new());
    for (mtu, is_narrowed) in [(1400, false), (1501, true), (0, true)] {
        assert_eq!(drift(mtu, is_narrowed), ["WAYS"], "{mtu}");
    }
}

#[test]
fn changes_by_another_process_are_noticed() {
    let mut kernel = FakeKernel::default();
    kernel.begin(NOW, Vec::new());
    let mut plan = Plan::adopt(CAPACITIES, Found::default(), NOW);
    plan.sync(&two_services(), &Dirty::default(), NOW, &mut kernel);
    let untouched = kernel.found();
    assert!(plan.drift(&untouched).is_empty());
    let drift = |change: &dyn Fn(&mut Found)| {
        let mut found = untouched.clone();
        change(&mut found);
        plan.drift(&found)
    };
    assert_eq!(drift(&|found| _ = found.frontends.pop()), ["FRONTENDS"]);
    assert_eq!(drift(&|found| _ = found.peers.pop()), ["PEERS"]);
    assert_eq!(drift(&|found| found.ways[0].2.mtu = 1), ["WAYS"]);
    assert_eq!(drift(&|found| found.backends[0].1.flags = 0), ["BACKENDS"]);
    assert_eq!(drift(&|found| found.slots[0] = Slot::default()), ["SELECTION"]);
    assert_eq!(drift(&|found| _ = found.services.pop()), ["SERVICES"]);
    let range = RangeAt { service: 1, net: range(1, V4) };
    assert_eq!(drift(&|found| found.ranges.push(range)), ["SOURCE_RANGES"]);
}

/// Five services, each with one Maglev table of this length.
fn tables_of(length: u32) -> Desired {
    desired((0..5_u8).map(|n| {
        let port = dsr(port(n, V4, &[(n + 1, 0, true)]));
        let algorithm = Algorithm::Maglev(length);
        (key(n, V4), crate::model::ServicePort { local: None, algorithm, ..port })
    }))
}

#[test]
fn a_service_stays_served_while_its_new_table_finds_no_room() {
    let mut kernel = FakeKernel::default();
    kernel.begin(NOW, Vec::new());
    let mut plan = Plan::adopt(CAPACITIES, Found::default(), NOW);
    assert!(plan.sync(&tables_of(31), &Dirty::default(), NOW, &mut kernel).is_complete());
    let (frontends, services) = (kernel.frontends.clone(), kernel.services.clone());
    assert_eq!(frontends.len(), 10);

    let now = NOW + REST;
    kernel.begin(now, Vec::new());
    let mut plan = Plan::adopt(CAPACITIES, kernel.found(), now);
    let report = plan.sync(&tables_of(37), &Dirty::default(), now, &mut kernel);
    assert_eq!(report.pending.len(), 4, "45 free slots are room for one table of 37: {report:?}");
    assert_eq!(kernel.frontends, frontends);
    let unchanged = services.iter().filter(|(id, entry)| kernel.services[id] == **entry);
    assert_eq!(unchanged.count(), 4);
    for id in services.keys() {
        for slot in kernel.slice(*id) {
            assert!(backend(&kernel, V4, slot.current()).is_some(), "service {id} has a dead slot");
        }
    }
    // An unwanted frontend goes all the same.
    let mut fewer = tables_of(37);
    fewer.ports.values_mut().for_each(|port| _ = port.frontends.pop_last());
    kernel.begin(now, Vec::new());
    let all = Dirty { ports: fewer.ports.keys().cloned().collect(), ..Dirty::default() };
    plan.sync(&fewer, &all, now, &mut kernel);
    assert_eq!(kernel.frontends.len(), 5);
}
