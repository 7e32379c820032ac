//! Direct Server Return to pods that decapsulate themselves (`--dsr-dispatch pod`).

use std::net::SocketAddr;

use millrace_lab::frame::{DEVICE_MAC, Frame, Layer, NEIGHBOUR_MAC, flag};
use millrace_lab::program::{
    Bed, DEVICE, Endpoint, FlowTable, Hook, NEXT_HOP_MAC, Outcome, Service, ServiceBuilder, known_hop,
    resolved_way,
};
use proxy_common::flow::FLOW_ENCAPSULATE;
use proxy_common::hop::{Device, HOP_NEIGHBOUR, Hop};
use proxy_common::selection::{BackendRef, Slot};
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};
use proxy_common::{Addr4, Addr6};

use crate::case::{Case, Encapsulation, Family, TARGET_PORT, Tunnel, VIP_PORT, each_ingress};
use crate::network::{connect_to_nodes, in_an_empty_namespace};

each_ingress! {
    a_clients_packet_is_addressed_to_the_pod_and_unchanged_but_for_the_hop_limit
    every_fragment_of_a_datagram_goes_to_the_pod
    a_pod_whose_port_is_another_one_is_reached_by_its_node
    a_port_of_this_node_is_reached_by_the_pods_node
    a_client_with_affinity_keeps_its_pod
    a_used_up_hop_limit_is_answered
    a_packet_that_fits_the_route_with_its_outer_header_is_sent_and_no_byte_more
    xdp_leaves_what_it_cannot_send_to_tc_and_remembers_nothing
    a_pod_of_this_node_gets_the_packet_encapsulated_too
    a_connection_that_was_translated_for_a_pod_here_goes_on_so
    an_error_about_a_connection_is_sent_to_its_pod
    a_connection_keeps_its_way_when_the_setting_changes
    a_connection_that_comes_in_a_tunnel_is_translated_whatever_the_setting
}

/// Node 1, with a backend on node 2 that has the frontend's port.
struct Director {
    bed: Bed,
    tunnel: Tunnel,
    service: Service,
    way: u32,
}

/// Returns the address of a pod with the port of the frontend.
fn pod(case: Case) -> SocketAddr {
    SocketAddr::new(case.remote_pod(1).ip(), VIP_PORT)
}

fn local_pod(case: Case) -> SocketAddr {
    SocketAddr::new(case.family.node(77), VIP_PORT)
}

fn over_udp(service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
    service.udp()
}

fn with_affinity(service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
    service.affinity()
}

impl Director {
    fn new(case: Case, encapsulation: Encapsulation) -> Self {
        Self::with(case, encapsulation, |service| service)
    }

    fn with(
        case: Case,
        encapsulation: Encapsulation,
        change: impl for<'a> Fn(ServiceBuilder<'a>) -> ServiceBuilder<'a>,
    ) -> Self {
        let tunnel = Tunnel { case, outer: case.family, encapsulation };
        let bed = tunnel.bed();
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
            bed.peer(case.family.node(number), bits);
        }
        let way = tunnel.way(&bed, 2);
        let service = change(bed.service()).dsr().external(case.vip()).backend_pod(pod(case), way).install();
        bed.hop(pod(case), known_hop(case.family.node(1)));
        Self { bed, tunnel, service, way }
    }

    /// Returns both encapsulations.
    fn each(case: Case) -> [Self; 2] {
        [Encapsulation::Ipip, Encapsulation::Fou].map(|encapsulation| Self::new(case, encapsulation))
    }

    fn arrives(&self, frame: &Frame) -> Outcome {
        self.tunnel.case.arrives(&self.bed, frame)
    }

    fn backend(&self) -> Endpoint {
        self.service.endpoints[0]
    }

    /// Returns a client's frame as it leaves for the pod.
    fn forwarded(&self, frame: &Frame) -> Frame {
        let Tunnel { case, .. } = self.tunnel;
        let ends = (case.family.node(1), pod(case).ip());
        let sent = self.tunnel.between(&frame.clone().with_hop_limit(63), ends, self.backend().hint);
        sent.with_macs(DEVICE_MAC, NEXT_HOP_MAC)
    }

    #[track_caller]
    fn sends_to_pod(&self, frame: &Frame) {
        self.arrives(frame).assert_sent(&self.forwarded(frame)).assert_counted(Reason::SentDsr);
    }

    #[track_caller]
    fn sends_to_node(&self, frame: &Frame) {
        let expected = self.tunnel.forwarded(frame, 2, self.backend().hint);
        self.arrives(frame).assert_sent(&expected).assert_counted(Reason::SentDsr);
    }

    #[track_caller]
    fn remembers(&self, frame: &Frame, backend: BackendRef) {
        let entries = [FlowTable::New, FlowTable::Established].map(|table| self.bed.flow_of(table, frame));
        let [entry] = entries.into_iter().flatten().collect::<Vec<_>>()[..] else { panic!("one entry") };
        assert_eq!((entry.backend, entry.flags), (backend, FLOW_ENCAPSULATE));
    }
}

