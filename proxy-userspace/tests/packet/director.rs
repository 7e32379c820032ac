//! Direct Server Return on the director: encapsulation towards the backend's node.

use millrace_lab::frame::{Layer, flag};
use millrace_lab::program::{Bed, Endpoint, FlowTable, Hook, Verdict, resolved_way};
use proxy_common::config::AGENT_HEARTBEAT;
use proxy_common::verdict::Reason;
use proxy_common::way::{WAY_RESOLVED, Way};

use crate::case::{Tunnel, each_tunnel};
use crate::network::{connect_to_nodes, in_an_empty_namespace};

each_tunnel! {
    a_clients_packet_is_encapsulated_unchanged_but_for_the_hop_limit
    a_datagram_is_encapsulated
    the_hash_of_the_contract_selects_the_slot
    a_backend_on_this_node_is_served_without_a_tunnel
    the_outer_header_copies_the_service_class_without_the_congestion_bits
    padding_behind_the_packet_is_not_counted_in_the_outer_length
    a_used_up_hop_limit_is_not_forwarded
    a_packet_that_fits_the_way_with_its_outer_header_is_sent_and_no_byte_more
    a_way_that_does_not_exist_drops
    another_device_is_reached_by_redirection
    xdp_leaves_an_unresolved_way_to_tc
    tc_finds_an_unresolved_way_by_the_route
    a_director_keeps_no_entry_where_nothing_changed
}

/// Installs a DSR Service with one backend behind a way to node 2.
fn service_behind(tunnel: Tunnel, bed: &Bed, way: u32) -> Endpoint {
    let case = tunnel.case;
    let service = bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
    bed.service().udp().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
    service.endpoints[0]
}

fn a_clients_packet_is_encapsulated_unchanged_but_for_the_hop_limit(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let backend = service_behind(tunnel, &bed, tunnel.way(&bed, 2));
    for flags in [flag::SYN, flag::ACK, flag::FIN | flag::ACK, flag::RST] {
        let frame = tunnel.case.tcp(flags);
        let outcome = tunnel.case.arrives(&bed, &frame);
        outcome.assert_sent(&tunnel.forwarded(&frame, 2, backend.hint)).assert_counted(Reason::SentDsr);
        let same_device =
            if tunnel.case.hook == Hook::XdpIngress { Verdict::Transmit } else { Verdict::Redirect };
        assert_eq!(outcome.verdict, same_device);
    }
}

fn a_datagram_is_encapsulated(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let backend = service_behind(tunnel, &bed, tunnel.way(&bed, 2));
    let datagram = tunnel.case.udp();
    let outcome = tunnel.case.arrives(&bed, &datagram);
    outcome.assert_sent(&tunnel.forwarded(&datagram, 2, backend.hint)).assert_counted(Reason::SentDsr);
}

fn the_hash_of_the_contract_selects_the_slot(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let ways = [tunnel.way(&bed, 2), tunnel.way(&bed, 3), tunnel.way(&bed, 4)];
    let service =
        ways.iter().zip(1..).fold(bed.service().dsr().external(case.vip()), |service, (way, number)| {
            service.backend_remote(case.remote_pod(number), *way)
        });
    let service = service.install();
    for port in 40000..40040 {
        let syn = case.tcp_from(port, flag::SYN);
        let backend = service.choice(&syn);
        let node = 2 + ways.iter().position(|way| *way == backend.way).unwrap() as u8;
        case.arrives(&bed, &syn).assert_sent(&tunnel.forwarded(&syn, node, backend.hint));
    }
}

fn a_backend_on_this_node_is_served_without_a_tunnel(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    bed.service().dsr().external(case.vip()).backend_local(case.pod(1)).install();
    let syn = case.tcp(flag::SYN);
    let delivered = syn.clone().with_destination(case.pod(1));
    case.is_delivered(&bed, &syn, &delivered, Reason::ServedLocal);
    bed.send(Hook::TcEgress, &delivered.reply()).assert_passed(&syn.reply());
}

fn the_outer_header_copies_the_service_class_without_the_congestion_bits(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let backend = service_behind(tunnel, &bed, tunnel.way(&bed, 2));
    let frame = tunnel.case.tcp(flag::ACK).with_traffic_class(0xb9);
    let mut expected = tunnel.forwarded(&frame, 2, backend.hint);
    expected.set_outer_traffic_class(0xb8);
    tunnel.case.arrives(&bed, &frame).assert_sent(&expected);
}

fn padding_behind_the_packet_is_not_counted_in_the_outer_length(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let backend = service_behind(tunnel, &bed, tunnel.way(&bed, 2));
    let mut frame = tunnel.case.tcp(flag::ACK);
    frame.trailer = vec![0xa5; 11].into();
    tunnel.case.arrives(&bed, &frame).assert_sent(&tunnel.forwarded(&frame, 2, backend.hint));
}

fn a_used_up_hop_limit_is_not_forwarded(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let backend = service_behind(tunnel, &bed, tunnel.way(&bed, 2));
    for limit in [0, 1] {
        let frame = tunnel.case.tcp(flag::ACK).with_hop_limit(limit);
        tunnel.case.arrives(&bed, &frame).assert_counted(Reason::HopLimit);
    }
    let frame = tunnel.case.tcp(flag::ACK).with_hop_limit(2);
    let sent = tunnel.forwarded(&frame, 2, backend.hint).with_hop_limit(1);
    tunnel.case.arrives(&bed, &frame).assert_sent(&sent);
}

