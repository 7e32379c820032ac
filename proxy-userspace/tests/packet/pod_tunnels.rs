//! Direct Server Return on the backend's node of an IPVS director. The outer header names the pod,
//! and has no hint.

use std::net::SocketAddr;

use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, FlowTable, Hook, Service, ServiceBuilder};
use proxy_common::config::{SHARE_NEWER, SHARE_OLDER};
use proxy_common::flow::FLOW_DECAPSULATED;
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{Case, Tunnel, VIP_PORT, each_tunnel};

each_tunnel! {
    a_tunnel_to_a_backends_pod_is_decapsulated_for_it
    the_reply_of_a_pod_that_was_addressed_comes_from_the_frontend
    a_connection_that_began_elsewhere_is_left_to_its_pod
    a_syn_for_another_pod_of_this_node_begins_a_connection_there
    tunnels_of_strangers_and_pods_to_a_backends_pod_pass_byte_for_byte
    tunnels_to_a_pod_that_is_no_backend_pass_byte_for_byte
    pods_with_one_hint_are_distinguished
    datagrams_and_node_ports_of_the_director_are_served
    an_endpoint_that_has_left_keeps_its_connections
    a_syn_that_is_left_to_the_pod_ends_what_was_there
    pods_that_take_off_outer_headers_get_what_needs_no_translation
    during_a_mode_change_new_connections_belong_to_the_newer_mode
}

/// An identification or flow label as kernels write them. It is no hint, though it may look like
/// one.
const LABEL: u16 = 77;

/// Returns the case of the outer header's family.
fn outside(tunnel: Tunnel) -> Case {
    Case { family: tunnel.outer, ..tunnel.case }
}

/// Node 1 with pods 1 and 2. Node 2 is the director, and node 3 has the other backend.
struct Node {
    bed: Bed,
    tunnel: Tunnel,
    service: Service,
}

impl Node {
    fn new(tunnel: Tunnel) -> Self {
        Self::on(tunnel, tunnel.bed())
    }

    fn on(tunnel: Tunnel, bed: Bed) -> Self {
        Self::with(tunnel, bed, |bed, case| {
            bed.service().dsr().external(case.vip()).backend_local(case.pod(1)).backend_local(case.pod(2))
        })
    }

    /// Returns the same with pods that decapsulate packets for the frontend's port.
    fn of_pods(tunnel: Tunnel, bed: Bed) -> Self {
        Self::with(tunnel, bed, |bed, case| {
            let at = |number| SocketAddr::new(case.pod(number).ip(), VIP_PORT);
            bed.service().dsr().external(case.vip()).backend_pod(at(1), 0).backend_pod(at(2), 0)
        })
    }