fn a_clients_packet_is_addressed_to_the_pod_and_unchanged_but_for_the_hop_limit(case: Case) {
    for director in Director::each(case) {
        for flags in [flag::SYN, flag::ACK, flag::FIN | flag::ACK, flag::RST] {
            director.sends_to_pod(&case.tcp(flags));
        }
        director
            .bed
            .service()
            .udp()
            .dsr()
            .external(case.vip())
            .backend_pod(pod(case), director.way)
            .install();
        director.bed.hop(pod(case), known_hop(case.family.node(1)));
        director.sends_to_pod(&case.udp());
        for table in [FlowTable::New, FlowTable::Established] {
            assert_eq!(director.bed.flows(table), [], "nothing changed");
        }
    }
}

fn every_fragment_of_a_datagram_goes_to_the_pod(case: Case) {
    let director = Director::with(case, Encapsulation::Ipip, over_udp);
    let datagram = case.udp().payload(vec![7; 2500]);
    for piece in datagram.fragments(9, 1200) {
        director.sends_to_pod(&piece);
    }
}

fn a_pod_whose_port_is_another_one_is_reached_by_its_node(case: Case) {
    let director = Director::new(case, Encapsulation::Ipip);
    let other = SocketAddr::new(case.vip().ip(), TARGET_PORT);
    director.bed.service().dsr().external(other).backend_pod(pod(case), director.way).install();
    director.bed.hop(pod(case), known_hop(case.family.node(1)));
    director.sends_to_node(&case.tcp(flag::SYN).with_destination(other));
    director.sends_to_pod(&case.tcp(flag::SYN));
}

fn a_port_of_this_node_is_reached_by_the_pods_node(case: Case) {
    let director = Director::new(case, Encapsulation::Ipip);
    let own = SocketAddr::new(case.family.node(1), VIP_PORT);
    director.bed.service().node_ports().dsr().external(own).backend_pod(pod(case), director.way).install();
    director.sends_to_node(&case.tcp(flag::SYN).with_destination(own));
}

fn a_client_with_affinity_keeps_its_pod(case: Case) {
    let director = Director::with(case, Encapsulation::Ipip, with_affinity);
    let (syn, backend) = (case.tcp(flag::SYN), director.backend().reference);
    director.sends_to_pod(&syn);
    director.remembers(&syn, backend);
    director.sends_to_pod(&case.tcp(flag::ACK));
    director.remembers(&syn, backend);
    assert_eq!(director.bed.affinities().iter().map(|entry| entry.backend).collect::<Vec<_>>(), [backend.0]);
}

