//! Direct Server Return on the backend's node: decapsulation, accepted senders, and the choice of
//! the backend.

use millrace_lab::frame::{DEVICE_MAC, Frame, Layer, NEIGHBOUR_MAC, flag, protocol};
use millrace_lab::program::{Bed, Endpoint, FlowTable, Hook, NEXT_HOP_MAC, Service, ServiceBuilder};
use proxy_common::flow::FLOW_DECAPSULATED;
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{Tunnel, each_tunnel};

each_tunnel! {
    a_hinted_packet_is_decapsulated_and_translated
    the_reply_goes_out_with_the_frontends_address
    the_answer_to_a_syn_offers_segments_that_fit_the_tunnel
    the_hint_distinguishes_backends_of_this_node
    a_flow_entry_goes_before_the_hint
    without_a_hint_this_nodes_own_slot_decides
    a_stranger_who_sends_to_a_frontend_is_dropped
    tunnels_that_are_not_for_a_frontend_pass_byte_for_byte
    tunnels_to_a_frontend_without_direct_server_return_pass_byte_for_byte
    tunnels_to_another_node_pass_byte_for_byte
    outer_headers_that_no_director_writes_pass_byte_for_byte
    truncated_tunnels_are_never_mangled
    a_packet_that_may_be_the_other_owners_is_sent_on_once
    a_packet_that_was_sent_on_is_never_sent_on_again
    a_hint_that_no_backend_here_has_is_sent_to_the_slots_owner
    a_hint_of_an_endpoint_that_is_gone_leaves_a_connection_to_the_current_owner
    a_hint_of_a_backend_without_the_slot_counts_with_affinity_only
    a_connection_that_was_sent_on_stays_whatever_its_slot_becomes
    a_syn_for_another_backend_of_this_node_begins_a_connection_there
    a_second_chance_out_of_a_tunnel_keeps_the_packet_inside
}

/// The node of the backends, node 1. Node 2 is the director, and node 3 has the other backend.
struct Node {
    bed: Bed,
    tunnel: Tunnel,
    service: Service,
    /// Pod 1 and pod 2 of this node, and a backend behind a way to node 3.
    backends: [Endpoint; 3],
}

impl Node {
    fn new(tunnel: Tunnel) -> Self {
        Self::with(tunnel, |service| service)
    }

    fn with(tunnel: Tunnel, change: impl Fn(ServiceBuilder<'_>) -> ServiceBuilder<'_>) -> Self {
        let (bed, case) = (tunnel.bed(), tunnel.case);
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE), (3, PEER_NODE)] {
            bed.peer(tunnel.outer.node(number), bits);
        }
        let way = tunnel.way(&bed, 3);
        let service = change(bed.service())
            .dsr()
            .external(case.vip())
            .backend_local(case.pod(1))
            .backend_local(case.pod(2))
            .backend_remote(case.remote_pod(3), way)
            .install();
        let backends = [service.endpoints[0], service.endpoints[1], service.endpoints[2]];
        Self { bed, tunnel, service, backends }
    }

    /// Returns a client's frame as node 2 sends it to this node.
    fn directed(&self, frame: &Frame, hint: u16) -> Frame {
        self.tunnel.around(frame, 2, 1, hint)
    }

    #[track_caller]
    fn delivers(&self, frame: &Frame, hint: u16, backend: Endpoint) -> Frame {
        let delivered = frame.clone().with_destination(backend.at);
        self.tunnel.case.is_delivered(&self.bed, &self.directed(frame, hint), &delivered, Reason::ServedDsr);
        delivered
    }

    #[track_caller]
    fn passes(&self, frame: &Frame) {
        self.tunnel.case.arrives(&self.bed, frame).assert_untouched().assert_counted(Reason::NotOurs);
    }

    fn set_slot(&self, frame: &Frame, slot: Slot) {
        self.service.set_slot(&self.bed, frame, slot);
    }

    /// Returns the flagged frame for node 3 when this node sends a packet on.
    fn sent_on(&self, frame: &Frame) -> Frame {
        let hint = self.backends[2].hint | 1 << 14;
        self.tunnel.around(frame, 1, 3, hint).with_macs(DEVICE_MAC, NEXT_HOP_MAC)
    }
}