fn a_packet_that_fits_the_way_with_its_outer_header_is_sent_and_no_byte_more(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let (near, far) = (tunnel.outer.node(1), tunnel.outer.node(2));
    let way = bed.way(Way { mtu: 1400, ..resolved_way(near, far) });
    let backend = service_behind(tunnel, &bed, way);
    let mut bare = tunnel.case.tcp(flag::ACK).payload(Vec::new());
    if let Layer::Ipv4(ip) = bare.innermost_mut() {
        ip.dont_fragment = true;
    }
    let headers = tunnel.forwarded(&bare, 2, backend.hint).build().len() - 14;
    let fits = bare.clone().payload(vec![7; 1400 - headers]);
    tunnel.case.arrives(&bed, &fits).assert_sent(&tunnel.forwarded(&fits, 2, backend.hint));
    let too_big = bare.payload(vec![7; 1401 - headers]);
    tunnel.case.arrives(&bed, &too_big).assert_counted(Reason::TooBig);
}

fn a_way_that_does_not_exist_drops(tunnel: Tunnel) {
    let bed = tunnel.bed();
    service_behind(tunnel, &bed, bed.way(Way::default()));
    tunnel.case.arrives(&bed, &tunnel.case.tcp(flag::SYN)).assert_dropped(Reason::NoWay);
}

fn another_device_is_reached_by_redirection(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let way = bed.way(Way { device: 4711, ..resolved_way(tunnel.outer.node(1), tunnel.outer.node(2)) });
    let backend = service_behind(tunnel, &bed, way);
    let frame = tunnel.case.tcp(flag::SYN);
    let outcome = tunnel.case.arrives(&bed, &frame);
    outcome.assert_sent(&tunnel.forwarded(&frame, 2, backend.hint));
    assert_eq!(outcome.verdict, Verdict::Redirect);
}

fn xdp_leaves_an_unresolved_way_to_tc(tunnel: Tunnel) {
    // Without a route, TC has no other program to leave it to.
    let (hook, is_xdp) = (tunnel.case.hook, tunnel.case.hook == Hook::XdpIngress);
    in_an_empty_namespace(|| {
        for silence in [Silence::Way, Silence::Agent] {
            let (bed, _) = bed_without_next_hop(tunnel, silence);
            let outcome = bed.send(hook, &tunnel.case.tcp(flag::SYN));
            if is_xdp {
                outcome.assert_untouched().assert_counted(Reason::HandedToTc);
            } else {
                outcome.assert_dropped(Reason::NoWay);
            }
        }
    });
}

fn tc_finds_an_unresolved_way_by_the_route(tunnel: Tunnel) {
    let (hook, is_xdp) = (tunnel.case.hook, tunnel.case.hook == Hook::XdpIngress);
    in_an_empty_namespace(|| {
        connect_to_nodes(tunnel.outer.node(1));
        for silence in [Silence::Way, Silence::Agent] {
            let (bed, backend) = bed_without_next_hop(tunnel, silence);
            let frame = tunnel.case.tcp(flag::SYN);
            let outcome = bed.send(hook, &frame);
            if is_xdp {
                // The neighbour is not resolved yet, which only the stack can do.
                outcome.assert_untouched().assert_counted(Reason::HandedToTc);
            } else {
                // The stack writes the MAC addresses once it has found the neighbour.
                let (source, destination) = (outcome.frame().source_mac, outcome.frame().destination_mac);
                let expected = tunnel.forwarded(&frame, 2, backend.hint).with_macs(source, destination);
                outcome.assert_sent(&expected).assert_counted(Reason::SentDsr);
            }
        }
    });
}

/// The reason why the programs don't know the next hop.
#[derive(Clone, Copy)]
enum Silence {
    /// The agent has not resolved the way.
    Way,
    /// The agent has been silent for long, so the programs don't believe its resolved ways.
    Agent,
}

fn bed_without_next_hop(tunnel: Tunnel, silence: Silence) -> (Bed, Endpoint) {
    let bed = tunnel.bed();
    let way = resolved_way(tunnel.outer.node(1), tunnel.outer.node(2));
    let flags = match silence {
        Silence::Way => way.flags & !WAY_RESOLVED,
        Silence::Agent => way.flags,
    };
    let backend = service_behind(tunnel, &bed, bed.way(Way { flags, ..way }));
    if matches!(silence, Silence::Agent) {
        bed.set_agent_word(AGENT_HEARTBEAT, 0);
    }
    (bed, backend)
}

fn a_director_keeps_no_entry_where_nothing_changed(tunnel: Tunnel) {
    let bed = tunnel.bed();
    service_behind(tunnel, &bed, tunnel.way(&bed, 2));
    for flags in [flag::SYN, flag::ACK] {
        tunnel.case.arrives(&bed, &tunnel.case.tcp(flags)).assert_counted(Reason::SentDsr);
    }
    tunnel.case.arrives(&bed, &tunnel.case.udp()).assert_counted(Reason::SentDsr);
    assert_eq!(bed.flows(FlowTable::New), []);
    assert_eq!(bed.flows(FlowTable::Established), []);
}