fn a_used_up_hop_limit_is_answered(case: Case) {
    for director in Director::each(case) {
        director.arrives(&case.tcp(flag::ACK).with_hop_limit(1)).assert_counted(Reason::HopLimit);
        let last = case.tcp(flag::ACK).with_hop_limit(2);
        let sent = director.forwarded(&last).with_hop_limit(1);
        director.arrives(&last).assert_sent(&sent);
    }
}

fn a_packet_that_fits_the_route_with_its_outer_header_is_sent_and_no_byte_more(case: Case) {
    for director in Director::each(case) {
        director.bed.hop(pod(case), Hop { mtu: 1450, ..known_hop(case.family.node(1)) });
        let inner = 1450 - usize::from(director.tunnel.overhead());
        let bare = case.tcp(flag::ACK).payload(Vec::new());
        let headers = bare.build().len() - 14;
        director.sends_to_pod(&bare.clone().payload(vec![7; inner - headers]));
        let mut too_big = bare.payload(vec![7; inner + 1 - headers]);
        if let Layer::Ipv4(ip) = too_big.innermost_mut() {
            ip.dont_fragment = true;
        }
        let told = too_big.icmp_error(case.vip().ip(), case.family.too_big(inner));
        director.arrives(&too_big).assert_sent(&told).assert_counted(Reason::TooBig);
    }
}

fn xdp_leaves_what_it_cannot_send_to_tc_and_remembers_nothing(case: Case) {
    let director = Director::with(case, Encapsulation::Ipip, with_affinity);
    let elsewhere = Hop { device: 4711, flags: HOP_NEIGHBOUR, ..known_hop(case.family.node(1)) };
    let unresolved = Hop { flags: 0, ..known_hop(case.family.node(1)) };
    for hop in [elsewhere, unresolved] {
        director.bed.hop(pod(case), hop);
        let syn = case.tcp(flag::SYN);
        if case.hook == Hook::XdpIngress {
            director.arrives(&syn).assert_untouched().assert_counted(Reason::HandedToTc);
            assert_eq!(director.bed.flows(FlowTable::New), []);
        } else {
            director.sends_to_pod(&syn);
            director.remembers(&syn, director.backend().reference);
        }
    }
}

/// Writes node 1's entry for the device of the clients' packets.
fn own_device(case: Case, bed: &Bed) {
    let (source4, source6) = match case.family.node(1) {
        std::net::IpAddr::V4(address) => (Addr4::from(address).0, [0; 4]),
        std::net::IpAddr::V6(address) => ([0], Addr6::from(address).0),
    };
    bed.device(DEVICE, Device { source4, source6, flags: 0 });
}

fn a_pod_of_this_node_gets_the_packet_encapsulated_too(case: Case) {
    let director = Director::new(case, Encapsulation::Ipip);
    let vip = SocketAddr::new(case.family.pick("203.0.113.2", "2001:db8:113::2"), VIP_PORT);
    let here = director.bed.service().dsr().external(vip).backend_pod(local_pod(case), 0).install();
    own_device(case, &director.bed);
    let shared = std::sync::Mutex::new(director);
    in_an_empty_namespace(|| {
        connect_to_nodes(case.family.node(1));
        let director = shared.into_inner().unwrap();
        // A connection may also be met in its middle. One that began at another director belongs to
        // the pod as well.
        for flags in [flag::ACK, flag::SYN, flag::ACK] {
            let frame = case.tcp(flags).with_destination(vip);
            let outcome = director.arrives(&frame);
            if case.hook == Hook::XdpIngress {
                outcome.assert_untouched().assert_counted(Reason::HandedToTc);
                assert_eq!(director.bed.flows(FlowTable::New), []);
                continue;
            }
            let ends = (case.family.node(1), local_pod(case).ip());
            let sent =
                director.tunnel.between(&frame.clone().with_hop_limit(63), ends, here.endpoints[0].hint);
            let (source, destination) = (outcome.frame().source_mac, outcome.frame().destination_mac);
            outcome.assert_sent(&sent.with_macs(source, destination)).assert_counted(Reason::SentDsr);
            director.remembers(&frame, here.endpoints[0].reference);
        }
    });
}

