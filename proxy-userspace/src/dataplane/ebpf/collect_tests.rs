//! Collecting from real tables.

use proxy_common::Addr4;
use proxy_common::flow::{FLOW_DATAGRAM, FLOW_ESTABLISHED, FLOW_REPLY, FLOW_REWRITE_DESTINATION};

use super::*;
use crate::dataplane::ebpf::scratch::Scratch;

fn key(port: u16) -> FlowKey<Addr4> {
    FlowKey { source: Addr4([1]), destination: Addr4([2]), source_port: port, ..FlowKey::default() }
}

/// Writes both entries of a connection, last seen at these times.
fn connect(table: &mut Table<FlowKey<Addr4>, Flow<Addr4>>, port: u16, state: u8, seen: [u32; 2]) {
    let request = Flow {
        destination: Addr4([3]),
        flags: FLOW_REWRITE_DESTINATION,
        state,
        last_seen: seen[0],
        ..Flow::default()
    };
    let reply = Flow { flags: FLOW_REPLY, state, last_seen: seen[1], ..Flow::default() };
    table.insert(&key(port), &request).unwrap();
    table.insert(&request.twin(&key(port)), &reply).unwrap();
}

#[test]
fn both_entries_of_an_expired_connection_go_and_those_of_a_one_way_stream_stay() {
    let scratch = Scratch::new("collect");
    let mut dataplane = scratch.open();
    let (maps, mut collector) = (&mut dataplane.maps, Collector::new());
    collector.budget = Duration::MAX;
    let timeouts = Timeouts { established: 100, datagram: 10, ..Timeouts::default() };
    let flows = &mut maps.of4.flows;
    connect(flows, 1, FLOW_ESTABLISHED, [1000, 1000]);
    connect(flows, 2, FLOW_DATAGRAM, [1000, 1000]);
    connect(flows, 3, FLOW_DATAGRAM, [1000, 1045]);
    let flows_new = &mut maps.of4.flows_new;
    connect(flows_new, 4, FLOW_DATAGRAM, [1000, 1000]);

    assert_eq!(collector.collect(maps, &timeouts, 1010).unwrap(), 0);
    assert_eq!(collector.collect(maps, &timeouts, 1050).unwrap(), 4);
    assert_eq!(maps.of4.flows.count().unwrap(), 4);
    assert_eq!(collector.collect(maps, &timeouts, 1101).unwrap(), 4);
    assert_eq!(maps.of4.flows.count().unwrap(), 0);
}

#[test]
fn a_call_ends_when_its_time_is_up_and_the_next_one_goes_on() {
    let scratch = Scratch::new("collect-time");
    let mut dataplane = scratch.open();
    let maps = &mut dataplane.maps;
    let mut collector = Collector { budget: Duration::ZERO, ..Collector::new() };
    let timeouts = Timeouts { datagram: 10, ..Timeouts::default() };
    connect(&mut maps.of4.flows, 1, FLOW_DATAGRAM, [1000, 1000]);
    connect(&mut maps.of4.flows_new, 2, FLOW_DATAGRAM, [1000, 1000]);
    let calls: Vec<usize> = (0..4).map(|_| collector.collect(maps, &timeouts, 1050).unwrap()).collect();
    assert_eq!(calls, [2, 0, 2, 0], "a table each");
}
