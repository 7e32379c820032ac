//! Single cases, named by their tests.

use std::collections::BTreeSet;
use std::time::Duration;

use proxy_common::backend::{BACKEND_EXISTS, BACKEND_READY, BACKEND_SERVING};
use proxy_common::selection::Slot;

use super::kernel::{CAPACITIES, FakeKernel};
use super::world::{address, assert_serves, backend, desired, dsr, key, port};
use crate::dataplane::SyncReport;
use crate::dataplane::ebpf::plan::backends::{hint_losers, hint_of};
use crate::dataplane::ebpf::plan::{BackendEntry, Change, Found, GRACE, Phase, Plan, REST};
use crate::model::{Algorithm, Desired, Dirty, Family};

const NOW: Duration = Duration::from_secs(1000);
const V4: Family = Family::V4;

pub struct Bed {
    pub plan: Plan,
    pub kernel: FakeKernel,
    pub now: Duration,
}

impl Bed {
    pub fn new() -> Self {
        let plan = Plan::adopt(CAPACITIES, Found::default(), NOW);
        Self { plan, kernel: FakeKernel::default(), now: NOW }
    }

    /// Syncs everything, with these operations failing.
    pub fn sync(&mut self, state: &Desired, refuse: &[usize]) -> SyncReport {
        let names = self.kernel.names.values().filter_map(|name| name.text());
        let served = names.filter_map(|name| name.split_once(' ')?.0.split_once("svc")?.1.parse().ok());
        let ports = served.map(|n| key(n, V4)).chain(state.ports.keys().cloned()).collect();
        self.kernel.begin(self.now, refuse.to_vec());
        self.plan.sync(state, &Dirty { ports, nodes: true, ..Dirty::default() }, self.now, &mut self.kernel)
    }

    pub fn backend(&self, n: u8) -> (u32, BackendEntry) {
        let has_address = |entry: &BackendEntry| entry.address == address(n, V4);
        let mut found = self.kernel.backends.iter().filter(|(_, entry)| has_address(entry));
        found.next_back().map(|(id, entry)| (id.id, *entry)).expect("the endpoint was written")
    }
}

#[test]
fn everything_is_written_before_what_refers_to_it_and_released_after() {
    let mut bed = Bed::new();
    let before = desired([(key(0, V4), dsr(port(0, V4, &[(1, 0, true), (2, 1, true)])))]);
    bed.sync(&before, &[]);
    let after = desired([(key(1, V4), dsr(port(1, V4, &[(2, 1, true), (3, 0, true)])))]);
    bed.sync(&after, &[]);
    let is_release = |change: &Change| match change {
        Change::Backend(_, entry) => entry.flags & BACKEND_EXISTS == 0,
        Change::Service(_, entry) => entry.0 == 0,
        _ => false,
    };
    let releases = bed.kernel.log.iter().position(is_release).expect("something is released");
    let (writes, releases) = bed.kernel.log.split_at(releases);
    assert!(writes.is_sorted_by_key(Change::phase), "{writes:?}");
    assert_eq!(writes.last().map(Change::phase), Some(Phase::FrontendRemovals));
    assert!(releases.iter().all(|change| is_release(change) || matches!(change, Change::RemoveHint(_))));
}

#[test]
fn a_backend_of_two_services_exists_until_neither_has_it() {
    let mut bed = Bed::new();
    let shared = |n| (key(n, V4), port(n, V4, &[(1, 0, true)]));
    bed.sync(&desired([shared(0), shared(1)]), &[]);
    let (id, entry) = bed.backend(1);
    bed.sync(&desired([shared(1)]), &[]);
    assert_eq!(bed.backend(1), (id, entry));
    bed.sync(&desired([]), &[]);
    bed.now += GRACE;
    bed.sync(&desired([]), &[]);
    assert_eq!(bed.backend(1), (id, BackendEntry { flags: 0, ..entry }));
}

#[test]
fn an_endpoint_that_returns_while_its_id_rests_keeps_its_generation() {
    let mut bed = Bed::new();
    let state = desired([(key(0, V4), port(0, V4, &[(1, 0, true)]))]);
    bed.sync(&state, &[]);
    let before = bed.backend(1);
    bed.sync(&desired([(key(0, V4), port(0, V4, &[]))]), &[]);
    bed.now += GRACE;
    bed.sync(&desired([(key(0, V4), port(0, V4, &[]))]), &[]);
    bed.now += REST / 2;
    bed.sync(&state, &[]);
    assert_eq!(bed.backend(1), before);
}

