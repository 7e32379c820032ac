//! Backends on other nodes, reached from an address and port of this one (SNAT): both directions,
//! on one node.

use std::net::SocketAddr;

use millrace_lab::frame::{DEVICE_MAC, Frame, Icmp, Layer, flag};
use millrace_lab::program::{
    Bed, BedBuilder, FlowTable, Hook, Ingress, NEXT_HOP_MAC, Outcome, ServiceBuilder, known_hop,
};
use proxy_common::flow::{FLOW_ESTABLISHED, FLOW_REPLY};
use proxy_common::hop::{Device, HOP_NEIGHBOUR, Hop};
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};
use proxy_common::{Addr4, Addr6};

use crate::case::{Case, Family, TARGET_PORT, VIP_PORT, each_ingress};
use crate::network::{connect_to_nodes, in_an_empty_namespace};

each_ingress! {
    a_connection_leaves_from_a_port_of_this_node_and_keeps_it
    a_datagram_leaves_from_a_port_of_this_node
    a_connection_keeps_its_backend_and_port_when_its_slot_gets_another_owner
    a_lost_entry_of_either_direction_comes_back_with_the_next_packet_of_the_other
    an_entry_that_is_another_connections_by_now_is_not_believed
    a_reset_without_a_connection_leaves_no_trace
    a_packet_at_the_end_of_its_hops_is_not_forwarded
    a_packet_that_does_not_fit_the_route_is_not_forwarded
    xdp_leaves_what_it_cannot_send_to_tc_and_remembers_nothing
    a_backend_without_a_route_drops
    a_frontend_that_a_backend_here_listens_on_is_left_to_the_stack
    a_reply_is_distinguished_from_a_client_of_a_frontend_on_the_same_port
    packets_to_ports_without_a_connection_pass_byte_for_byte
    the_reply_comes_from_the_frontend
    a_port_of_a_former_range_still_gets_its_replies
    the_answer_to_a_syn_offers_segments_that_fit_the_route_to_the_backend
    the_route_to_a_backend_is_asked_of_the_kernel
}

/// Node 1, with a backend on node 2.
pub struct Node {
    pub bed: Bed,
    case: Case,
}

impl Node {
    pub fn new(case: Case) -> Self {
        Self::with(case, Bed::builder(), |service| service)
    }

    pub fn with(
        case: Case,
        builder: BedBuilder,
        change: impl for<'a> Fn(ServiceBuilder<'a>) -> ServiceBuilder<'a>,
    ) -> Self {
        let bed = builder.load();
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
            bed.peer(case.family.node(number), bits);
        }
        let service = change(bed.service()).external(case.vip());
        service.backend_remote(case.remote_pod(1), 0).install();
        bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
        Self { bed, case }
    }

    /// Runs the program on a client's frame, which must leave for the backend. Returns the source.
    #[track_caller]
    pub fn forwards(&self, frame: &Frame) -> SocketAddr {
        let outcome = self.case.arrives(&self.bed, frame);
        outcome.assert_counted(Reason::SentSnat);
        let source = outcome.frame().source();
        assert_eq!(source.ip(), self.case.family.node(1));
        outcome.assert_sent(&self.forwarded(frame, source));
        source
    }

    /// Returns a client's frame as it leaves for the backend.
    pub fn forwarded(&self, frame: &Frame, source: SocketAddr) -> Frame {
        let sent = frame.clone().with_source(source).with_destination(self.case.remote_pod(1));
        sent.with_hop_limit(63).with_macs(DEVICE_MAC, NEXT_HOP_MAC)
    }

    /// Lets the backend answer all connections, as the real programs record it.
    fn answer_all(&self) {
        self.bed.answer_all();
    }

    /// Opens a connection from a port, with the backend's answer and the client's next packet.
    #[track_caller]
    pub fn establish(&self, port: u16) -> SocketAddr {
        let source = self.forwards(&self.case.tcp_from(port, flag::SYN));
        self.answer_all();
        assert_eq!(self.forwards(&self.case.tcp_from(port, flag::ACK)), source);
        source
    }

    /// Returns the backend's answer to a packet that left from `source` for a client's `frame`.
    pub fn answer(&self, frame: &Frame, source: SocketAddr, flags: u8) -> Frame {
        self.forwarded(frame, source).reply().with_flags(flags)
    }

    /// Runs a check in a network with clients and nodes as neighbours of this node.
    pub fn in_its_network(self, check: impl FnOnce(&Self) + Send) {
        let own = self.case.family.node(1);
        let shared = std::sync::Mutex::new(self);
        in_an_empty_namespace(|| {
            connect_to_nodes(own);
            check(&shared.into_inner().unwrap());
        });
    }
}

