//! The collector with real tables.

use std::collections::{BTreeMap, BTreeSet};

use proxy_common::Addr4;
use proxy_common::affinity::AFFINITY_CLIENT;
use proxy_common::flow::{FLOW_DATAGRAM, FLOW_ESTABLISHED, FLOW_REPLY, FLOW_REWRITE_DESTINATION, FLOW_SYN};

use super::*;
use crate::dataplane::ebpf::maps::Table;
use crate::dataplane::ebpf::scratch::Scratch;
use crate::dataplane::ebpf::snat_usage::PortUsage;
use crate::model::{
    Algorithm, Desired, Dirty, Family, Forwarding, Frontend, FrontendKind, List, PortKey, Protocol, Scope,
    ServiceKey, ServicePort,
};

pub(super) fn key(port: u16) -> FlowKey<Addr4> {
    FlowKey { source: Addr4([1]), destination: Addr4([2]), source_port: port, ..FlowKey::default() }
}

pub(super) const fn at(seconds: u32) -> Clock {
    Clock { seconds, time: Duration::from_secs(seconds as u64) }
}

/// Writes both entries of a connection, last seen at these times.
fn connect(table: &mut Table<FlowKey<Addr4>, Flow<Addr4>>, port: u16, state: u8, seen: [u32; 2]) {
    let request = Flow {
        source: Addr4([1]),
        source_port: port,
        destination: Addr4([3]),
        flags: FLOW_REWRITE_DESTINATION,
        state,
        last_seen: seen[0],
        ..Flow::default()
    };
    let (key, mut reply) = (key(port), Flow { last_seen: seen[1], ..request });
    let twin = request.twin(&key);
    reply.reverse(&key, &twin);
    table.insert(&key, &request).unwrap();
    table.insert(&twin, &reply).unwrap();
}

#[test]
fn both_entries_of_an_expired_connection_go_and_those_of_a_one_way_stream_stay() {
    let scratch = Scratch::new("collect");
    let mut dataplane = scratch.open();
    let (maps, plan, mut collector) = (&mut dataplane.maps, &mut dataplane.plan, Collector::new());
    collector.budget = Duration::MAX;
    let timeouts = Timeouts { established: 100, datagram: 10, ..Timeouts::default() };
    let flows = &mut maps.of4.flows;
    connect(flows, 1, FLOW_ESTABLISHED, [1000, 1000]);
    connect(flows, 2, FLOW_DATAGRAM, [1000, 1000]);
    connect(flows, 3, FLOW_DATAGRAM, [1000, 1045]);
    let flows_new = &mut maps.of4.flows_new;
    connect(flows_new, 4, FLOW_DATAGRAM, [1000, 1000]);

    assert_eq!(collector.collect(maps, plan, &timeouts, at(1010)).unwrap().flows, 0);
    assert_eq!(collector.collect(maps, plan, &timeouts, at(1050)).unwrap().flows, 4);
    assert_eq!(maps.of4.flows.count().unwrap(), 4);
    assert_eq!(collector.collect(maps, plan, &timeouts, at(1102)).unwrap().flows, 4);
    assert_eq!(maps.of4.flows.count().unwrap(), 0);
}

#[test]
fn a_walk_counts_the_ports_that_translated_connections_have() {
    let scratch = Scratch::new("collect-ports");
    let mut dataplane = scratch.open();
    let (maps, plan) = (&mut dataplane.maps, &mut dataplane.plan);
    let timeouts = Timeouts { established: 100, ..Timeouts::default() };
    let request = Flow { state: FLOW_ESTABLISHED, check: 1, backend: 5, last_seen: 1000, ..Flow::default() };
    let reply = Flow { flags: FLOW_REPLY, ..request };
    for port in 1..=8 {
        maps.of4.flows.insert(&key(port), &request).unwrap();
        maps.of4.flows.insert(&key(100 + port), &reply).unwrap();
        // FLOWS had no room for them.
        maps.of4.flows_new.insert(&key(200 + port), &reply).unwrap();
    }
    maps.of4.flows_new.insert(&key(300), &Flow { state: FLOW_SYN, last_seen: 1050, ..reply }).unwrap();
    // One entry of two other connections has expired.
    maps.of4.flows.insert(&key(110), &Flow { last_seen: 900, ..reply }).unwrap();
    maps.of4.flows.insert(&key(111), &Flow { backend: 6, ..reply }).unwrap();

    let mut collector = Collector { budget: Duration::ZERO, ..Collector::new() };
    let (mut seen, mut flows) = (Vec::new(), Vec::new());
    for _ in 0..FLOW_TABLES * 2 {
        collector.collect(maps, plan, &timeouts, at(1050)).unwrap();
        if let Some(counts) = collector.take_counts() {
            seen.push(PortUsage::default().after(&counts.usage, 10));
            flows.push(counts.flows.iter().filter(|count| count.entries > 0).copied().collect::<Vec<_>>());
        }
    }
    let most: Vec<_> = seen.iter().map(|usage| (usage.most, usage.crowded.len())).collect();
    assert_eq!(most, [(16, 1); 2], "once a walk, each anew");
    let count = |table, state, entries| FlowCount { table, family: Family::V4, state, entries };
    let expected =
        [count("new", "syn", 1), count("new", "established", 8), count("established", "established", 17)];
    assert_eq!(flows, [expected; 2], "those that stay");
}

