//! Connections of this node's own, at a port that is a NodePort's number: of its sockets, and of
//! pods that its CNI masquerades. The stack gets their packets.

use std::net::SocketAddr;

use millrace_lab::frame::{Frame, chunk, flag, protocol};
use millrace_lab::program::{Bed, Hook, ServiceBuilder, known_hop};
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{Case, Family, each_ingress};

each_ingress! {
    answers_to_a_connection_of_this_node_go_to_the_stack
    an_answer_to_an_unrecorded_connection_goes_to_the_stack
    datagrams_that_answer_this_nodes_own_go_to_the_stack
    answers_over_sctp_go_to_the_stack
    an_error_about_a_connection_of_this_node_goes_to_the_stack
    a_dsr_node_port_leaves_this_nodes_connections_alone
    a_load_balancer_at_this_nodes_address_leaves_its_connections_alone
    a_dsr_load_balancer_at_this_nodes_address_leaves_its_connections_alone
    a_client_of_a_listener_is_served_when_that_has_gone
    other_clients_are_served_beside_them
    a_reset_of_this_node_records_no_connection
    a_reply_that_was_translated_is_no_connection_of_this_node
    a_connection_from_the_same_port_is_served_when_it_begins
}

const NODE_PORT: u16 = 30080;
const SERVER_PORT: u16 = 443;

impl Case {
    /// Returns this node's address with the NodePort's number.
    fn at_node(self) -> SocketAddr {
        SocketAddr::new(self.family.node(1), NODE_PORT)
    }

    fn server(self) -> SocketAddr {
        SocketAddr::new(self.client().ip(), SERVER_PORT)
    }

    /// Returns the frame of a server outside to a client at the NodePort's number.
    fn of_server(self) -> Frame {
        Frame::ip(self.server().ip(), self.at_node().ip())
    }

    fn tcp_from_server(self, flags: u8) -> Frame {
        self.of_server().tcp(SERVER_PORT, NODE_PORT, flags)
    }