/// Returns a client that is a neighbour of node 1 in [`Node::in_its_network`].
pub fn neighbour(case: Case) -> SocketAddr {
    SocketAddr::new(case.family.node(99), 40000)
}

fn syn_from(case: Case, client: SocketAddr) -> Frame {
    Frame::ip(client.ip(), case.vip().ip()).tcp(client.port(), VIP_PORT, flag::SYN)
}

fn a_connection_leaves_from_a_port_of_this_node_and_keeps_it(case: Case) {
    let node = Node::new(case);
    let (syn, data) = (case.tcp(flag::SYN), case.tcp(flag::PSH | flag::ACK));
    let source = node.forwards(&syn);
    assert!((61000..=65535).contains(&source.port()), "{source}");
    assert_eq!(node.forwards(&syn), source, "sent again");
    assert_eq!(node.forwards(&data), source, "the backend has not answered");
    assert_eq!(node.bed.flows(FlowTable::New).len(), 2);
    node.answer_all();
    assert_eq!(node.forwards(&data), source);
    assert_eq!(node.bed.flows(FlowTable::New), []);
    let entries = node.bed.flows(FlowTable::Established);
    let reply = entries.iter().find(|entry| entry.flags & FLOW_REPLY != 0).unwrap();
    assert_eq!((reply.source, reply.destination), (case.remote_pod(1), source));
    assert_eq!((reply.new_source, reply.new_destination), (case.vip(), case.client()));
    assert!(entries.len() == 2 && entries.iter().all(|entry| entry.state == FLOW_ESTABLISHED));
    assert_eq!(node.forwards(&data), source);
}

fn over_udp(service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
    service.udp()
}

fn a_datagram_leaves_from_a_port_of_this_node(case: Case) {
    let node = Node::with(case, Bed::builder(), over_udp);
    let source = node.forwards(&case.udp());
    assert_eq!(node.forwards(&case.udp()), source);
    assert_eq!(node.bed.flows(FlowTable::New).len(), 2, "an unanswered connection has no port of its own");
    node.answer_all();
    assert_eq!(node.forwards(&case.udp()), source);
    assert_eq!(node.bed.flows(FlowTable::Established).len(), 2);
}

fn a_connection_keeps_its_backend_and_port_when_its_slot_gets_another_owner(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).backend_remote(case.remote_pod(1), 0).install();
    bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
    let node = Node { bed, case };
    let source = node.forwards(&case.tcp(flag::SYN));
    let other = node.bed.backend_local(case.pod(1));
    service.set_slot(&node.bed, &case.tcp(flag::ACK), proxy_common::selection::Slot::settled_on(other));
    assert_eq!(node.forwards(&case.tcp(flag::ACK)), source);
    let next = case.tcp_from(40001, flag::SYN);
    case.is_delivered(&node.bed, &next, &next.clone().with_destination(case.pod(1)), Reason::ServedLocal);
}

fn a_lost_entry_of_either_direction_comes_back_with_the_next_packet_of_the_other(case: Case) {
    Node::new(case).in_its_network(|node| {
        let (client, bed) = (neighbour(case), &node.bed);
        let syn = syn_from(case, client);
        let data = syn.clone().with_flags(flag::ACK);
        let source = node.forwards(&syn);
        node.answer_all();
        node.forwards(&data);
        let answer = node.answer(&data, source, flag::ACK);
        bed.forget_flow(&answer);
        bed.age_flows(2);
        node.forwards(&data);
        assert_eq!(bed.flows(FlowTable::Established).len(), 2);
        bed.forget_flow(&data);
        bed.age_flows(2);
        returns(node, &answer, &data);
        assert_eq!(bed.flows(FlowTable::Established).len(), 2);
        assert_eq!(node.forwards(&data), source);
    });
}

