//! `NodePorts` with Direct Server Return. The address is the director's own, and the backend's node
//! answers from it.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{DEVICE_MAC, Frame, Layer, flag};
use millrace_lab::program::{Bed, Endpoint, FlowTable, Hook, NEXT_HOP_MAC, Service, known_hop};
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{CLIENT_PORT, Tunnel, each_tunnel};

each_tunnel! {
    a_packet_to_this_nodes_port_is_encapsulated
    a_client_inside_the_cluster_is_translated
    an_address_that_other_nodes_do_not_know_is_translated
    a_backend_on_this_node_answers_from_the_address_the_client_asked
    the_port_of_another_node_is_served_here_and_answered_from_its_address
    a_node_that_serves_no_node_ports_itself_serves_those_of_others
    a_packet_for_a_node_port_is_accepted_from_nodes_only
    tunnels_to_an_address_of_no_node_pass_byte_for_byte
    tunnels_to_another_port_of_a_node_pass_byte_for_byte
    a_packet_for_another_nodes_port_is_sent_on_once
}

const NODE_PORT: u16 = 30080;

/// Node 1. Nodes 2 and 3 are others.
struct Node {
    bed: Bed,
    tunnel: Tunnel,
    service: Service,
    /// A pod of this node.
    here: Endpoint,
    /// A pod of node 3.
    there: Endpoint,
}

impl Node {
    fn new(tunnel: Tunnel) -> Self {
        Self::at(tunnel, tunnel.case.family.node(1))
    }