#[test]
fn a_call_ends_when_its_time_is_up_and_the_next_one_goes_on() {
    let scratch = Scratch::new("collect-time");
    let mut dataplane = scratch.open();
    let (maps, plan) = (&mut dataplane.maps, &mut dataplane.plan);
    let mut collector = Collector { budget: Duration::ZERO, ..Collector::new() };
    let timeouts = Timeouts { datagram: 10, ..Timeouts::default() };
    connect(&mut maps.of4.flows, 1, FLOW_DATAGRAM, [1000, 1000]);
    connect(&mut maps.of4.flows_new, 2, FLOW_DATAGRAM, [1000, 1000]);
    let calls: Vec<usize> =
        (0..6).map(|_| collector.collect(maps, plan, &timeouts, at(1050)).unwrap().flows).collect();
    assert_eq!(calls, [2, 0, 2, 0, 0, 0], "a table each");
}

#[test]
fn a_crowded_table_loses_whole_connections() {
    let scratch = Scratch::new("collect-crowded");
    let mut dataplane = scratch.open();
    let (maps, plan, mut collector) = (&mut dataplane.maps, &mut dataplane.plan, Collector::new());
    let connections = u16::try_from(maps.of4.flows.entries() / 2 * 95 / 100).unwrap();
    for port in 0..connections {
        connect(&mut maps.of4.flows, port, FLOW_ESTABLISHED, [1000, 1000]);
    }
    let before = maps.of4.flows.count().unwrap();
    let mut removed = 0;
    for _ in 0..10 {
        removed += collector.collect(maps, plan, &Timeouts::default(), at(2000)).unwrap().flows;
    }
    let left = maps.of4.flows.all().unwrap();
    assert!(removed > before / 10 && left.len() == before - removed, "{removed} of {before}");
    let halves = left.iter().filter(|(key, flow)| maps.of4.flows.get(&flow.twin(key)).unwrap().is_none());
    assert_eq!(halves.count(), 0);
}

#[test]
fn what_a_service_leaves_behind_is_deleted_before_its_id_stands_for_another() {
    let scratch = Scratch::new("reclaim");
    let mut dataplane = scratch.open();
    let (maps, plan) = (&mut dataplane.maps, &mut dataplane.plan);
    let state = served("gone");
    plan.sync(&state, &Dirty::default(), at(1000).time, maps);
    let service = name_ids(maps)[0];
    let flow = Flow { state: FLOW_ESTABLISHED, service, last_seen: 1000, ..Flow::default() };
    maps.of4.flows.insert(&key(1), &flow).unwrap();
    let client = AffinityKey { client: Addr4([1]), service, kind: AFFINITY_CLIENT };
    let last = Affinity { backend: 1, service, last_used: 1000 };
    maps.of4.affinity.insert(&client, &last).unwrap();

    let mut collector = Collector { budget: Duration::MAX, ..Collector::new() };
    let timeouts = Timeouts::default();
    let mut pass = |plan: &mut Plan, maps: &mut Maps, seconds: u32| {
        let removed = collector.collect(maps, plan, &timeouts, at(seconds)).unwrap();
        plan.sync(&Desired::default(), &Dirty::default(), at(seconds).time, maps);
        (removed.flows, removed.affinities, name_ids(maps).len())
    };
    assert_eq!(pass(plan, maps, 1000), (0, 0, 1), "it is served");
    let gone = Dirty { ports: state.ports.keys().cloned().collect(), ..Dirty::default() };
    plan.sync(&Desired::default(), &gone, at(1000).time, maps);
    assert_eq!(pass(plan, maps, 1005), (0, 0, 1), "it rests, and may come back");
    plan.sync(&Desired::default(), &Dirty::default(), at(1020).time, maps);
    assert_eq!(name_ids(maps), [service], "it has rested, but has its entries");
    assert_eq!(pass(plan, maps, 1020), (1, 1, 0));
    assert_eq!((maps.of4.flows.count().unwrap(), maps.of4.affinity.count().unwrap()), (0, 0));
}