fn an_entry_that_is_another_connections_by_now_is_not_believed(case: Case) {
    let node = Node::new(case);
    let source = node.establish(40000);
    node.bed.rewrite_flows(|entry| {
        if entry.flags & FLOW_REPLY == 0 {
            entry.check ^= 0x10;
            entry.new_source.set_port(1);
        }
    });
    assert_eq!(node.forwards(&case.tcp(flag::ACK)), source, "made anew");
    node.bed.rewrite_flows(|entry| entry.check ^= 0x10);
    let answer = node.answer(&case.tcp(flag::ACK), source, flag::ACK);
    case.arrives(&node.bed, &answer).assert_untouched().assert_counted(Reason::NotOurs);
}

fn a_reset_without_a_connection_leaves_no_trace(case: Case) {
    let node = Node::new(case);
    let source = node.forwards(&case.tcp(flag::RST));
    assert_eq!((node.bed.flows(FlowTable::New), node.bed.flows(FlowTable::Established)), (vec![], vec![]));
    assert_eq!(node.forwards(&case.tcp(flag::ACK)), source);
}

fn a_packet_at_the_end_of_its_hops_is_not_forwarded(case: Case) {
    let node = Node::new(case);
    let syn = case.tcp(flag::SYN).with_hop_limit(1);
    let kind = if case.family == Family::V4 { 11 } else { 3 };
    let told = syn.icmp_error(case.family.node(1), Icmp { kind, code: 0, rest: [0; 4] });
    case.arrives(&node.bed, &syn).assert_sent(&told).assert_counted(Reason::HopLimit);
    assert_eq!(node.bed.flows(FlowTable::New), []);
}

fn a_packet_that_does_not_fit_the_route_is_not_forwarded(case: Case) {
    let node = Node::new(case);
    node.bed.hop(case.remote_pod(1), Hop { mtu: 1300, ..known_hop(case.family.node(1)) });
    let bare = case.tcp(flag::ACK).payload(Vec::new());
    let headers = bare.build().len() - 14;
    node.forwards(&bare.clone().payload(vec![7; 1300 - headers]));
    let mut too_big = bare.payload(vec![7; 1301 - headers]);
    if let Layer::Ipv4(ip) = too_big.innermost_mut() {
        ip.dont_fragment = true;
    }
    let told = too_big.icmp_error(case.vip().ip(), case.family.too_big(1300));
    case.arrives(&node.bed, &too_big).assert_sent(&told).assert_counted(Reason::TooBig);
}

fn xdp_leaves_what_it_cannot_send_to_tc_and_remembers_nothing(case: Case) {
    let node = Node::new(case);
    let elsewhere = Hop { device: 4711, flags: HOP_NEIGHBOUR, ..known_hop(case.family.node(1)) };
    let unresolved = Hop { flags: 0, ..known_hop(case.family.node(1)) };
    for hop in [elsewhere, unresolved] {
        node.bed.hop(case.remote_pod(1), hop);
        let outcome = case.arrives(&node.bed, &case.tcp(flag::SYN));
        if case.hook == Hook::XdpIngress {
            outcome.assert_untouched().assert_counted(Reason::HandedToTc);
            assert_eq!(node.bed.flows(FlowTable::New), []);
        } else {
            outcome.assert_counted(Reason::SentSnat);
        }
    }
}

fn a_backend_without_a_route_drops(case: Case) {
    in_an_empty_namespace(|| {
        let bed = Bed::new();
        bed.service().external(case.vip()).backend_remote(case.remote_pod(1), 0).install();
        let outcome = case.arrives(&bed, &case.tcp(flag::SYN));
        match case.hook {
            Hook::XdpIngress => outcome.assert_untouched().assert_counted(Reason::HandedToTc),
            _ => outcome.assert_dropped(Reason::NoWay),
        };
        assert_eq!(bed.flows(FlowTable::New), []);
    });
}

fn a_frontend_that_a_backend_here_listens_on_is_left_to_the_stack(case: Case) {
    let bed = Bed::new();
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
        bed.peer(case.family.node(number), bits);
    }
    let own = SocketAddr::new(case.family.node(1), VIP_PORT);
    let prefix = if case.family == Family::V4 { 24 } else { 48 };
    let service = bed.service().source_range(case.client().ip(), prefix).listener().external(own);
    service.backend_local(case.pod(1)).backend_remote(case.remote_pod(1), 0).install();
    let from = |address| Frame::ip(address, own.ip()).tcp(40000, VIP_PORT, flag::SYN);
    for address in [case.client().ip(), case.family.node(2)] {
        case.arrives(&bed, &from(address)).assert_untouched().assert_counted(Reason::NotOurs);
    }
    case.arrives(&bed, &from(case.family.node(3))).assert_dropped(Reason::SourceRefused);
}

