//! SNAT ports: their connections, and how long each one keeps its port.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use millrace_lab::frame::{Frame, flag, protocol};
use millrace_lab::program::{Bed, FlowTable, ServiceBuilder};
use proxy_common::config::{SHARE_ALONE, SHARE_NEWER};
use proxy_common::flow::{FLOW_CLOSING, FLOW_FIN_BACKEND, FLOW_FIN_CLIENT, FLOW_REPLY};
use proxy_common::timeouts::{FLOW_QUIET, Timeouts};
use proxy_common::verdict::Reason;

use crate::case::{Case, TARGET_PORT, VIP_PORT, each_ingress};
use crate::snat::Node;

each_ingress! {
    connections_of_many_clients_have_ports_of_their_own
    two_connections_never_share_a_port
    a_port_is_taken_from_an_unanswered_connection
    a_reset_that_may_be_forged_costs_no_port_at_once
    every_connection_is_served_until_no_port_is_free
    no_live_port_is_lent_while_another_is_free
    each_connection_is_served_while_some_port_can_be_lent
    a_datagram_gets_the_port_that_was_silent_longest
    a_flood_of_forged_datagrams_costs_no_query_its_answer
    a_port_is_free_again_when_its_connection_has_ended
    a_port_of_an_ended_connection_is_chosen_last
    a_connection_that_has_lost_its_port_disturbs_no_other
    a_connection_whose_entries_are_lost_gets_the_same_port_again
    a_port_of_a_connection_of_the_kernel_is_left_to_it_during_a_mode_change
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

fn a_port_of_a_connection_of_the_kernel_is_left_to_it_during_a_mode_change(case: Case) {
    let served = |share| {
        let node = Node::with(case, Bed::builder().share(share).snat_ports(62000, 62001), |service| service);
        let own = SocketAddr::new(case.family.node(1), 62000);
        node.bed.note_node_flow(protocol::TCP, case.remote_pod(1), own);
        (40000..40003)
            .filter_map(|port| {
                let outcome = case.arrives(&node.bed, &case.tcp_from(port, flag::SYN));
                let is_sent = outcome.counts.of(Reason::SentSnat).packets > 0;
                node.bed.answer_all();
                is_sent.then(|| {
                    node.forwards(&case.tcp_from(port, flag::ACK));
                    outcome.frame().source().port()
                })
            })
            .collect::<Vec<u16>>()
    };
    assert_eq!(served(SHARE_NEWER), [62001]);
    let mut alone = served(SHARE_ALONE);
    alone.sort_unstable();
    assert_eq!(alone, [62000, 62001]);
}

fn a_port_is_taken_from_an_unanswered_connection(case: Case) {
    for flags in [flag::SYN, flag::ACK, flag::FIN, 0] {
        let node = narrow(case);
        // The number of the client's packets does not matter.
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

fn a_port_is_free_again_when_its_connection_has_ended(case: Case) {
    // Entries can't be older than the machine, which may have started for this test.
    let times = Timeouts { established: 10, ..Timeouts::default() };
    let node = Node::with(case, Bed::builder().snat_ports(62000, 62000).timeouts(times), |service| service);
    node.establish(40000);
    let both = FLOW_FIN_CLIENT | FLOW_FIN_BACKEND;
    node.bed.rewrite_flows(|entry| (entry.state, entry.flags) = (FLOW_CLOSING, entry.flags | both));
    assert_eq!(node.establish(40001).port(), 62000);
    assert_eq!(node.bed.flows(FlowTable::Established).len(), 2, "both entries of the old one are gone");
    node.bed.age_flows(12);
    assert_eq!(node.establish(40002).port(), 62000);
}

fn a_reset_that_may_be_forged_costs_no_port_at_once(case: Case) {
    let node = narrow(case);
    node.establish(40000);
    let is_refused = || {
        case.arrives(&node.bed, &case.tcp_from(40001, flag::SYN)).assert_dropped(Reason::SnatPorts);
    };
    node.forwards(&case.tcp(flag::RST));
    assert!(node.bed.flows(FlowTable::Established).iter().all(|entry| entry.state == FLOW_CLOSING));
    is_refused();
    node.bed.age_flows(FLOW_QUIET - 2);
    is_refused();
    // The RST was not believed.
    node.forwards(&case.tcp(flag::ACK));
    node.bed.age_flows(FLOW_QUIET + 1);
    is_refused();
    node.forwards(&case.tcp(flag::RST));
    node.bed.age_flows(FLOW_QUIET + 1);
    assert_eq!(node.forwards(&case.tcp_from(40001, flag::SYN)).port(), 62000);
}

fn every_connection_is_served_until_no_port_is_free(case: Case) {
    const PORTS: u16 = 500;
    let range = (62000, 62000 + PORTS - 1);
    let node = Node::with(case, Bed::builder().snat_ports(range.0, range.1), |service| service);
    let mut ports: Vec<u16> = (0..PORTS).map(|number| node.establish(10000 + number).port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports, (range.0..=range.1).collect::<Vec<_>>());
    let next = case.tcp_from(40000, flag::SYN);
    case.arrives(&node.bed, &next).assert_dropped(Reason::SnatPorts);
    // One connection ends, and the next search finds its port.
    let last = case.tcp_from(10000, flag::ACK);
    let freed = node.forwards(&last);
    node.bed.forget_flow(&last);
    node.bed.forget_flow(&node.answer(&last, freed, flag::ACK));
    let begin = Instant::now();
    loop {
        let outcome = case.arrives(&node.bed, &next);
        if outcome.counts.of(Reason::SentSnat).packets > 0 {
            assert_eq!(outcome.frame().source(), freed);
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "the free port was not found");
    }
}

/// Handshakes that are under way, and datagrams of this second.
fn no_live_port_is_lent_while_another_is_free(case: Case) {
    const PORTS: u16 = 64;
    let ports = || Bed::builder().snat_ports(62000, 62000 + PORTS - 1);
    let all = |mut ports: Vec<u16>| {
        ports.sort_unstable();
        assert_eq!(ports, (62000..62000 + PORTS).collect::<Vec<_>>());
    };
    let node = Node::with(case, ports(), |service| service);
    all((0..PORTS).map(|n| node.forwards(&case.tcp_from(10000 + n, flag::SYN)).port()).collect());
    let node = Node::with(case, ports(), over_udp);
    let from = |n| udp_from(case, SocketAddr::new(case.client().ip(), 10000 + n));
    let sources: Vec<SocketAddr> = (0..PORTS).map(|n| node.forwards(&from(n))).collect();
    all(sources.iter().map(SocketAddr::port).collect());
    node.bed.answer_all();
    for (n, source) in (0..PORTS).zip(sources) {
        assert_eq!(node.forwards(&from(n)), source);
    }
    // None is free: one that is silent goes first.
    node.bed.age_flows(FLOW_QUIET + 1);
    let live: Vec<SocketAddr> = (1..PORTS).map(|n| node.forwards(&from(n))).collect();
    let taken = node.forwards(&from(PORTS));
    assert!(!live.contains(&taken), "{taken}");
}

/// Most ports are taken for good, and the others were used this second.
fn each_connection_is_served_while_some_port_can_be_lent(case: Case) {
    const PORTS: u16 = 400;
    const TAKEN: u16 = 380;
    let node = Node::with(case, Bed::builder().snat_ports(62000, 62000 + PORTS - 1), |service| service);
    for port in 0..TAKEN {
        node.establish(10000 + port);
    }
    for port in TAKEN..2 * PORTS {
        node.forwards(&case.tcp_from(10000 + port, flag::SYN));
    }
}

fn over_udp(service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
    service.udp()
}

fn udp_from(case: Case, address: SocketAddr) -> Frame {
    Frame::ip(address.ip(), case.vip().ip()).udp(address.port(), VIP_PORT).payload(&b"a question"[..])
}

fn a_datagram_gets_the_port_that_was_silent_longest(case: Case) {
    let client = |port| udp_from(case, SocketAddr::new(case.client().ip(), port));
    let node = Node::with(case, Bed::builder().snat_ports(62000, 62003), over_udp);
    let goes_on = |port| {
        let source = node.forwards(&client(port));
        node.bed.answer_all();
        assert_eq!(node.forwards(&client(port)), source, "promoted");
        source
    };
    let mut taken = Vec::new();
    for port in 40000..40004 {
        node.bed.age_flows(1);
        taken.push(goes_on(port));
    }
    let unlike = taken.iter().collect::<std::collections::HashSet<_>>();
    assert_eq!(unlike.len(), 4, "as long as one is free none is taken");
    // Some hashes name the same ports more than once.
    let next = (40010..40100).find(|port| node.forwards(&client(*port)) == taken[0]);
    assert!(next.is_some_and(|port| port < 40012), "{next:?}");
}

/// A tenth of the full attack of 2,000 pairs a second at 4536 ports, for a minute.
fn a_flood_of_forged_datagrams_costs_no_query_its_answer(case: Case) {
    const PORTS: u16 = 454;
    const PAIRS: u32 = 200;
    /// The time that a query waits for its answer, in pairs: a quarter of a second.
    const WAIT: u32 = PAIRS / 4;
    let node = Node::with(case, Bed::builder().snat_ports(62000, 62000 + PORTS - 1), over_udp);
    let forged = |number: u32| udp_from(case, SocketAddr::new(case.client().ip(), 1024 + number as u16));
    let query = |number: u32| udp_from(case, SocketAddr::new(case.family.node(99), 1024 + number as u16));
    for second in 0..20 {
        node.bed.age_flows(1);
        for part in 0..PAIRS / WAIT {
            let (number, first) = (second * 4 + part, second * PAIRS + part * WAIT);
            let source = node.forwards(&query(number));
            (first..first + WAIT).for_each(|number| _ = node.forwards(&forged(number)));
            node.bed.answer_all();
            (first..first + WAIT).for_each(|number| _ = node.forwards(&forged(number)));
            let answer = node.forwarded(&query(number), source).reply();
            let Some(entry) = node.bed.flow_of(FlowTable::New, &answer) else {
                panic!("the query's port is another flow's");
            };
            assert_eq!(entry.new_destination, query(number).source());
        }
    }
}

fn a_port_of_an_ended_connection_is_chosen_last(case: Case) {
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

fn a_connection_that_has_lost_its_port_disturbs_no_other(case: Case) {
    let node = narrow(case);
    node.establish(40000);
    let reply = node.answer(&case.tcp(flag::ACK), SocketAddr::new(case.family.node(1), 62000), flag::ACK);
    // An LRU map may do that at any time.
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
