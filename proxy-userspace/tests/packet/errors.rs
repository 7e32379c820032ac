//! ICMP errors of other hosts about connections of Services. They reach the owner of the
//! connection, and quote that owner's packet.

use std::net::IpAddr;

use millrace_lab::frame::{DEVICE_MAC, Frame, Icmp, Layer, NEIGHBOUR_MAC, flag, protocol};
use millrace_lab::program::{Bed, Endpoint, Hook, NEXT_HOP_MAC, Service, known_hop};
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{Case, Family, Tunnel, VIP_PORT, each_client, each_ingress, each_tunnel};
use crate::network::{connect_to_nodes, in_an_empty_namespace};

each_client! {
    an_error_about_a_reply_reaches_the_backend_with_its_own_packet_quoted
    every_kind_of_error_is_relayed
    an_error_about_a_connection_whose_client_port_was_translated_has_the_backends_ports
    an_error_about_an_unknown_connection_is_dropped
    errors_about_other_packets_are_untouched
    an_error_to_another_host_than_the_quoted_sender_is_untouched
    an_error_is_never_mangled_at_any_length
    a_backends_error_comes_from_the_frontend_with_the_clients_packet_quoted
    an_error_of_the_backends_node_comes_from_the_frontend_too
    outgoing_errors_about_other_packets_are_untouched
}

each_ingress! {
    an_error_about_a_reply_that_was_translated_goes_on_to_the_backend
    an_error_about_a_translated_packet_comes_from_the_frontend
}

each_tunnel! {
    a_director_without_an_entry_sends_an_error_where_the_slots_packets_go
    a_director_with_an_entry_sends_an_error_after_the_connection
    an_error_that_cannot_be_sent_on_is_not_answered
    the_backends_node_gives_an_encapsulated_error_to_the_backend
    an_encapsulated_error_is_accepted_from_nodes_only
    an_encapsulated_error_that_is_addressed_to_the_backends_pod_gets_there
    an_encapsulated_error_about_other_packets_is_untouched
    an_encapsulated_error_about_a_connection_of_another_node_is_sent_on_once
}

impl Case {
    pub fn router(self) -> IpAddr {
        self.family.pick("198.18.0.1", "2001:db8:18::1")
    }

    /// Returns the error "too large", with 1400 bytes as the size that fits.
    pub fn too_big(self) -> Icmp {
        self.family.too_big(1400)
    }

    pub fn port_unreachable(self) -> Icmp {
        self.family.port_unreachable()
    }

    /// Returns the client's packets of an opened TCP and UDP connection to the frontend.
    fn open_connections(self, bed: &Bed) -> [Frame; 2] {
        bed.service().external(self.vip()).backend_local(self.pod(1)).install();
        bed.service().udp().external(self.vip()).backend_local(self.pod(1)).install();
        let connections = [self.tcp(flag::ACK), self.udp()];
        self.arrives(bed, &self.tcp(flag::SYN));
        for frame in &connections {
            self.arrives(bed, frame).assert_counted(self.served());
        }
        connections
    }

    #[track_caller]
    fn is_relayed(self, bed: &Bed, arriving: &Frame, expected: &Frame) {
        self.is_delivered(bed, arriving, expected, Reason::IcmpError);
    }
}

/// Returns another host's error about a frame, as it arrives here.
fn about(frame: &Frame, from: IpAddr, icmp: Icmp, quoted: usize) -> Frame {
    frame.icmp_error_quoting(from, icmp, quoted).with_macs(NEIGHBOUR_MAC, DEVICE_MAC)
}

fn an_error_about_a_reply_reaches_the_backend_with_its_own_packet_quoted(case: Case) {
    let bed = Bed::new();
    for sent in case.open_connections(&bed) {
        let reply = sent.clone().with_destination(case.pod(1)).reply().payload(&b"an answer"[..]);
        let seen = reply.clone().with_source(case.vip());
        bed.send(case.way_out(), &reply).assert_passed(&seen);
        for quoted in [8, 12, 16, 18, 19, 20, 24, 100] {
            let arriving = about(&seen, case.router(), case.too_big(), quoted);
            case.is_relayed(&bed, &arriving, &about(&reply, case.router(), case.too_big(), quoted));
        }
    }
}