fn a_hinted_packet_is_decapsulated_and_translated(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    for flags in [flag::SYN, flag::ACK, flag::PSH | flag::ACK] {
        node.delivers(&tunnel.case.tcp(flags), node.backends[0].hint, node.backends[0]);
        node.bed.answer_all();
    }
    let entry = node.bed.flow_of(FlowTable::Established, &tunnel.case.tcp(flag::ACK)).unwrap();
    assert_ne!(entry.flags & FLOW_DECAPSULATED, 0);
}

fn the_reply_goes_out_with_the_frontends_address(tunnel: Tunnel) {
    for udp in [true, false] {
        let node = Node::with(tunnel, |service| if udp { service.udp() } else { service });
        let frame = if udp { tunnel.case.udp() } else { tunnel.case.tcp(flag::SYN) };
        let delivered = node.delivers(&frame, node.backends[0].hint, node.backends[0]);
        let reply = node.bed.send(Hook::TcEgress, &delivered.reply());
        reply.assert_passed(&frame.reply()).assert_counted(Reason::Reply);
    }
}

fn the_answer_to_a_syn_offers_segments_that_fit_the_tunnel(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let overhead = tunnel.overhead();
    // The options are: the segment size and four paddings, a size that fits every link, and another
    // option before the size.
    let offer = |size: u16| [&[2, 4][..], &size.to_be_bytes(), &[1, 1, 1, 1]].concat();
    let cases = [
        (offer(1460), offer(1460 - overhead)),
        (offer(536), offer(536)),
        (vec![1, 1, 1, 1, 2, 4, 5, 180], vec![1, 1, 1, 1, 2, 4, 5, 180]),
    ];
    for (port, (offered, expected)) in (40000..).zip(cases) {
        let syn = tunnel.case.tcp_from(port, flag::SYN);
        let delivered = node.delivers(&syn, node.backends[0].hint, node.backends[0]);
        let answer = |frame: &Frame, options| {
            frame.clone().reply().with_flags(flag::SYN | flag::ACK).with_tcp_options(options)
        };
        let reply = node.bed.send(Hook::TcEgress, &answer(&delivered, offered.clone()));
        reply.assert_passed(&answer(&syn, expected)).assert_counted(Reason::Reply);
        // Data carries no offers, whatever its bytes are.
        let data =
            |frame: &Frame| frame.clone().reply().with_flags(flag::ACK).with_tcp_options(offered.clone());
        node.bed.send(Hook::TcEgress, &data(&delivered)).assert_passed(&data(&syn));
    }
}

fn the_hint_distinguishes_backends_of_this_node(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    for (port, backend) in [(40000, node.backends[0]), (40001, node.backends[1]), (40002, node.backends[0])] {
        node.delivers(&tunnel.case.tcp_from(port, flag::SYN), backend.hint, backend);
    }
}

fn a_flow_entry_goes_before_the_hint(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let [one, two, other] = node.backends;
    node.delivers(&tunnel.case.tcp(flag::SYN), one.hint, one);
    // Another director, or segmentation on the way, may have spoilt the hint.
    for hint in [two.hint, other.hint, 0] {
        node.delivers(&tunnel.case.tcp(flag::ACK), hint, one);
    }
}

fn without_a_hint_this_nodes_own_slot_decides(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let syn = tunnel.case.tcp(flag::SYN);
    node.set_slot(&syn, Slot::settled_on(node.backends[1].reference));
    node.delivers(&syn, 0, node.backends[1]);
}

fn a_stranger_who_sends_to_a_frontend_is_dropped(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let syn = tunnel.case.tcp(flag::SYN);
    // Node 66 is not in the cluster. Node 1 is this node, which does not send to itself over a
    // wire.
    for sender in [66, 1] {
        let frame = tunnel.around(&syn, sender, 1, node.backends[0].hint);
        tunnel.case.arrives(&node.bed, &frame).assert_dropped(Reason::NotPeer);
    }
    assert_eq!(node.bed.flows(FlowTable::New), []);
}

