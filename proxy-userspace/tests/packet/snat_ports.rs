//! Ports of this node that connections to other nodes' backends are given (SNAT): who has one, and for how long.

use std::net::SocketAddr;

use millrace_lab::frame::flag;
use millrace_lab::program::{Bed, FlowTable};
use proxy_common::flow::{FLOW_CLOSING, FLOW_REPLY, Timeouts};
use proxy_common::verdict::Reason;

use crate::case::{Case, TARGET_PORT, each_ingress};
use crate::snat::Node;

each_ingress! {
    connections_of_many_clients_have_ports_of_their_own
    two_connections_never_share_a_port
    a_port_is_taken_from_a_connection_nobody_has_answered_in
    a_port_is_had_again_when_its_connection_has_ended
    a_port_of_a_connection_that_has_ended_is_the_last_to_be_had
    a_connection_whose_port_was_given_away_disturbs_nobody
    a_connection_whose_entries_are_lost_gets_the_same_port_again
}

fn connections_of_many_clients_have_ports_of_their_own(case: Case) {
    let node = Node::new(case);
    let mut ports: Vec<u16> =
        (40000..40400).map(|port| node.forwards(&case.tcp_from(port, flag::SYN)).port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 400);
}

fn narrow(case: Case) -> Node {
    Node::with(case, Bed::builder().snat_ports(62000, 62000), |service| service)
}

fn two_connections_never_share_a_port(case: Case) {
    let node = narrow(case);
    assert_eq!(node.establish(40000).port(), 62000);
    let flows = node.bed.flows(FlowTable::Established);
    case.arrives(&node.bed, &case.tcp_from(40001, flag::SYN)).assert_dropped(Reason::SnatPorts);
    case.arrives(&node.bed, &case.tcp_from(40001, flag::ACK)).assert_dropped(Reason::SnatPorts);
    assert_eq!((node.bed.flows(FlowTable::Established), node.bed.flows(FlowTable::New)), (flows, vec![]));
}

fn a_port_is_taken_from_a_connection_nobody_has_answered_in(case: Case) {
    for flags in [flag::SYN, flag::ACK, flag::FIN, 0] {
        let node = narrow(case);
        // However often its client sends.
        for _ in 0..3 {
            node.forwards(&case.tcp(flags));
        }
        assert_eq!(node.forwards(&case.tcp_from(40001, flag::SYN)).port(), 62000);
        let clients: Vec<u16> =
            node.bed.flows(FlowTable::New).iter().map(|entry| entry.source.port()).collect();
        assert!(
            clients.len() == 2 && clients.contains(&40001) && clients.contains(&TARGET_PORT),
            "{clients:?}"
        );
        assert_eq!(node.bed.flows(FlowTable::Established), []);
    }
}

fn a_port_is_had_again_when_its_connection_has_ended(case: Case) {
    // Entries can't be older than the machine, which may have been started for this test.
    let times = Timeouts { established: 10, ..Timeouts::default() };
    let node = Node::with(case, Bed::builder().snat_ports(62000, 62000).timeouts(times), |service| service);
    node.establish(40000);
    node.bed.rewrite_flows(|entry| entry.state = FLOW_CLOSING);
    assert_eq!(node.establish(40001).port(), 62000);
    assert_eq!(node.bed.flows(FlowTable::Established).len(), 2, "both entries of the old one are gone");
    node.bed.age_flows(12);
    assert_eq!(node.establish(40002).port(), 62000);
}

fn a_port_of_a_connection_that_has_ended_is_the_last_to_be_had(case: Case) {
    let node = Node::with(case, Bed::builder().snat_ports(62000, 62003), |service| service);
    let first = node.establish(40000);
    node.bed.rewrite_flows(|entry| entry.state = FLOW_CLOSING);
    node.bed.age_flows(59);
    for port in 40001..40010 {
        let syn = case.tcp_from(port, flag::SYN);
        let second = node.forwards(&syn);
        assert_ne!(second, first, "the backend may be in TIME-WAIT");
        node.bed.forget_flow(&syn);
        node.bed.forget_flow(&node.answer(&syn, second, flag::SYN | flag::ACK));
    }
}

fn a_connection_whose_port_was_given_away_disturbs_nobody(case: Case) {
    let node = narrow(case);
    node.establish(40000);
    let reply = node.answer(&case.tcp(flag::ACK), SocketAddr::new(case.family.node(1), 62000), flag::ACK);
    // As an LRU map may do at any time.
    node.bed.forget_flow(&reply);
    node.establish(40001);
    node.bed.age_flows(2);
    case.arrives(&node.bed, &case.tcp(flag::ACK));
    let entries = node.bed.flows(FlowTable::Established);
    let reply = entries.iter().find(|entry| entry.flags & FLOW_REPLY != 0).unwrap();
    assert_eq!(reply.new_destination.port(), 40001);
    assert!(entries.len() == 2 && entries.iter().any(|entry| entry.source.port() == 40001));
    case.arrives(&node.bed, &case.tcp(flag::ACK)).assert_dropped(Reason::SnatPorts);
}

fn a_connection_whose_entries_are_lost_gets_the_same_port_again(case: Case) {
    let node = Node::new(case);
    let source = node.forwards(&case.tcp(flag::SYN));
    node.bed.forget_flows();
    assert_eq!(node.forwards(&case.tcp(flag::ACK)), source);
}