    fn bed_with_node_port(self, of_kind: impl FnOnce(ServiceBuilder<'_>) -> ServiceBuilder<'_>) -> Bed {
        let bed = Bed::builder().load();
        bed.peer(self.at_node().ip(), PEER_SELF | PEER_NODE);
        of_kind(bed.service()).external(self.at_node()).backend_local(self.pod(1)).install();
        bed
    }

    fn node_port(self) -> Bed {
        self.bed_with_node_port(|service| service.protocol(protocol::TCP).node_ports())
    }

    #[track_caller]
    fn is_the_stacks(self, bed: &Bed, frame: &Frame) {
        self.arrives(bed, frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

/// Checks that a packet of this node's own leaves unchanged.
#[track_caller]
fn leaves(bed: &Bed, frame: &Frame) {
    bed.send(Hook::TcEgress, frame).assert_untouched().assert_counted(Reason::NotOurs);
}

fn answers_to_a_connection_of_this_node_go_to_the_stack(case: Case) {
    let bed = case.node_port();
    leaves(&bed, &case.tcp_from_server(flag::SYN).reply());
    case.is_the_stacks(&bed, &case.tcp_from_server(flag::SYN | flag::ACK));
    leaves(&bed, &case.tcp_from_server(flag::ACK).reply());
    for flags in [flag::ACK, flag::ACK | flag::FIN, flag::RST] {
        case.is_the_stacks(&bed, &case.tcp_from_server(flags));
    }
}

fn an_answer_to_an_unrecorded_connection_goes_to_the_stack(case: Case) {
    case.is_the_stacks(&case.node_port(), &case.tcp_from_server(flag::SYN | flag::ACK));
}

fn datagrams_that_answer_this_nodes_own_go_to_the_stack(case: Case) {
    let bed = case.bed_with_node_port(|service| service.node_ports().udp());
    let answer = case.of_server().udp(SERVER_PORT, NODE_PORT).payload(&b"an answer"[..]);
    case.is_delivered(&bed, &answer, &answer.clone().with_destination(case.pod(1)), Reason::ServedLocal);
    bed.forget_flows();
    leaves(&bed, &answer.clone().reply());
    case.is_the_stacks(&bed, &answer);
}

fn answers_over_sctp_go_to_the_stack(case: Case) {
    let bed = case.bed_with_node_port(|service| service.node_ports().protocol(protocol::SCTP));
    let from_server = |chunk| case.of_server().sctp(SERVER_PORT, NODE_PORT, chunk).payload(vec![7; 12]);
    leaves(&bed, &from_server(chunk::INIT).reply());
    for chunk in [chunk::INIT_ACK, chunk::SACK, chunk::DATA] {
        case.is_the_stacks(&bed, &from_server(chunk));
    }
}

fn an_error_about_a_connection_of_this_node_goes_to_the_stack(case: Case) {
    let bed = case.node_port();
    let sent = case.tcp_from_server(flag::ACK).reply();
    leaves(&bed, &sent);
    case.is_the_stacks(&bed, &sent.icmp_error(case.router(), case.too_big()));
}

#[expect(clippy::redundant_closure_for_method_calls, reason = "the method is for a builder of one lifetime")]
fn a_dsr_node_port_leaves_this_nodes_connections_alone(case: Case) {
    a_dsr_frontend_leaves_this_nodes_connections_alone(case, |service| service.node_ports());
}

fn a_dsr_load_balancer_at_this_nodes_address_leaves_its_connections_alone(case: Case) {
    a_dsr_frontend_leaves_this_nodes_connections_alone(case, |service| service);
}

fn a_dsr_frontend_leaves_this_nodes_connections_alone(
    case: Case,
    of_kind: impl FnOnce(ServiceBuilder<'_>) -> ServiceBuilder<'_>,
) {
    let bed = Bed::builder().load();
    bed.peer(case.at_node().ip(), PEER_SELF | PEER_NODE);
    bed.node_port(NODE_PORT);
    let service = of_kind(bed.service().dsr()).external(case.at_node());
    let way = bed.way(millrace_lab::program::resolved_way(case.family.node(1), case.family.node(2)));
    let service = service.backend_remote(case.remote_pod(1), way).install();
    bed.hop(service.endpoints[0].at, known_hop(case.family.node(1)));
    case.arrives(&bed, &case.tcp_from_server(flag::ACK)).assert_counted(Reason::SentDsr);
    leaves(&bed, &case.tcp_from_server(flag::SYN).reply());
    for flags in [flag::SYN | flag::ACK, flag::ACK] {
        case.is_the_stacks(&bed, &case.tcp_from_server(flags));
    }
}

fn a_load_balancer_at_this_nodes_address_leaves_its_connections_alone(case: Case) {
    let bed = case.bed_with_node_port(|service| service);
    bed.node_port(NODE_PORT);
    leaves(&bed, &case.tcp_from_server(flag::SYN).reply());
    for flags in [flag::SYN | flag::ACK, flag::ACK] {
        case.is_the_stacks(&bed, &case.tcp_from_server(flags));
    }
}

/// A pod of the node's network was the backend, and has moved. Its answers have not made its clients peers of
/// this node.
fn a_client_of_a_listener_is_served_when_that_has_gone(case: Case) {
    let bed = case.bed_with_node_port(|service| service.node_ports().udp().listener());
    let question = case.of_server().udp(SERVER_PORT, NODE_PORT).payload(&b"a question"[..]);
    case.is_the_stacks(&bed, &question);
    leaves(&bed, &question.clone().reply());
    bed.service().node_ports().udp().external(case.at_node()).backend_local(case.pod(1)).install();
    let delivered = question.clone().with_destination(case.pod(1));
    case.is_delivered(&bed, &question, &delivered, Reason::ServedLocal);
}

fn other_clients_are_served_beside_them(case: Case) {
    let bed = case.node_port();
    leaves(&bed, &case.tcp_from_server(flag::SYN).reply());
    for flags in [flag::SYN, flag::ACK] {
        let frame = Frame::ip(case.client().ip(), case.at_node().ip()).tcp(40001, NODE_PORT, flags);
        let delivered = frame.clone().with_destination(case.pod(1));
        case.is_delivered(&bed, &frame, &delivered, Reason::ServedLocal);
    }
}

fn a_reset_of_this_node_records_no_connection(case: Case) {
    let bed = case.node_port();
    leaves(&bed, &case.tcp_from_server(flag::RST).reply());
    let frame = case.tcp_from_server(flag::ACK);
    case.is_delivered(&bed, &frame, &frame.clone().with_destination(case.pod(1)), Reason::ServedLocal);
}

/// The device is below the one on which the reply was translated.
fn a_reply_that_was_translated_is_no_connection_of_this_node(case: Case) {
    let bed = case.node_port();
    let frame = case.tcp_from_server(flag::SYN);
    case.arrives(&bed, &frame).assert_counted(Reason::ServedLocal);
    leaves(&bed, &frame.clone().reply());
    bed.forget_flows();
    let later = case.tcp_from_server(flag::ACK);
    case.is_delivered(&bed, &later, &later.clone().with_destination(case.pod(1)), Reason::ServedLocal);
}

fn a_connection_from_the_same_port_is_served_when_it_begins(case: Case) {
    let bed = case.node_port();
    leaves(&bed, &case.tcp_from_server(flag::ACK).reply());
    for flags in [flag::SYN, flag::ACK] {
        let frame = case.tcp_from_server(flags);
        case.is_delivered(&bed, &frame, &frame.clone().with_destination(case.pod(1)), Reason::ServedLocal);
    }
}

/// The node itself asks its pod from a port that is a NodePort's number. The pod's device has our programs.
#[test]
fn answers_of_a_pod_to_its_node_go_to_the_stack() {
    for family in [Family::V4, Family::V6] {
        let case = Case { hook: Hook::TcPodIn, family };
        let bed = case.bed_with_node_port(|service| service.protocol(protocol::TCP).node_ports());
        let pod = case.pod(2);
        let asks = |flags| Frame::ip(case.at_node().ip(), pod.ip()).tcp(NODE_PORT, 8080, flags);
        bed.send(Hook::TcPodOut, &asks(flag::SYN)).assert_untouched();
        for flags in [flag::SYN | flag::ACK, flag::ACK] {
            let answer = asks(flags).reply().with_flags(flags);
            bed.send(Hook::TcPodIn, &answer).assert_untouched().assert_counted(Reason::NotOurs);
        }
        let error = asks(flag::ACK).icmp_error(case.router(), case.too_big());
        bed.send(Hook::TcPodIn, &error).assert_untouched().assert_counted(Reason::NotOurs);
        // A connection of the pod's own is served.
        let begins = asks(0).reply().with_flags(flag::SYN).with_source(case.pod(3));
        bed.send(Hook::TcPodIn, &begins).assert_counted(Reason::ServedPod);
    }
}