fn every_kind_of_error_is_relayed(case: Case) {
    let bed = Bed::new();
    let [sent, _] = case.open_connections(&bed);
    let reply = sent.with_destination(case.pod(1)).reply();
    let seen = reply.clone().with_source(case.vip());
    let kinds: &[(u8, u8)] = if case.family == Family::V4 {
        &[(3, 0), (3, 1), (3, 3), (3, 13), (11, 0), (11, 1), (12, 0)]
    } else {
        &[(1, 0), (1, 4), (2, 0), (3, 0), (3, 1), (4, 1)]
    };
    for (kind, code) in kinds.iter().copied() {
        let icmp = Icmp { kind, code, rest: [0, 0, 5, 0] };
        let expected = about(&reply, case.router(), icmp, 8);
        case.is_relayed(&bed, &about(&seen, case.router(), icmp, 8), &expected);
    }
}

fn an_error_about_a_connection_whose_client_port_was_translated_has_the_backends_ports(case: Case) {
    let bed = Bed::new();
    case.open_connections(&bed);
    let second = (case.family.pick("203.0.113.2", "2001:db8:113::2"), VIP_PORT).into();
    bed.service().external(second).backend_local(case.pod(1)).install();
    let syn = case.tcp(flag::SYN).with_destination(second);
    let delivered = case.arrives(&bed, &syn).frame();
    assert_ne!(delivered.source().port(), syn.source().port(), "the case this test is for");
    let reply = delivered.with_macs(NEIGHBOUR_MAC, DEVICE_MAC).reply();
    let arriving = about(&syn.reply(), case.router(), case.too_big(), 20);
    case.is_relayed(&bed, &arriving, &about(&reply, case.router(), case.too_big(), 20));
}

fn an_error_about_an_unknown_connection_is_dropped(case: Case) {
    let bed = Bed::new();
    for sent in case.open_connections(&bed) {
        bed.forget_flows();
        let arriving = about(&sent.reply(), case.router(), case.too_big(), 8);
        case.arrives(&bed, &arriving).assert_dropped(Reason::IcmpUnknown);
    }
}