#[test]
fn an_address_that_is_used_again_later_is_another_endpoint() {
    let mut bed = Bed::new();
    let state = desired([(key(0, V4), port(0, V4, &[(1, 0, true)]))]);
    bed.sync(&state, &[]);
    let (id, before) = bed.backend(1);
    bed.sync(&desired([(key(0, V4), port(0, V4, &[]))]), &[]);
    bed.now += GRACE;
    bed.sync(&desired([(key(0, V4), port(0, V4, &[]))]), &[]);
    bed.now += REST;
    bed.sync(&state, &[]);
    let (again, after) = bed.backend(1);
    assert_eq!((again, after.generation), (id, before.generation + 1));
}

#[test]
fn an_id_that_goes_to_another_endpoint_gets_another_generation() {
    let mut bed = Bed::new();
    let with = |first: u8, last: u8| {
        let endpoints: Vec<_> = (first..=last).map(|number| (number, 0, true)).collect();
        desired([(key(0, V4), port(0, V4, &endpoints))])
    };
    bed.sync(&with(1, 1), &[]);
    let (id, before) = bed.backend(1);
    bed.sync(&with(2, 2), &[]);
    bed.now += GRACE;
    bed.sync(&with(2, 15), &[]);
    assert!((2..=15).all(|number| bed.backend(number).0 != id), "others were never used");
    assert_eq!(bed.sync(&with(2, 16), &[]).pending.len(), 1, "the id rests");
    bed.now += REST;
    assert!(bed.sync(&with(2, 16), &[]).is_complete());
    let (reused, entry) = bed.backend(16);
    assert_eq!((reused, entry.generation), (id, before.generation + 1));
}

#[test]
fn a_maglev_slice_changes_in_place_and_remembers_settled_owners() {
    let mut bed = Bed::new();
    let with = |endpoints: &[(u8, u8, bool)]| desired([(key(0, V4), dsr(port(0, V4, endpoints)))]);
    bed.sync(&with(&[(1, 0, true), (2, 1, true)]), &[]);
    let service = *bed.kernel.names.keys().next().unwrap();
    let (entry, before) = (bed.kernel.services[&service], bed.kernel.slice(service));
    assert!(before.iter().all(|slot| !slot.is_unsettled()));

    // The second endpoint stops being ready: it is in no list, but its connections live.
    bed.sync(&with(&[(1, 0, true), (2, 1, false)]), &[]);
    assert_eq!(bed.kernel.services[&service], entry);
    let after = bed.kernel.slice(service);
    for (old, new) in before.iter().zip(&after) {
        assert_eq!((new.settled(), new.is_unsettled()), (old.current(), old.current() != new.current()));
    }
    let written = bed.kernel.log.iter().find_map(|change| match change {
        Change::Slots { words, .. } => Some(words.len()),
        _ => None,
    });
    assert_eq!(
        written,
        Some(after.iter().filter(|slot| slot.is_unsettled()).count()),
        "only those that moved"
    );

    // The endpoint is gone. Its share of the slots belongs to the current owner and stays
    // unsettled.
    bed.sync(&with(&[(1, 0, true)]), &[]);
    bed.now += GRACE;
    bed.sync(&with(&[(1, 0, true)]), &[]);
    let last: Vec<Slot> = bed.kernel.slice(service);
    assert!(last.iter().all(|slot| slot.settled() == slot.current()));
    assert_eq!(
        after.iter().map(|slot| slot.is_unsettled()).collect::<Vec<_>>(),
        last.iter().map(|slot| slot.is_unsettled()).collect::<Vec<_>>()
    );
}

#[test]
fn a_failure_delays_its_own_service_only() {
    let mut bed = Bed::new();
    let service = |n| (key(n, V4), port(n, V4, &[(n + 1, 0, true)]));
    let state = desired([service(0), service(1)]);
    let number = {
        let mut dry = Bed::new();
        dry.sync(&state, &[]);
        dry.kernel.log.iter().position(|change| matches!(change, Change::Frontend(..))).unwrap()
    };
    let report = bed.sync(&state, &[number]);
    assert_eq!(report.pending, [(key(0, V4), format!("refused number {number}"))]);
    assert_serves_only(&bed, &state, 1);
    let report = bed.plan.sync(&state, &Dirty::default(), bed.now, {
        bed.kernel.begin(bed.now, Vec::new());
        &mut bed.kernel
    });
    assert!(report.is_complete() && report.writes > 0);
    assert_serves(&bed.kernel, &state);
}

fn assert_serves_only(bed: &Bed, state: &Desired, n: u8) {
    let served: BTreeSet<_> = bed.kernel.frontends.keys().map(|at| at.address).collect();
    let wanted: BTreeSet<_> = state.ports[&key(n, V4)].frontends.iter().map(|f| f.address).collect();
    assert_eq!(served, wanted);
}