    /// Serves the port at the address `own` only.
    fn at(tunnel: Tunnel, own: IpAddr) -> Self {
        let (bed, case) = (tunnel.bed(), tunnel.case);
        for family in [case.family, tunnel.outer] {
            for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE), (3, PEER_NODE)] {
                bed.peer(family.node(number), bits);
            }
        }
        let service = bed.service().dsr().node_ports().external(SocketAddr::new(own, NODE_PORT));
        let service =
            service.backend_local(case.pod(1)).backend_remote(case.remote_pod(3), tunnel.way(&bed, 3));
        let service = service.install();
        let (here, there) = (service.endpoints[0], service.endpoints[1]);
        bed.hop(there.at, known_hop(case.family.node(1)));
        Self { bed, tunnel, service, here, there }
    }

    /// Returns a client's packet to an address, of a connection of a backend.
    fn packet(&self, to: IpAddr, backend: Endpoint, flags: u8) -> Frame {
        let frame = Frame::ip(self.tunnel.case.client().ip(), to).tcp(CLIENT_PORT, NODE_PORT, flags);
        self.service.set_slot(&self.bed, &frame, Slot::settled_on(backend.reference));
        frame
    }

    fn address(&self, node: u8) -> IpAddr {
        self.tunnel.case.family.node(node)
    }

    /// Returns a client's frame as node 2 sends it to this node.
    fn directed(&self, frame: &Frame, hint: u16) -> Frame {
        self.tunnel.around(frame, 2, 1, hint)
    }

    /// Checks that a client's frame from node 2 reaches the pod of this node, and that the reply
    /// comes from the client's destination.
    #[track_caller]
    fn serves(&self, frame: &Frame) {
        let delivered = frame.clone().with_destination(self.here.at);
        let directed = self.directed(frame, self.here.hint);
        self.tunnel.case.is_delivered(&self.bed, &directed, &delivered, Reason::ServedDsr);
        let reply = self.bed.send(Hook::TcEgress, &delivered.reply());
        reply.assert_passed(&frame.clone().reply()).assert_counted(Reason::Reply);
    }

    /// Checks that a client's frame leaves for the pod of node 3 from an address of this node.
    #[track_caller]
    fn translates(&self, frame: &Frame) {
        let outcome = self.tunnel.case.arrives(&self.bed, frame);
        outcome.assert_counted(Reason::SentSnat);
        let sent = outcome.frame();
        assert_eq!((sent.source().ip(), sent.destination()), (self.address(1), self.there.at));
    }

    #[track_caller]
    fn passes(&self, frame: &Frame) {
        self.tunnel.case.arrives(&self.bed, frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn a_packet_to_this_nodes_port_is_encapsulated(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    for flags in [flag::SYN, flag::ACK] {
        let frame = node.packet(node.address(1), node.there, flags);
        let outcome = tunnel.case.arrives(&node.bed, &frame);
        outcome.assert_sent(&tunnel.forwarded(&frame, 3, node.there.hint)).assert_counted(Reason::SentDsr);
    }
    assert_eq!(node.bed.flows(FlowTable::New), []);
}

fn a_client_inside_the_cluster_is_translated(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let client = tunnel.case.client().ip();
    node.bed.cluster_source(client, if client.is_ipv4() { 32 } else { 128 });
    node.translates(&node.packet(node.address(1), node.there, flag::SYN));
}

fn an_address_that_other_nodes_do_not_know_is_translated(tunnel: Tunnel) {
    let unknown = tunnel.case.family.node(99);
    let node = Node::at(tunnel, unknown);
    node.translates(&node.packet(unknown, node.there, flag::SYN));
}

fn a_backend_on_this_node_answers_from_the_address_the_client_asked(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let frame = node.packet(node.address(1), node.here, flag::SYN);
    let delivered = frame.clone().with_destination(node.here.at);
    tunnel.case.is_delivered(&node.bed, &frame, &delivered, Reason::ServedLocal);
    node.bed.send(Hook::TcEgress, &delivered.reply()).assert_passed(&frame.reply());
}

fn the_port_of_another_node_is_served_here_and_answered_from_its_address(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    for flags in [flag::SYN, flag::ACK] {
        node.serves(&node.packet(node.address(2), node.here, flags));
    }
    // The same client and port, with another director, is a connection of its own.
    let other = node.packet(node.address(3), node.here, flag::SYN);
    let delivered = tunnel.case.arrives(&node.bed, &node.directed(&other, node.here.hint)).frame();
    assert_ne!(delivered.source().port(), CLIENT_PORT);
    node.bed.send(Hook::TcEgress, &delivered.reply()).assert_passed(&other.reply());
}

fn a_node_that_serves_no_node_ports_itself_serves_those_of_others(tunnel: Tunnel) {
    let node = Node::at(tunnel, tunnel.case.family.node(99));
    node.serves(&node.packet(node.address(2), node.here, flag::SYN));
}

fn a_packet_for_a_node_port_is_accepted_from_nodes_only(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let frame = node.packet(node.address(2), node.here, flag::SYN);
    for sender in [66, 1] {
        let stranger = tunnel.around(&frame, sender, 1, node.here.hint);
        tunnel.case.arrives(&node.bed, &stranger).assert_dropped(Reason::NotPeer);
    }
}

fn tunnels_to_an_address_of_no_node_pass_byte_for_byte(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let unspecified = tunnel.case.family.pick("0.0.0.0", "::");
    for address in [node.address(99), tunnel.case.vip().ip(), tunnel.case.remote_pod(1).ip(), unspecified] {
        node.passes(&node.directed(&node.packet(address, node.here, flag::SYN), node.here.hint));
    }
    // Not inside a tunnel either.
    node.passes(&node.packet(unspecified, node.here, flag::SYN));
    node.passes(&node.packet(node.address(2), node.here, flag::SYN));
}

fn tunnels_to_another_port_of_a_node_pass_byte_for_byte(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let mut frame = node.packet(node.address(2), node.here, flag::SYN);
    if let Some(Layer::Tcp(tcp)) = frame.layers.last_mut() {
        tcp.destination = NODE_PORT + 1;
    }
    node.passes(&node.directed(&frame, node.here.hint));
    // A Service without Direct Server Return has no port of that kind.
    let snat = node.bed.service().external(SocketAddr::new(node.address(1), NODE_PORT + 1));
    snat.backend_local(tunnel.case.pod(1)).install();
    node.passes(&node.directed(&frame, node.here.hint));
}

fn a_packet_for_another_nodes_port_is_sent_on_once(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let frame = node.packet(node.address(2), node.there, flag::ACK);
    let outcome = tunnel.case.arrives(&node.bed, &node.directed(&frame, 0));
    let onward = tunnel.around(&frame, 1, 3, node.there.hint | 1 << 14);
    outcome.assert_sent(&onward.with_macs(DEVICE_MAC, NEXT_HOP_MAC)).assert_counted(Reason::SentOnward);
    let again = tunnel.case.arrives(&node.bed, &node.directed(&frame, 1 << 14));
    again.assert_dropped(Reason::NoBackendHere);
}