fn errors_about_other_packets_are_untouched(case: Case) {
    let bed = Bed::new();
    let [tcp, udp] = case.open_connections(&bed);
    let ip = || Frame::ip(case.vip().ip(), case.client().ip());
    let mut fragment = tcp.clone().reply();
    if let Layer::Ipv4(ip) = fragment.innermost_mut() {
        (ip.fragment_offset, ip.protocol) = (185, Some(protocol::TCP));
    } else {
        fragment = ip().layer(millrace_lab::frame::Extension::fragment(185, false, 7)).payload(vec![0; 40]);
    }
    for frame in [
        tcp.reply().with_source((case.vip().ip(), 81).into()),
        udp.clone().reply().with_source((case.pod(9).ip(), 80).into()),
        ip().layer(Icmp { kind: 0, code: 0, rest: [0; 4] }).payload(&b"ping"[..]),
        ip().payload(vec![0, 80, 0x9c, 0x40, 0, 0, 0, 0]),
        fragment,
    ] {
        let arriving = about(&frame, case.router(), case.too_big(), 8);
        case.arrives(&bed, &arriving).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn an_error_to_another_host_than_the_quoted_sender_is_untouched(case: Case) {
    let bed = Bed::new();
    let [tcp, _] = case.open_connections(&bed);
    let arriving = about(&tcp.reply(), case.router(), case.too_big(), 8);
    let misled = arriving.with_destination((case.pod(9).ip(), 0).into());
    case.arrives(&bed, &misled).assert_untouched().assert_counted(Reason::NotOurs);
}

fn an_error_is_never_mangled_at_any_length(case: Case) {
    let bed = Bed::new();
    for sent in case.open_connections(&bed) {
        let whole = about(&sent.clone().reply(), case.router(), case.too_big(), 100).build();
        let cut = (0..whole.len()).map(|length| &whole[..length]).filter(|frame| case.hook.takes(frame));
        for frame in cut {
            bed.run(case.hook, frame).assert_untouched().assert_counted(Reason::NotOurs);
        }
        // Whole packets that quote less than the ports and the bytes behind them.
        for quoted in 0..8 {
            let arriving = about(&sent.clone().reply(), case.router(), case.too_big(), quoted);
            case.arrives(&bed, &arriving).assert_untouched().assert_counted(Reason::NotOurs);
        }
    }
}

fn a_backends_error_comes_from_the_frontend_with_the_clients_packet_quoted(case: Case) {
    let bed = Bed::new();
    for sent in case.open_connections(&bed) {
        let delivered = sent.clone().with_destination(case.pod(1));
        for quoted in [8, 20, 100] {
            let leaving = delivered.icmp_error_quoting(case.pod(1).ip(), case.port_unreachable(), quoted);
            let expected = sent.icmp_error_quoting(case.vip().ip(), case.port_unreachable(), quoted);
            bed.send(case.way_out(), &leaving).assert_passed(&expected).assert_counted(Reason::IcmpError);
        }
    }
}

fn an_error_of_the_backends_node_comes_from_the_frontend_too(case: Case) {
    let bed = Bed::new();
    for sent in case.open_connections(&bed) {
        let delivered = sent.clone().with_destination(case.pod(1));
        let leaving = delivered.icmp_error(case.family.node(1), case.port_unreachable());
        let expected = sent.icmp_error(case.vip().ip(), case.port_unreachable());
        bed.send(case.way_out(), &leaving).assert_passed(&expected).assert_counted(Reason::IcmpError);
    }
}

fn outgoing_errors_about_other_packets_are_untouched(case: Case) {
    let bed = Bed::new();
    let [tcp, _] = case.open_connections(&bed);
    let delivered = tcp.clone().with_destination(case.pod(1));
    for frame in [
        // A quote of this node's own refusal is addressed to the frontend itself.
        tcp.clone(),
        delivered.clone().with_source((case.client().ip(), 50000).into()),
        delivered.with_destination((case.pod(1).ip(), 9999).into()),
    ] {
        let leaving = frame.icmp_error(case.vip().ip(), case.port_unreachable());
        bed.send(case.way_out(), &leaving).assert_untouched().assert_counted(Reason::NotOurs);
    }
    let request = if case.family == Family::V4 { 8 } else { 128 };
    let ping = Frame::ip(case.pod(1).ip(), case.client().ip());
    let ping = ping.layer(Icmp { kind: request, code: 0, rest: [0, 1, 0, 1] }).payload(&b"ping"[..]);
    bed.send(case.way_out(), &ping).assert_untouched().assert_counted(Reason::NotOurs);
}

/// Returns a connection that node 1 translated to a backend on node 2: the bed, the client's
/// packet, and the packet that left.
fn translated(case: Case) -> (Bed, Frame, Frame) {
    let bed = Bed::new();
    bed.service().udp().external(case.vip()).backend_remote(case.remote_pod(1), 0).install();
    bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
    let client = (case.family.node(99), 40000).into();
    let sent = case.udp().with_source(client);
    let outcome = case.arrives(&bed, &sent);
    outcome.assert_counted(Reason::SentSnat);
    let left = sent.clone().with_source(outcome.frame().source()).with_destination(case.remote_pod(1));
    (bed, sent, left)
}

fn an_error_about_a_reply_that_was_translated_goes_on_to_the_backend(case: Case) {
    let (bed, sent, left) = translated(case);
    let arriving = about(&sent.reply(), case.router(), case.too_big(), 8);
    // The backend knows only this node.
    let expected = about(&left.clone().reply(), left.source().ip(), case.too_big(), 8);
    let expected = expected.with_hop_limit(63).with_macs(DEVICE_MAC, NEXT_HOP_MAC);
    case.arrives(&bed, &arriving).assert_sent(&expected).assert_counted(Reason::IcmpError);
    let last_hop = arriving.with_hop_limit(1);
    case.arrives(&bed, &last_hop).assert_dropped(Reason::HopLimit);
}

fn an_error_about_a_translated_packet_comes_from_the_frontend(case: Case) {
    let (bed, sent, left) = translated(case);
    let shared = std::sync::Mutex::new(bed);
    in_an_empty_namespace(|| {
        connect_to_nodes(case.family.node(1));
        let bed = shared.into_inner().unwrap();
        bed.beat();
        let arriving = about(&left, case.remote_pod(1).ip(), case.port_unreachable(), 8);
        let outcome = case.arrives(&bed, &arriving);
        if case.hook == Hook::XdpIngress {
            // Only the stack can find the client's neighbour entry.
            outcome.assert_untouched().assert_counted(Reason::HandedToTc);
            return;
        }
        let expected = about(&sent, case.vip().ip(), case.port_unreachable(), 8).with_hop_limit(63);
        let (source, destination) = (outcome.frame().source_mac, outcome.frame().destination_mac);
        outcome.assert_sent(&expected.with_macs(source, destination)).assert_counted(Reason::IcmpError);
    });
}

/// Returns node 1 as director of a DSR Service with backends on nodes 2 and 3.
pub fn director(tunnel: Tunnel) -> (Bed, Service) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let ways = [tunnel.way(&bed, 2), tunnel.way(&bed, 3)];
    let service = bed
        .service()
        .dsr()
        .external(case.vip())
        .backend_remote(case.remote_pod(1), ways[0])
        .backend_remote(case.remote_pod(2), ways[1])
        .install();
    (bed, service)
}

pub fn node_of(tunnel: Tunnel, endpoint: Endpoint) -> u8 {
    if endpoint.at == tunnel.case.remote_pod(1) { 2 } else { 3 }
}

fn a_director_without_an_entry_sends_an_error_where_the_slots_packets_go(tunnel: Tunnel) {
    let ((bed, service), case) = (director(tunnel), tunnel.case);
    for port in 40000..40016 {
        let sent = case.tcp_from(port, flag::ACK);
        let backend = service.choice(&sent);
        let arriving = about(&sent.reply(), case.router(), case.too_big(), 8);
        let expected = tunnel.forwarded(&arriving, node_of(tunnel, backend), backend.hint);
        let mut expected = expected;
        expected.set_outer_traffic_class(0xc0);
        case.arrives(&bed, &arriving).assert_sent(&expected).assert_counted(Reason::IcmpError);
    }
}

fn a_director_with_an_entry_sends_an_error_after_the_connection(tunnel: Tunnel) {
    let ((bed, service), case) = (director(tunnel), tunnel.case);
    let syn = case.tcp(flag::SYN);
    let [first, second] = [service.endpoints[0], service.endpoints[1]];
    service.set_slot(&bed, &syn, Slot::unsettled(first.reference, second.reference));
    case.arrives(&bed, &syn).assert_counted(Reason::SentDsr);
    for (entry, owner) in [(true, first), (false, second)] {
        if !entry {
            bed.forget_flows();
        }
        let arriving = about(&syn.clone().reply(), case.router(), case.too_big(), 8);
        let mut expected = tunnel.forwarded(&arriving, node_of(tunnel, owner), owner.hint);
        expected.set_outer_traffic_class(0xc0);
        case.arrives(&bed, &arriving).assert_sent(&expected).assert_counted(Reason::IcmpError);
    }
}

fn an_error_that_cannot_be_sent_on_is_not_answered(tunnel: Tunnel) {
    let ((bed, _), case) = (director(tunnel), tunnel.case);
    let arriving = about(&case.tcp(flag::ACK).reply(), case.router(), case.too_big(), 8).with_hop_limit(1);
    case.arrives(&bed, &arriving).assert_dropped(Reason::HopLimit);
}

/// Returns node 1 with a backend of a DSR Service. The other backend is on node 3, and node 2 is
/// the director.
pub fn backend_node(tunnel: Tunnel) -> (Bed, Service) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE), (3, PEER_NODE)] {
        bed.peer(tunnel.outer.node(number), bits);
    }
    let way = tunnel.way(&bed, 3);
    let service = bed
        .service()
        .dsr()
        .external(case.vip())
        .backend_local(case.pod(1))
        .backend_remote(case.remote_pod(3), way)
        .install();
    (bed, service)
}