fn a_reply_is_distinguished_from_a_client_of_a_frontend_on_the_same_port(case: Case) {
    Node::new(case).in_its_network(|node| {
        let syn = syn_from(case, neighbour(case));
        let source = node.forwards(&syn);
        node.bed.service().external(source).backend_local(case.pod(1)).install();
        returns(node, &node.answer(&syn, source, flag::SYN | flag::ACK), &syn);
        let client = Frame::ip(case.client().ip(), source.ip()).tcp(40000, source.port(), flag::SYN);
        case.arrives(&node.bed, &client).assert_counted(Reason::ServedLocal);
    });
}

fn packets_to_ports_without_a_connection_pass_byte_for_byte(case: Case) {
    let node = Node::new(case);
    let source = node.forwards(&case.tcp(flag::SYN));
    let answer = node.answer(&case.tcp(flag::SYN), source, flag::SYN | flag::ACK);
    let other = SocketAddr::new(source.ip(), if source.port() == 61000 { 61001 } else { 61000 });
    for stray in [
        answer.clone().with_destination(other),
        answer.clone().with_source(case.remote_pod(2)),
        answer.with_destination(SocketAddr::new(case.family.node(2), source.port())),
    ] {
        case.arrives(&node.bed, &stray).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

/// Checks that the backend's answer reaches the client as if the frontend had sent it.
#[track_caller]
pub fn returns(node: &Node, answer: &Frame, frame: &Frame) -> Outcome {
    let expected = answer.clone().with_source(node.case.vip()).with_destination(frame.source());
    let outcome = node.case.arrives(&node.bed, answer);
    if node.case.hook == Hook::XdpIngress {
        // The neighbour is not resolved yet, which only the stack can do.
        outcome.assert_untouched().assert_counted(Reason::HandedToTc);
        return node.bed.send(Hook::TcIngress, answer).checked(&expected);
    }
    outcome.checked(&expected)
}

pub trait Checked {
    /// Sent as expected, but for the MAC addresses, which the stack writes.
    fn checked(self, expected: &Frame) -> Self;
}

impl Checked for Outcome {
    /// Sent as expected, but for the MAC addresses, which the stack writes.
    #[track_caller]
    fn checked(self, expected: &Frame) -> Self {
        let (source, destination) = (self.frame().source_mac, self.frame().destination_mac);
        let limit = expected.clone().with_hop_limit(62).with_macs(source, destination);
        self.assert_sent(&limit).assert_counted(Reason::ReplySnat);
        self
    }
}

fn the_reply_comes_from_the_frontend(case: Case) {
    for udp in [false, true] {
        let node = Node::with(case, Bed::builder(), |service| if udp { service.udp() } else { service });
        node.in_its_network(|node| {
            let client = neighbour(case);
            let frame = if udp { case.udp().with_source(client) } else { syn_from(case, client) };
            let source = node.forwards(&frame);
            let answer = node.forwarded(&frame, source).reply();
            let answer = if udp { answer } else { answer.with_flags(flag::SYN | flag::ACK) };
            returns(node, &answer, &frame);
            assert_eq!(node.bed.flows(FlowTable::New).len(), 2, "the client has not answered");
            assert_eq!(node.forwards(&frame.with_hop_limit(64)), source);
        });
    }
}

fn the_answer_to_a_syn_offers_segments_that_fit_the_route_to_the_backend(case: Case) {
    Node::new(case).in_its_network(|node| {
        let headers = if case.family == Family::V4 { 40 } else { 60 };
        let syn = syn_from(case, neighbour(case));
        node.bed.hop(case.remote_pod(1), Hop { mtu: 1400, ..known_hop(case.family.node(1)) });
        let source = node.forwards(&syn);
        let offer = |size: u16| [&[2, 4][..], &size.to_be_bytes(), &[1, 1, 1, 1]].concat();
        for (offered, passed) in [(1460, 1400 - headers), (1300, 1300)] {
            let answer = node.answer(&syn, source, flag::SYN | flag::ACK).with_tcp_options(offer(offered));
            let expected = answer.clone().with_tcp_options(offer(passed));
            let expected = expected.with_source(case.vip()).with_destination(syn.source());
            node.bed.send(Hook::TcIngress, &answer).checked(&expected);
        }
    });
}

fn the_route_to_a_backend_is_asked_of_the_kernel(case: Case) {
    let bed = Bed::new();
    let backend = SocketAddr::new(case.family.node(7), TARGET_PORT);
    bed.service().external(case.vip()).backend_remote(backend, 0).install();
    let bed = std::sync::Mutex::new(bed);
    in_an_empty_namespace(|| {
        let bed = bed.into_inner().unwrap();
        connect_to_nodes(case.family.node(1));
        // A device whose incoming packets no program sees leads nowhere.
        bed.send(Hook::TcIngress, &case.tcp(flag::SYN)).assert_dropped(Reason::NoWay);
        let word = |number| case.family.node(number);
        let (source4, source6) = match word(5) {
            std::net::IpAddr::V4(address) => (Addr4::from(address).0, [0; 4]),
            std::net::IpAddr::V6(address) => ([0], Addr6::from(address).0),
        };
        for device in 1..10 {
            bed.device(device, Device { source4, source6, flags: 0 });
        }
        let outcome = case.arrives(&bed, &case.tcp(flag::SYN));
        let wire = nix::net::if_::if_nametoindex("wire").unwrap();
        assert_eq!(bed.device_towards(backend), wire, "not where the packet came in");
        if case.hook == Hook::XdpIngress {
            outcome.assert_untouched().assert_counted(Reason::HandedToTc);
            return;
        }
        // The bed's programs are loaded as for a kernel whose FIB does not return the preferred
        // source.
        let source = outcome.frame().source();
        assert_eq!(source.ip(), word(5));
        let (from, to) = (outcome.frame().source_mac, outcome.frame().destination_mac);
        let expected = case.tcp(flag::SYN).with_source(source).with_destination(backend);
        outcome
            .assert_sent(&expected.with_hop_limit(63).with_macs(from, to))
            .assert_counted(Reason::SentSnat);
    });
}

/// The connection was opened before a change of `--snat-ports`.
fn a_port_of_a_former_range_still_gets_its_replies(case: Case) {
    let former = Node::with(case, Bed::builder().snat_ports(30_000, 30_099), |service| service);
    let syn = syn_from(case, neighbour(case));
    let source = former.forwards(&syn);
    assert!((30_000..30_100).contains(&source.port()), "{source}");
    former.answer_all();
    let data = syn.with_flags(flag::ACK);
    assert_eq!(former.forwards(&data), source);
    let builder = Bed::builder().snat_ports(40_000, 40_099).reply_ports(30_000, 40_099);
    let node = Node::with(case, builder, |service| service);
    node.bed.take_flows_of(&former.bed);
    node.in_its_network(|node| {
        assert_eq!(node.forwards(&data), source, "it keeps its port");
        returns(node, &node.answer(&data, source, flag::ACK), &data);
        let other = node.establish(2);
        assert!((40_000..40_100).contains(&other.port()), "a new one gets a port of the new range: {other}");
    });
}

/// Segmentation cuts such a frame behind the program, and only its packets must fit the route.
#[test]
fn a_frame_of_segments_is_as_large_as_its_largest_packet() {
    for family in [Family::V4, Family::V6] {
        let case = Case { hook: Hook::TcIngress, family };
        let node = Node::with(case, Bed::builder(), |service| service);
        let udp = node.bed.service().udp().external(case.vip());
        udp.backend_remote(case.remote_pod(1), 0).install();
        node.bed.hop(case.remote_pod(1), Hop { mtu: 1300, ..known_hop(family.node(1)) });
        for bare in [case.tcp(flag::ACK), case.udp()].map(|frame| frame.payload(Vec::new())) {
            let headers = bare.build().len() - 14;
            let mut frame = bare.payload(vec![7; 3000]);
            if let Layer::Ipv4(ip) = frame.innermost_mut() {
                ip.dont_fragment = true;
            }
            for (segment, reason) in [(1300, Reason::SentSnat), (1301, Reason::TooBig)] {
                let segments = Ingress { segment: segment - headers as u32, ..Ingress::default() };
                node.bed.run_with(case.hook, &frame.build(), segments).assert_counted(reason);
            }
        }
    }
}