fn a_connection_that_was_translated_for_a_pod_here_goes_on_so(case: Case) {
    let bed = Bed::new();
    let service = bed.service().dsr().external(case.vip()).backend_local(local_pod(case)).install();
    let deliver = |frame: &Frame| {
        let expected = frame.clone().with_destination(local_pod(case));
        case.is_delivered(&bed, frame, &expected, Reason::ServedLocal);
    };
    deliver(&case.tcp(flag::SYN));
    let (node, addressed) = (service.endpoints[0].reference, bed.backend_pod(local_pod(case), 0));
    assert_ne!(node, addressed);
    service.set_slot(&bed, &case.tcp(flag::ACK), Slot::unsettled(addressed, node));
    deliver(&case.tcp(flag::ACK));
}

fn an_error_about_a_connection_is_sent_to_its_pod(case: Case) {
    for director in Director::each(case) {
        let router = case.family.pick("198.18.0.1", "2001:db8:18::1");
        let icmp = case.family.too_big(1400);
        let (data, backend) = (case.tcp(flag::ACK), director.backend().reference);
        let arriving =
            data.clone().reply().icmp_error_quoting(router, icmp, 8).with_macs(NEIGHBOUR_MAC, DEVICE_MAC);
        let mut expected = director.forwarded(&arriving);
        expected.set_outer_traffic_class(0xc0);
        let is_sent = || {
            director.arrives(&arriving).assert_sent(&expected).assert_counted(Reason::IcmpError);
        };
        is_sent();
        let node = director.bed.backend_remote(case.remote_pod(2), director.way);
        director.service.set_slot(&director.bed, &data, Slot::unsettled(node, backend));
        director.sends_to_pod(&data);
        director.service.set_slot(&director.bed, &data, Slot::settled_on(node));
        is_sent();
    }
}

fn a_connection_keeps_its_way_when_the_setting_changes(case: Case) {
    for encapsulation in [Encapsulation::Ipip, Encapsulation::Fou] {
        let tunnel = Tunnel { case, outer: case.family, encapsulation };
        let bed = tunnel.bed();
        for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
            bed.peer(case.family.node(number), bits);
        }
        let way = bed.way(resolved_way(case.family.node(1), case.family.node(2)));
        let service = bed.service().dsr().external(case.vip()).backend_remote(pod(case), way).install();
        let by_node = service.endpoints[0].reference;
        let director = Director { bed, tunnel, service, way };
        let by_pod = director.bed.backend_pod(pod(case), way);
        director.bed.hop(pod(case), known_hop(case.family.node(1)));
        let ports: [fn(&Director, &Frame); 2] = [Director::sends_to_node, Director::sends_to_pod];
        for ([former, next], [sends_former, sends_next]) in
            [([by_node, by_pod], ports), ([by_pod, by_node], [ports[1], ports[0]])]
        {
            director.bed.forget_flows();
            let (old, new) = (case.tcp_from(40001, flag::ACK), |flags| case.tcp_from(40002, flags));
            for frame in [&old, &new(flag::SYN)] {
                director.service.set_slot(&director.bed, frame, Slot::settled_on(former));
            }
            sends_former(&director, &old);
            for frame in [&old, &new(flag::SYN)] {
                director.service.set_slot(&director.bed, frame, Slot::unsettled(next, former));
            }
            sends_former(&director, &old);
            director.remembers(&old, former);
            sends_next(&director, &new(flag::SYN));
            sends_next(&director, &new(flag::ACK));
            director.remembers(&new(flag::ACK), next);
            // Again, in the other direction.
            for frame in [&old, &new(flag::SYN)] {
                director.service.set_slot(&director.bed, frame, Slot::unsettled(former, former));
            }
            sends_former(&director, &old);
            sends_next(&director, &new(flag::ACK));
        }
    }
}