fn the_backends_node_gives_an_encapsulated_error_to_the_backend(tunnel: Tunnel) {
    let ((bed, service), case) = (backend_node(tunnel), tunnel.case);
    let local = service.endpoints[0];
    let syn = case.tcp(flag::SYN);
    case.arrives(&bed, &tunnel.around(&syn, 2, 1, local.hint)).assert_counted(Reason::ServedDsr);
    let reply = syn.clone().with_destination(case.pod(1)).reply();
    for quoted in [8, 20] {
        let error = about(&syn.clone().reply(), case.router(), case.too_big(), quoted);
        let arriving = tunnel.around(&error, 2, 1, local.hint);
        case.is_relayed(&bed, &arriving, &about(&reply, case.router(), case.too_big(), quoted));
    }
}

/// The error comes as from a director in IPVS mode. `pod_tunnels` has such packets.
fn an_encapsulated_error_that_is_addressed_to_the_backends_pod_gets_there(tunnel: Tunnel) {
    let ((bed, service), case) = (backend_node(tunnel), tunnel.case);
    let syn = case.tcp(flag::SYN);
    let error = about(&syn.clone().reply(), case.router(), case.too_big(), 8);
    let outside = Case { family: tunnel.outer, ..case };
    let ends = (tunnel.outer.node(2), outside.pod(1).ip());
    let arriving = tunnel.between(&error, ends, 9);
    case.arrives(&bed, &arriving).assert_untouched().assert_counted(Reason::NotOurs);
    if tunnel.may_be_for_a_pod() {
        case.arrives(&bed, &tunnel.between(&syn, ends, 9)).assert_counted(Reason::ServedDsr);
        let reply = syn.with_destination(service.endpoints[0].at).reply();
        case.is_relayed(&bed, &arriving, &about(&reply, case.router(), case.too_big(), 8));
    }
}