#[test]
fn a_sweep_gets_on_however_many_entries_have_expired() {
    let scratch = Scratch::new("reclaim-expired");
    let mut dataplane = scratch.open();
    let (maps, plan) = (&mut dataplane.maps, &mut dataplane.plan);
    let state = served("gone");
    plan.sync(&state, &Dirty::default(), at(1000).time, maps);
    let service = name_ids(maps)[0];
    let flow = Flow { state: FLOW_ESTABLISHED, service, last_seen: 1000, ..Flow::default() };
    maps.of6.flows_new.insert(&FlowKey::default(), &Flow { service, ..Flow::default() }).unwrap();
    maps.of4.flows.insert(&key(1), &flow).unwrap();
    let timeouts = Timeouts { datagram: 10, ..Timeouts::default() };
    let mut collector = Collector { budget: Duration::ZERO, ..Collector::new() };
    // The expiry walk is under way: the reclaim walk does not wait for its end.
    collector.collect(maps, plan, &timeouts, at(1000)).unwrap();
    let gone = Dirty { ports: state.ports.keys().cloned().collect(), ..Dirty::default() };
    plan.sync(&Desired::default(), &gone, at(1000).time, maps);
    for port in 2..200 {
        connect(&mut maps.of4.flows, port, FLOW_DATAGRAM, [1000, 1000]);
    }
    assert!(!collector.collect(maps, plan, &timeouts, at(1009)).unwrap().is_reclaiming, "it rests");

    let mut calls = 0;
    while {
        calls += 1;
        collector.collect(maps, plan, &timeouts, at(1020)).unwrap().is_reclaiming
    } {}
    assert_eq!(calls, TABLES, "a table each");
    plan.sync(&Desired::default(), &Dirty::default(), at(1020).time, maps);
    assert_eq!(name_ids(maps), [0; 0]);
    assert_eq!(maps.of6.flows_new.count().unwrap(), 0);
}

#[test]
fn the_reclaim_walk_deletes_only_entries_of_unassigned_ids() {
    let scratch = Scratch::new("reclaim-only");
    let mut dataplane = scratch.open();
    let (maps, plan, mut collector) = (&mut dataplane.maps, &mut dataplane.plan, Collector::new());
    let state = served("lives");
    plan.sync(&state, &Dirty::default(), at(1000).time, maps);
    let service = name_ids(maps)[0];
    let timeouts = Timeouts { datagram: 10, ..Timeouts::default() };
    let expired = Flow { state: FLOW_DATAGRAM, service, last_seen: 1000, ..Flow::default() };
    maps.of4.flows.insert(&key(1), &expired).unwrap();
    maps.of4.flows.insert(&key(2), &Flow { service: service + 1, ..expired }).unwrap();
    let rules = Rules { plan, timeouts: &timeouts, now: at(2000) };
    let removed = collector.remove_unassigned(maps, &rules, Duration::MAX).unwrap();
    assert_eq!((removed.flows, removed.affinities), (1, 0));
    assert!(maps.of4.flows.get(&key(1)).unwrap().is_some());
    assert_eq!(collector.expire(maps, &rules, Duration::MAX).unwrap(), 1);
    assert_eq!(maps.of4.flows.count().unwrap(), 0);
}

pub(super) fn name_ids(maps: &Maps) -> Vec<u32> {
    let mut ids = Vec::new();
    maps.names
        .for_each(|id, _| {
            ids.push(id);
            true
        })
        .unwrap();
    ids
}

pub(super) fn served(name: &str) -> Desired {
    let service = ServiceKey { namespace: "default".to_owned(), name: name.to_owned() };
    let port = ServicePort {
        protocol: Protocol::Tcp,
        frontends: [Frontend {
            address: ([192, 0, 2, 1], 80).into(),
            scope: Scope::External,
            kind: FrontendKind::LoadBalancer,
            list: List::Cluster,
        }]
        .into(),
        forwarding: Forwarding::Snat,
        algorithm: Algorithm::Random,
        scheduler: None,
        affinity_seconds: 100,
        source_ranges: None,
        endpoints: BTreeMap::new(),
        cluster: Some(BTreeSet::new()),
        local: None,
        has_any: false,
    };
    let key = PortKey { service, port: String::new(), family: Family::V4 };
    Desired { ports: [(key, port)].into(), ..Desired::default() }
}