fn tunnels_that_are_not_for_a_frontend_pass_byte_for_byte(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let overlay = tunnel.case.tcp(flag::SYN).with_destination(tunnel.case.pod(1));
    let other_port = tunnel.case.tcp(flag::SYN).with_destination((tunnel.case.vip().ip(), 81).into());
    let nothing = Frame::ip(tunnel.case.client().ip(), tunnel.case.vip().ip()).payload(vec![1; 40]);
    for inner in [overlay, other_port, nothing] {
        for sender in [2, 66] {
            node.passes(&tunnel.around(&inner, sender, 1, node.backends[0].hint));
        }
    }
}

fn tunnels_to_a_frontend_without_direct_server_return_pass_byte_for_byte(tunnel: Tunnel) {
    let (node, case) = (Node::new(tunnel), tunnel.case);
    node.bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    for sender in [2, 66] {
        node.passes(&tunnel.around(&case.udp(), sender, 1, node.backends[0].hint));
    }
}

fn tunnels_to_another_node_pass_byte_for_byte(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    for sender in [2, 66] {
        node.passes(&tunnel.around(&tunnel.case.tcp(flag::SYN), sender, 3, node.backends[0].hint));
    }
}

fn outer_headers_that_no_director_writes_pass_byte_for_byte(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let frame = node.directed(&tunnel.case.tcp(flag::SYN), node.backends[0].hint);
    let mut odd = frame.clone();
    match odd.outermost_mut() {
        Layer::Ipv4(ip) => ip.more_fragments = true,
        Layer::Ipv6(ip) => ip.protocol = Some(protocol::EXPERIMENT),
        other => panic!("{other:?} is no IP header"),
    }
    node.passes(&odd);
    // Two tunnels, one inside the other.
    node.passes(&tunnel.around(&frame, 2, 1, node.backends[0].hint));
}

fn truncated_tunnels_are_never_mangled(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let whole = node.directed(&tunnel.case.tcp(flag::SYN), node.backends[0].hint).build();
    for length in 0..whole.len() {
        if tunnel.case.hook.takes(&whole[..length]) {
            node.bed
                .run(tunnel.case.hook, &whole[..length])
                .assert_untouched()
                .assert_counted(Reason::NotOurs);
        }
    }
}

fn a_packet_that_may_be_the_other_owners_is_sent_on_once(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let [here, _, there] = node.backends;
    let data = tunnel.case.tcp(flag::ACK);
    for slot in
        [Slot::unsettled(here.reference, there.reference), Slot::unsettled(there.reference, here.reference)]
    {
        node.set_slot(&data, slot);
        let outcome = tunnel.case.arrives(&node.bed, &node.directed(&data, here.hint));
        outcome.assert_sent(&node.sent_on(&data)).assert_counted(Reason::SentOnward);
    }
    // A SYN certainly opens a connection: the hinted backend gets it.
    node.delivers(&tunnel.case.tcp(flag::SYN), here.hint, here);
}

fn a_packet_that_was_sent_on_is_never_sent_on_again(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let [here, _, there] = node.backends;
    let data = tunnel.case.tcp(flag::ACK);
    node.set_slot(&data, Slot::unsettled(here.reference, there.reference));
    node.delivers(&data, here.hint | 1 << 14, here);
    node.bed.forget_flows();
    node.set_slot(&data, Slot::settled_on(there.reference));
    for (flags, hint) in [(flag::ACK, there.hint), (flag::SYN, there.hint), (flag::SYN, 77), (flag::ACK, 0)] {
        let stray = node.directed(&data.clone().with_flags(flags), hint | 1 << 14);
        tunnel.case.arrives(&node.bed, &stray).assert_dropped(Reason::NoBackendHere);
    }
}

fn a_hint_that_no_backend_here_has_is_sent_to_the_slots_owner(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let there = node.backends[2];
    let data = tunnel.case.tcp(flag::ACK);
    node.set_slot(&data, Slot::settled_on(there.reference));
    let outcome = tunnel.case.arrives(&node.bed, &node.directed(&data, there.hint));
    outcome.assert_sent(&node.sent_on(&data)).assert_counted(Reason::SentOnward);
}