fn an_encapsulated_error_is_accepted_from_nodes_only(tunnel: Tunnel) {
    let ((bed, service), case) = (backend_node(tunnel), tunnel.case);
    let error = about(&case.tcp(flag::ACK).reply(), case.router(), case.too_big(), 8);
    let from_stranger = tunnel.around(&error, 66, 1, service.endpoints[0].hint);
    case.arrives(&bed, &from_stranger).assert_dropped(Reason::NotPeer);
}

fn an_encapsulated_error_about_other_packets_is_untouched(tunnel: Tunnel) {
    let ((bed, _), case) = (backend_node(tunnel), tunnel.case);
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    let other_port = case.tcp(flag::ACK).with_destination((case.vip().ip(), 81).into());
    // The UDP Service has no DSR, so no director of ours encapsulates for it.
    for frame in [other_port, case.udp()] {
        let error = about(&frame.reply(), case.router(), case.too_big(), 8);
        let arriving = tunnel.around(&error, 2, 1, 0);
        case.arrives(&bed, &arriving).assert_untouched().assert_counted(Reason::NotOurs);
    }
    let error = about(&case.tcp(flag::ACK).reply(), case.router(), case.too_big(), 8);
    let elsewhere = tunnel.around(&error, 2, 4, 0);
    case.arrives(&bed, &elsewhere).assert_untouched().assert_counted(Reason::NotOurs);
}

fn an_encapsulated_error_about_a_connection_of_another_node_is_sent_on_once(tunnel: Tunnel) {
    let ((bed, service), case) = (backend_node(tunnel), tunnel.case);
    let sent = case.tcp(flag::ACK);
    let [local, remote] = [service.endpoints[0], service.endpoints[1]];
    let error = about(&sent.clone().reply(), case.router(), case.too_big(), 8);
    let arriving = |hint| tunnel.around(&error, 2, 1, hint);
    service.set_slot(&bed, &sent, Slot::unsettled(local.reference, remote.reference));
    let sent_on = tunnel.around(&error, 1, 3, remote.hint | 1 << 14);
    let mut sent_on = sent_on.with_macs(DEVICE_MAC, NEXT_HOP_MAC);
    sent_on.set_outer_traffic_class(0xc0);
    case.arrives(&bed, &arriving(local.hint)).assert_sent(&sent_on).assert_counted(Reason::SentOnward);
    case.arrives(&bed, &arriving(local.hint | 1 << 14)).assert_dropped(Reason::NoBackendHere);
    service.set_slot(&bed, &sent, Slot::settled_on(local.reference));
    case.arrives(&bed, &arriving(local.hint)).assert_dropped(Reason::NoBackendHere);
}