fn a_connection_that_comes_in_a_tunnel_is_translated_whatever_the_setting(case: Case) {
    let tunnel = Tunnel { case, outer: case.family, encapsulation: Encapsulation::Ipip };
    let bed = tunnel.bed();
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
        bed.peer(case.family.node(number), bits);
    }
    let service = bed.service().dsr().external(case.vip()).backend_pod(local_pod(case), 0).install();
    // Node 2 is not switched yet.
    for flags in [flag::SYN, flag::ACK] {
        let inner = case.tcp(flags);
        let arriving = tunnel.around(&inner, 2, 1, service.endpoints[0].hint);
        case.is_delivered(&bed, &arriving, &inner.with_destination(local_pod(case)), Reason::ServedDsr);
    }
    // The router may send the connection to this node one day.
    let inner = case.tcp(flag::ACK);
    case.is_delivered(&bed, &inner, &inner.clone().with_destination(local_pod(case)), Reason::ServedLocal);
}

mod answers {
    use super::*;
    use crate::case::each_family;

    each_family! {
        a_pods_answer_to_a_syn_offers_segments_that_fit_the_tunnel
        answers_of_others_are_untouched
    }

    /// Returns an answer to a SYN that offers segments of `segment` bytes.
    fn answer(family: Family, from: SocketAddr, segment: u16) -> Frame {
        let case = Case { hook: Hook::TcEgress, family };
        let [high, low] = segment.to_be_bytes();
        let answer = Frame::ip(from.ip(), case.client().ip()).tcp(from.port(), 40000, flag::SYN | flag::ACK);
        answer.with_tcp_options(vec![2, 4, high, low])
    }

    fn bed(family: Family, encapsulation: Encapsulation) -> (Bed, Case) {
        let case = Case { hook: Hook::TcEgress, family };
        let builder = Bed::builder().pods_answer();
        let bed = match encapsulation {
            Encapsulation::Ipip => builder.load(),
            Encapsulation::Fou => builder.fou().load(),
        };
        bed.service().dsr().external(case.vip()).backend_pod(local_pod(case), 0).install();
        (bed, case)
    }

    fn a_pods_answer_to_a_syn_offers_segments_that_fit_the_tunnel(family: Family) {
        for encapsulation in [Encapsulation::Ipip, Encapsulation::Fou] {
            let (bed, case) = bed(family, encapsulation);
            let overhead = Tunnel { case, outer: family, encapsulation }.overhead();
            let outcome = bed.send(Hook::TcEgress, &answer(family, case.vip(), 1460));
            outcome.assert_passed(&answer(family, case.vip(), 1460 - overhead));
            let data = case.tcp(flag::ACK).reply();
            bed.send(Hook::TcEgress, &data).assert_untouched().assert_counted(Reason::NotOurs);
        }
    }

    fn answers_of_others_are_untouched(family: Family) {
        let (bed, case) = bed(family, Encapsulation::Ipip);
        let plain = SocketAddr::new(case.vip().ip(), 81);
        bed.service().external(plain).backend_local(case.pod(1)).install();
        let own = SocketAddr::new(family.node(1), VIP_PORT);
        bed.peer(own.ip(), PEER_SELF | PEER_NODE);
        bed.service().node_ports().dsr().external(own).backend_local(case.pod(1)).install();
        for from in [plain, own, SocketAddr::new(case.vip().ip(), 82), case.pod(9)] {
            let outcome = bed.send(Hook::TcEgress, &answer(family, from, 1460));
            outcome.assert_untouched().assert_counted(Reason::NotOurs);
        }
        let off = Bed::new();
        off.service().dsr().external(case.vip()).backend_pod(local_pod(case), 0).install();
        off.send(Hook::TcEgress, &answer(family, case.vip(), 1460)).assert_untouched();
    }
}