fn a_hint_of_an_endpoint_that_is_gone_leaves_a_connection_to_the_current_owner(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let [settled, _, current] = node.backends;
    let data = tunnel.case.tcp(flag::ACK);
    node.set_slot(&data, Slot::unsettled(current.reference, settled.reference));
    // Its director takes the removed endpoint for the settled owner. A connection of the current
    // owner has an entry there.
    let outcome = tunnel.case.arrives(&node.bed, &node.directed(&data, 77));
    outcome.assert_sent(&node.sent_on(&data)).assert_counted(Reason::SentOnward);
    // Without a hint, this node knows nothing of the director's view.
    node.delivers(&data, 0, settled);
}

fn a_second_chance_out_of_a_tunnel_keeps_the_packet_inside(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let [here, _, there] = node.backends;
    let data = tunnel.case.tcp(flag::ACK).with_hop_limit(1).with_traffic_class(0x28);
    node.set_slot(&data, Slot::unsettled(here.reference, there.reference));
    let outcome = tunnel.case.arrives(&node.bed, &node.directed(&data, here.hint));
    let mut expected = node.sent_on(&data);
    expected.set_outer_traffic_class(0x28);
    outcome.assert_sent(&expected);
    assert_eq!(outcome.frame().source_mac, DEVICE_MAC);
    assert_ne!(outcome.frame().destination_mac, NEIGHBOUR_MAC);
}

fn a_hint_of_a_backend_without_the_slot_counts_with_affinity_only(tunnel: Tunnel) {
    for has_affinity in [true, false] {
        let node = Node::with(tunnel, |service| if has_affinity { service.affinity() } else { service });
        let [hinted, settled, current] = node.backends;
        let data = tunnel.case.tcp(flag::ACK);
        node.set_slot(&data, Slot::unsettled(current.reference, settled.reference));
        if has_affinity {
            node.delivers(&data, hinted.hint, hinted);
        } else {
            // Its director knows another settled owner. A connection of the hinted backend would
            // have an entry here.
            let outcome = tunnel.case.arrives(&node.bed, &node.directed(&data, hinted.hint));
            outcome.assert_sent(&node.sent_on(&data)).assert_counted(Reason::SentOnward);
        }
    }
}

/// The director knew the endpoint of its hint before this node did, so this node sent the SYN on to the owner
/// that it knew. Then it hears of that endpoint, and of another owner.
fn a_connection_that_was_sent_on_stays_whatever_its_slot_becomes(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let [hinted, current, there] = node.backends;
    let (syn, data) = (tunnel.case.tcp(flag::SYN), tunnel.case.tcp(flag::ACK));
    node.set_slot(&syn, Slot::settled_on(there.reference));
    let unknown = 77;
    let outcome = tunnel.case.arrives(&node.bed, &node.directed(&syn, unknown));
    outcome.assert_sent(&node.sent_on(&syn)).assert_counted(Reason::SentOnward);
    node.set_slot(&syn, Slot::unsettled(current.reference, there.reference));
    let outcome = tunnel.case.arrives(&node.bed, &node.directed(&data, hinted.hint));
    outcome.assert_sent(&node.sent_on(&data)).assert_counted(Reason::SentOnward);
    // Another connection with the same ports goes where its director sends it.
    let delivered = node.delivers(&syn, hinted.hint, hinted);
    assert_eq!(delivered.destination(), hinted.at);
    node.delivers(&data, hinted.hint, hinted);
}

/// The remainder of an earlier connection with the same ports must not take the new one from its
/// director's backend.
fn a_syn_for_another_backend_of_this_node_begins_a_connection_there(tunnel: Tunnel) {
    let node = Node::new(tunnel);
    let [one, two, _] = node.backends;
    node.delivers(&tunnel.case.tcp(flag::SYN), one.hint, one);
    node.delivers(&tunnel.case.tcp(flag::ACK), one.hint, one);
    node.delivers(&tunnel.case.tcp(flag::SYN), two.hint, two);
    node.delivers(&tunnel.case.tcp(flag::ACK), one.hint, two);
    // Without a hint, the entry decides.
    node.delivers(&tunnel.case.tcp(flag::SYN), 0, two);
}
