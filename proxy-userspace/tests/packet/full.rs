//! FLOWS without room, or held by the agent: connections stay in FLOWS_NEW and miss nothing.

use millrace_lab::frame::flag;
use millrace_lab::program::{Bed, FlowTable, Sizes, monotonic_seconds};
use proxy_common::config::AGENT_HOLD;
use proxy_common::flow::{FLOW_CLOSING, FLOW_ESTABLISHED};
use proxy_common::timeouts::{FLOW_QUIET, FLOW_RENEWAL, Timeouts};
use proxy_common::verdict::Reason;

use crate::case::{Case, each_client, each_ingress};
use crate::flows::{backend_answers, bed_with_service, client_entry, handshake, table_sizes};
use crate::snat::Node;

each_client! {
    a_connection_that_finds_no_room_is_served_from_the_table_of_new_ones
    no_connection_moves_while_the_agent_copies_the_table
    no_half_of_a_connection_moves
    a_half_that_finds_no_room_is_made_again_in_the_table_of_new_ones
    a_connection_that_finds_no_room_is_established_once
    a_client_whose_connection_finds_no_room_has_an_affinity
}

each_ingress! {
    a_forged_reset_takes_no_port_from_a_connection_that_finds_no_room
}

/// Returns a bed whose FLOWS has room for so many entries, with a Service with one backend on this node.
fn bed_with_room(case: Case, flows: u32) -> Bed {
    let bed = Bed::builder().sizes(Sizes { flows, ..Sizes::default() }).load();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed
}

/// Lets no connection into FLOWS.
fn hold(bed: &Bed) {
    bed.set_agent_word(AGENT_HOLD, monotonic_seconds() + 100);
}

/// FLOWS evicts nothing.
fn a_connection_that_finds_no_room_is_served_from_the_table_of_new_ones(case: Case) {
    let bed = bed_with_room(case, 2);
    handshake(case, &bed);
    assert_eq!(table_sizes(&bed), (0, 2));
    let [syn, data] = [flag::SYN, flag::ACK].map(|flags| case.tcp_from(2, flags));
    case.arrives(&bed, &syn).assert_counted(case.served());
    bed.answer_all();
    for _ in 0..2 {
        case.arrives(&bed, &data).assert_counted(case.served());
    }
    assert_eq!(table_sizes(&bed), (2, 2));
    let reply = data.clone().with_destination(case.pod(1)).reply();
    let states = || [&data, &reply].map(|frame| bed.flow_of(FlowTable::New, frame).unwrap().state);
    assert_eq!(states(), [FLOW_ESTABLISHED; 2], "it may be silent for as long as others");
    bed.age_flows(Timeouts::default().syn + 60);
    bed.send(case.way_out(), &reply).assert_counted(Reason::Reply);

    bed.forget_flow(&case.tcp(flag::ACK));
    bed.forget_flow(&case.tcp(flag::ACK).with_destination(case.pod(1)).reply());
    case.arrives(&bed, &data).assert_counted(case.served());
    assert_eq!(table_sizes(&bed), (0, 2), "there is room again");
}

fn no_connection_moves_while_the_agent_copies_the_table(case: Case) {
    let bed = bed_with_service(case);
    hold(&bed);
    handshake(case, &bed);
    assert_eq!(table_sizes(&bed), (2, 0));
    let data = case.tcp(flag::ACK);
    assert_eq!(client_entry(case, &bed, &data).state, FLOW_ESTABLISHED, "it may be silent for long");
    backend_answers(case, &bed, flag::ACK);
    assert_eq!(table_sizes(&bed), (2, 0));
    // The agent was killed meanwhile.
    bed.set_agent_word(AGENT_HOLD, monotonic_seconds() - 1);
    client_entry(case, &bed, &case.tcp(flag::ACK));
    assert_eq!(table_sizes(&bed), (0, 2));
}

fn no_half_of_a_connection_moves(case: Case) {
    let bed = bed_with_room(case, 1);
    handshake(case, &bed);
    assert_eq!(table_sizes(&bed), (2, 0));
    backend_answers(case, &bed, flag::ACK);
    client_entry(case, &bed, &case.tcp(flag::ACK));
    assert_eq!(table_sizes(&bed), (2, 0));
}

fn a_half_that_finds_no_room_is_made_again_in_the_table_of_new_ones(case: Case) {
    let bed = bed_with_room(case, 3);
    handshake(case, &bed);
    let data = case.tcp(flag::ACK);
    let reply = data.clone().with_destination(case.pod(1)).reply();
    bed.forget_flow(&reply);
    let [syn, ack] = [flag::SYN, flag::ACK].map(|flags| case.tcp_from(2, flags));
    case.arrives(&bed, &syn);
    bed.answer_all();
    case.arrives(&bed, &ack);
    // The one with a missing half, and the other one.
    assert_eq!(table_sizes(&bed), (0, 3));
    bed.age_flows(FLOW_RENEWAL + 1);
    client_entry(case, &bed, &data);
    assert_eq!(table_sizes(&bed), (1, 3));
    for _ in 0..2 {
        bed.send(case.way_out(), &reply).assert_counted(Reason::Reply);
        bed.age_flows(FLOW_RENEWAL + 1);
        client_entry(case, &bed, &data);
    }
}

fn a_connection_that_finds_no_room_is_established_once(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    let before = bed.connections(service.id).established;
    let established = || bed.connections(service.id).established - before;
    hold(&bed);
    handshake(case, &bed);
    assert_eq!(established(), 1);
    // An answer shows once that the client has seen it.
    let exchange = || {
        backend_answers(case, &bed, flag::ACK);
        client_entry(case, &bed, &case.tcp(flag::ACK));
    };
    exchange();
    assert_eq!((established(), table_sizes(&bed)), (1, (2, 0)));
    bed.set_agent_word(AGENT_HOLD, 0);
    exchange();
    assert_eq!((established(), table_sizes(&bed)), (1, (0, 2)));
}

fn a_client_whose_connection_finds_no_room_has_an_affinity(case: Case) {
    let bed = Bed::new();
    let service = bed.service().affinity().external(case.vip());
    service.backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    hold(&bed);
    case.arrives(&bed, &case.tcp(flag::SYN));
    // The ACK is forged, because no backend has answered.
    case.arrives(&bed, &case.tcp(flag::ACK));
    assert_eq!(bed.affinities(), []);
    bed.answer_all();
    case.arrives(&bed, &case.tcp(flag::ACK));
    assert_eq!((bed.affinities().len(), table_sizes(&bed)), (1, (2, 0)));
}

fn a_forged_reset_takes_no_port_from_a_connection_that_finds_no_room(case: Case) {
    let node = Node::with(case, Bed::builder().snat_ports(62000, 62000), |service| service);
    hold(&node.bed);
    node.establish(40000);
    node.forwards(&case.tcp(flag::RST));
    let states: Vec<_> = node.bed.flows(FlowTable::New).iter().map(|entry| entry.state).collect();
    assert_eq!(states, [FLOW_CLOSING; 2]);
    case.arrives(&node.bed, &case.tcp_from(40001, flag::SYN)).assert_dropped(Reason::SnatPorts);
    // The receiver believed it.
    node.bed.age_flows(FLOW_QUIET + 1);
    assert_eq!(node.forwards(&case.tcp_from(40001, flag::SYN)).port(), 62000);
}