    fn with(tunnel: Tunnel, bed: Bed, service: fn(&Bed, Case) -> ServiceBuilder<'_>) -> Self {
        let case = tunnel.case;
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE), (3, PEER_NODE)] {
            bed.peer(tunnel.outer.node(number), bits);
        }
        let way = tunnel.way(&bed, 3);
        let service = service(&bed, case).backend_remote(case.remote_pod(3), way).install();
        Self { bed, tunnel, service }
    }

    /// Returns a client's frame as node 2 sends it to pod 1 or 2 of this node, at its address of
    /// the outer header's family.
    fn directed(&self, frame: &Frame, pod: u8) -> Frame {
        self.tunnel.between(frame, (self.tunnel.outer.node(2), outside(self.tunnel).pod(pod).ip()), LABEL)
    }

    /// Checks that the pod gets the frame. Other encapsulations pass: an IPVS director writes no
    /// UDP header and no outer header of another family.
    #[track_caller]
    fn delivers(&self, frame: &Frame, pod: u8) {
        let arriving = self.directed(frame, pod);
        if !self.tunnel.may_be_for_a_pod() {
            return self.passes(&arriving);
        }
        let delivered = frame.clone().with_destination(self.tunnel.case.pod(pod));
        self.tunnel.case.is_delivered(&self.bed, &arriving, &delivered, Reason::ServedDsr);
    }

    #[track_caller]
    fn passes(&self, frame: &Frame) {
        self.tunnel.case.arrives(&self.bed, frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn a_tunnel_to_a_backends_pod_is_decapsulated_for_it(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    // The slot's owner here does not matter, because the director knows its connections.
    for (owner, port) in node.service.endpoints.iter().zip(40000..) {
        let syn = tunnel.case.tcp_from(port, flag::SYN);
        node.service.set_slot(&node.bed, &syn, Slot::settled_on(owner.reference));
        for flags in [flag::SYN, flag::ACK, flag::PSH | flag::ACK, flag::FIN | flag::ACK] {
            node.delivers(&tunnel.case.tcp_from(port, flags), 2);
            node.bed.answer_all();
        }
    }
    if tunnel.may_be_for_a_pod() {
        let entry = node.bed.flow_of(FlowTable::Established, &tunnel.case.tcp(flag::ACK)).unwrap();
        assert_ne!(entry.flags & FLOW_DECAPSULATED, 0);
    }
}

fn the_reply_of_a_pod_that_was_addressed_comes_from_the_frontend(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let frame = tunnel.case.tcp(flag::SYN);
    node.delivers(&frame, 1);
    if tunnel.may_be_for_a_pod() {
        // The segment fits the tunnel, as with directors in eBPF mode.
        let offer = |size: u16| [&[2, 4][..], &size.to_be_bytes(), &[1, 1, 1, 1]].concat();
        let answer = |frame: &Frame, size| {
            frame.clone().reply().with_flags(flag::SYN | flag::ACK).with_tcp_options(offer(size))
        };
        let delivered = frame.clone().with_destination(tunnel.case.pod(1));
        let reply = node.bed.send(Hook::TcEgress, &answer(&delivered, 1460));
        reply.assert_passed(&answer(&frame, 1460 - tunnel.overhead())).assert_counted(Reason::Reply);
    }
}

fn a_connection_that_began_elsewhere_is_left_to_its_pod(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    for flags in [flag::ACK, flag::FIN | flag::ACK, flag::RST] {
        node.passes(&node.directed(&tunnel.case.tcp(flags), 1));
    }
    assert_eq!(node.bed.flows(FlowTable::New), []);
}

fn a_syn_for_another_pod_of_this_node_begins_a_connection_there(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let case = tunnel.case;
    node.delivers(&case.tcp(flag::SYN), 1);
    node.delivers(&case.tcp(flag::ACK), 1);
    node.delivers(&case.tcp(flag::SYN), 2);
    node.delivers(&case.tcp(flag::ACK), 2);
}

fn tunnels_of_strangers_and_pods_to_a_backends_pod_pass_byte_for_byte(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let (syn, to) = (tunnel.case.tcp(flag::SYN), outside(tunnel).pod(1).ip());
    let pod = outside(tunnel).remote_pod(9).ip();
    // A stranger, this node itself, a pod.
    for from in [tunnel.outer.node(66), tunnel.outer.node(1), pod] {
        node.passes(&tunnel.between(&syn, (from, to), LABEL));
    }
    assert_eq!(node.bed.flows(FlowTable::New), []);
}

fn tunnels_to_a_pod_that_is_no_backend_pass_byte_for_byte(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let case = tunnel.case;
    node.bed.service().udp().dsr().external(case.vip()).backend_local(case.pod(3)).install();
    for (frame, pod) in [(case.tcp(flag::SYN), 3), (case.udp(), 1), (case.tcp(flag::SYN), 9)] {
        node.passes(&node.directed(&frame, pod));
    }
    // A backend of another node. The way of its packets to this node does not matter.
    let ends = (tunnel.outer.node(2), outside(tunnel).remote_pod(3).ip());
    node.passes(&tunnel.between(&case.tcp(flag::SYN), ends, LABEL));
}

fn pods_that_take_off_outer_headers_get_what_needs_no_translation(tunnel: Tunnel) {
    let case = tunnel.case;
    let node = Node::of_pods(tunnel, tunnel.load(Bed::builder().pods_answer()));
    for flags in [flag::SYN, flag::ACK, flag::SYN] {
        node.passes(&node.directed(&case.tcp(flags), 1));
    }
    // No pod translates a port.
    let syn = case.tcp_from(40002, flag::SYN);
    let service = node.bed.service().external(SocketAddr::new(case.vip().ip(), 81)).dsr();
    let service = service.backend_local(SocketAddr::new(case.pod(4).ip(), 8080)).install();
    let frame = syn.with_destination((case.vip().ip(), 81).into());
    let arriving = node.directed(&frame, 4);
    if tunnel.may_be_for_a_pod() {
        let delivered = frame.with_destination(service.endpoints[0].at);
        case.is_delivered(&node.bed, &arriving, &delivered, Reason::ServedDsr);
    }
}

fn pods_with_one_hint_are_distinguished(tunnel: Tunnel) {
    let (node, case) = (Node::new(tunnel), tunnel.case);
    let service = &node.service;
    service.share_hint(&node.bed, service.endpoints[0], case.pod(9).ip());
    node.passes(&node.directed(&case.tcp(flag::SYN), 9));
    node.delivers(&case.tcp(flag::SYN), 1);
}

fn datagrams_and_node_ports_of_the_director_are_served(tunnel: Tunnel) {
    let (node, case) = (Node::new(tunnel), tunnel.case);
    node.bed.service().udp().dsr().external(case.vip()).backend_local(case.pod(1)).install();
    node.delivers(&case.udp(), 1);
    let asked = SocketAddr::new(case.family.node(2), 30080);
    node.bed.peer(asked.ip(), PEER_NODE);
    let here = SocketAddr::new(case.family.node(1), 30080);
    node.bed.service().dsr().node_ports().external(here).backend_local(case.pod(2)).install();
    for flags in [flag::SYN, flag::ACK] {
        node.delivers(&case.tcp(flags).with_destination(asked), 2);
    }
}

fn an_endpoint_that_has_left_keeps_its_connections(tunnel: Tunnel) {
    let (node, case) = (Node::new(tunnel), tunnel.case);
    node.delivers(&case.tcp(flag::SYN), 1);
    node.service.forget_pod(&node.bed, node.service.endpoints[0]);
    for flags in [flag::ACK, flag::FIN | flag::ACK] {
        node.delivers(&case.tcp(flags), 1);
    }
    node.passes(&node.directed(&case.tcp_from(40001, flag::SYN), 1));
}

fn a_syn_that_is_left_to_the_pod_ends_what_was_there(tunnel: Tunnel) {
    let (before, case) = (Node::new(tunnel), tunnel.case);
    for flags in [flag::SYN, flag::ACK, flag::RST] {
        before.delivers(&case.tcp(flags), 1);
    }
    let to_pods = Node::of_pods(tunnel, tunnel.load(Bed::builder().pods_answer()));
    let to_ipvs = Node::on(tunnel, tunnel.load(Bed::builder().share(SHARE_OLDER)));
    for node in [to_pods, to_ipvs] {
        node.bed.take_flows_of(&before.bed);
        for flags in [flag::SYN, flag::ACK, flag::ACK] {
            node.passes(&node.directed(&case.tcp(flags), 1));
        }
    }
}

fn during_a_mode_change_new_connections_belong_to_the_newer_mode(tunnel: Tunnel) {
    let case = tunnel.case;
    let newer = Node::on(tunnel, tunnel.load(Bed::builder().share(SHARE_NEWER)));
    newer.delivers(&case.tcp(flag::SYN), 1);
    newer.passes(&newer.directed(&case.tcp_from(40001, flag::ACK), 1));
    let older = Node::on(tunnel, tunnel.load(Bed::builder().share(SHARE_OLDER)));
    older.bed.take_flows_of(&newer.bed);
    older.delivers(&case.tcp(flag::ACK), 1);
    older.passes(&older.directed(&case.tcp_from(40001, flag::SYN), 1));
    // Another pod of this node has the connection now.
    older.passes(&older.directed(&case.tcp(flag::ACK), 2));
}