#[test]
fn two_backends_with_one_hint_leave_it_to_the_lower_address() {
    // Found by search: the first pair of neighbours in 10.0.0.0/8 with equal hints.
    let addresses: Vec<_> = (0..400_u16).map(|i| ([10, 0, (i >> 8) as u8, i as u8], 8080).into()).collect();
    let losers = hint_losers(addresses.iter());
    for loser in &losers {
        let winner = addresses.iter().find(|address| hint_of(**address) == hint_of(*loser)).unwrap();
        assert!(winner < loser);
        assert!(!losers.contains(winner));
    }
    assert!(!losers.is_empty(), "400 of 16383 hints clash somewhere");
}

#[test]
fn a_clash_in_one_service_takes_the_hint_from_the_backend_everywhere() {
    let all: Vec<std::net::SocketAddr> =
        (0..400_u16).map(|i| ([10, 0, (i >> 8) as u8, i as u8], 8080).into()).collect();
    let loser = *hint_losers(all.iter()).first().unwrap();
    let winner = *all.iter().find(|address| hint_of(**address) == hint_of(loser)).unwrap();
    let with = |n: u8, addresses: &[std::net::SocketAddr]| {
        let mut port = dsr(port(n, V4, &[]));
        port.endpoints =
            addresses.iter().map(|address| (*address, super::world::endpoint(0, true))).collect();
        port.cluster = Some(addresses.iter().copied().collect());
        port.has_any = true;
        (key(n, V4), port)
    };
    let mut bed = Bed::new();
    bed.sync(&desired([with(0, &[winner, loser]), with(1, &[loser])]), &[]);
    let hint = |address| bed.kernel.backends.values().find(|entry| entry.address == address).unwrap().hint;
    assert_eq!((hint(winner), hint(loser)), (hint_of(winner), 0));
    assert_eq!(
        bed.kernel.hints.len(),
        10,
        "two lists each: the winner in one service, the loser in the other, and all three by their pods"
    );
}

#[test]
fn a_released_service_id_rests_before_another_service_gets_it() {
    let mut bed = Bed::new();
    let services =
        |first: u8, last: u8| desired((first..=last).map(|n| (key(n, V4), port(n, V4, &[(1, 0, true)]))));
    bed.sync(&services(0, 0), &[]);
    let first: BTreeSet<u32> = bed.kernel.names.keys().copied().collect();
    bed.sync(&services(1, 10), &[]);
    assert!(first.iter().all(|id| bed.kernel.names.contains_key(id)), "the name stays while the id rests");
    bed.kernel.traces.extend(&first);
    assert_eq!(bed.sync(&services(1, 11), &[]).pending.len(), 1, "SERVICES has 23 ids");
    bed.kernel.reclaim_ids(&mut bed.plan);
    bed.now += REST;
    assert_eq!(bed.sync(&services(1, 11), &[]).pending.len(), 1, "it was still resting");
    bed.kernel.reclaim_ids(&mut bed.plan);
    assert!(bed.kernel.traces.is_empty());
    assert!(bed.sync(&services(1, 11), &[]).is_complete());
    assert_eq!(bed.kernel.names.keys().filter(|id| first.contains(id)).count(), 1);
}

#[test]
fn an_endpoint_that_is_in_no_slice_for_a_moment_keeps_its_connections() {
    let mut bed = Bed::new();
    let with = |endpoints: &[(u8, u8, bool)]| desired([(key(0, V4), dsr(port(0, V4, endpoints)))]);
    let both = with(&[(1, 0, true), (2, 0, true)]);
    bed.sync(&both, &[]);
    let service = *bed.kernel.names.keys().next().unwrap();
    let (slots, backend) = (bed.kernel.slice(service), bed.backend(2));

    let report = bed.sync(&with(&[(1, 0, true)]), &[]);
    assert_eq!(report.due_in, Some(GRACE));
    let flags = backend.1.flags & !(BACKEND_READY | BACKEND_SERVING);
    assert_eq!(bed.backend(2), (backend.0, BackendEntry { flags, ..backend.1 }));
    for (before, now) in slots.iter().zip(bed.kernel.slice(service)) {
        assert_eq!((now.current().id(), now.settled()), (bed.backend(1).0, before.settled()));
    }

    bed.now += GRACE / 2;
    assert_eq!(bed.sync(&both, &[]).due_in, None);
    assert_eq!(bed.backend(2), backend);
    for (before, now) in slots.iter().zip(bed.kernel.slice(service)) {
        assert_eq!((now.current(), now.settled()), (before.current(), before.settled()));
    }
    bed.now += GRACE;
    bed.sync(&both, &[]);
    assert_eq!(bed.backend(2), backend, "its grace ended when it returned");
}

#[test]
fn an_endpoint_that_stays_away_is_gone_after_its_grace_though_nothing_changes() {
    let mut bed = Bed::new();
    let with = |endpoints: &[(u8, u8, bool)]| desired([(key(0, V4), dsr(port(0, V4, endpoints)))]);
    bed.sync(&with(&[(1, 0, true), (2, 0, true)]), &[]);
    let service = *bed.kernel.names.keys().next().unwrap();
    bed.sync(&with(&[(1, 0, true)]), &[]);
    bed.now += GRACE;
    bed.kernel.begin(bed.now, Vec::new());
    let report = bed.plan.sync(&with(&[(1, 0, true)]), &Dirty::default(), bed.now, &mut bed.kernel);
    assert_eq!(report.due_in, None);
    assert_eq!(bed.backend(2).1.flags, 0);
    assert!(bed.kernel.slice(service).iter().all(|slot| slot.settled() == slot.current()));
}

#[test]
fn endpoints_that_come_and_go_use_up_no_slots_and_leave_none_to_the_dead() {
    let mut bed = Bed::new();
    let first: Vec<_> = (1..=12).map(|number| (number, 0, true)).collect();
    for round in 0..60_usize {
        bed.now += Duration::from_millis(100);
        let count = [12, 11, 3, 0][round % 4];
        let state = desired([(key(0, V4), port(0, V4, &first[..count]))]);
        let report = bed.sync(&state, &[]);
        assert!(report.is_complete(), "round {round}: {report:?}");
        assert_living(&bed);
    }
}

#[test]
fn a_list_that_finds_no_slots_keeps_those_it_has_and_leaves_none_to_the_dead() {
    let mut bed = Bed::new();
    let table = |n| {
        let port = crate::model::ServicePort { local: None, ..dsr(port(n, V4, &[(1, 0, true)])) };
        (key(n, V4), crate::model::ServicePort { algorithm: Algorithm::Maglev(96), ..port })
    };
    let with = |first: u8, last: u8| {
        let endpoints: Vec<_> = (first..=last).map(|number| (number, 0, true)).collect();
        desired([(key(0, V4), port(0, V4, &endpoints)), table(1), table(2)])
    };
    assert!(bed.sync(&with(2, 3), &[]).is_complete());
    let report = bed.sync(&with(3, 9), &[]);
    assert_eq!(report.pending.len(), 1, "192 of 200 slots are tables: {report:?}");
    bed.now += GRACE;
    bed.sync(&with(3, 9), &[]);
    assert_living(&bed);
    let (only, _) = bed.kernel.names.iter().find(|(_, name)| name.text().unwrap().contains("svc0")).unwrap();
    assert!(bed.kernel.slice(*only).len() > 1, "those it can hold are served");
}

/// Every slot's current owner exists.
fn assert_living(bed: &Bed) {
    for service in bed.kernel.names.keys() {
        for slot in bed.kernel.slice(*service) {
            assert!(backend(&bed.kernel, V4, slot.current()).is_some(), "service {service}: {slot:?}");
        }
    }
}

/// Another Service may still have the endpoint. The loss by this Service counts.
#[test]
fn a_hint_stays_for_the_grace_of_its_endpoint_and_then_goes() {
    let mut bed = Bed::new();
    let with = |endpoints: &[(u8, u8, bool)]| {
        let other = (key(1, V4), port(1, V4, &[(1, 0, true)]));
        desired([(key(0, V4), dsr(port(0, V4, endpoints))), other])
    };
    let is_hinted = |bed: &Bed| bed.kernel.hints.keys().any(|(_, hint)| *hint == hint_of(address(1, V4)));
    bed.sync(&with(&[(1, 0, true), (2, 1, true)]), &[]);
    assert!(is_hinted(&bed));
    let after = with(&[(2, 1, true)]);
    let report = bed.sync(&after, &[]);
    assert!(is_hinted(&bed));
    assert_eq!(report.due_in, Some(GRACE));
    bed.now += GRACE;
    // This is the sync that the report asked for: nothing has changed since.
    bed.kernel.begin(bed.now, Vec::new());
    let report = bed.plan.sync(&after, &Dirty::default(), bed.now, &mut bed.kernel);
    assert!(!is_hinted(&bed));
    assert_eq!(report.due_in, None);
    assert_serves(&bed.kernel, &after);
}

#[test]
fn the_map_usage_counts_slots_and_ids_of_services_but_not_resting_ones() {
    let mut bed = Bed::new();
    let slots = |bed: &Bed| bed.plan.map_usage().map(|level| (level.map, level.used))[1];
    let maglev = dsr(port(0, V4, &[(1, 0, true), (2, 1, true)]));
    let Algorithm::Maglev(length) = maglev.algorithm else { panic!("a DSR service has a Maglev table") };
    bed.sync(&desired([(key(0, V4), maglev)]), &[]);
    assert_eq!(bed.plan.map_usage().map(|level| level.used)[2], 2);
    assert!(slots(&bed).1 >= length && slots(&bed).0 == "SELECTION");
    bed.sync(&desired([]), &[]);
    assert_eq!(slots(&bed).1, 0);
}
