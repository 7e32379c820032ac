//! Encapsulation in UDP: the cases that the tests of both encapsulations leave open.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use millrace_lab::frame::{Extension, Frame, Layer, flag};
use millrace_lab::program::{Bed, Service};
use proxy_common::config::{TAKES_FOU, TAKES_IPIP};
use proxy_common::verdict::Reason;
use proxy_common::way::{FOU_PORT, PEER_NODE, PEER_SELF};

use crate::case::{Case, Encapsulation, Family, Tunnel, each_ingress};

each_ingress! {
    a_node_accepts_the_encapsulations_of_its_settings
    a_udp_header_behind_an_extension_header_is_no_inner_packet
    connections_have_source_ports_of_their_own_and_keep_them
    a_connection_that_comes_in_by_either_encapsulation_is_one
    packets_to_the_port_without_a_packet_for_us_pass_byte_for_byte
    a_service_on_the_port_is_served
    no_service_takes_the_port_of_a_node
}

const TAKES_BOTH: u32 = TAKES_IPIP | TAKES_FOU;
const ENCAPSULATIONS: [Encapsulation; 2] = [Encapsulation::Ipip, Encapsulation::Fou];

fn tunnel(case: Case, encapsulation: Encapsulation) -> Tunnel {
    Tunnel { case, outer: case.family, encapsulation }
}

fn both() -> Bed {
    Bed::builder().takes(TAKES_BOTH).load()
}

/// Installs a Service on node 1, with a pod of this node and one of node 3.
fn install(bed: &Bed, case: Case) -> Service {
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
        bed.peer(case.family.node(number), bits);
    }
    let way = tunnel(case, Encapsulation::Fou).way(bed, 3);
    let service = bed.service().dsr().external(case.vip());
    service.backend_local(case.pod(1)).backend_remote(case.remote_pod(3), way).install()
}

fn a_node_accepts_the_encapsulations_of_its_settings(case: Case) {
    for takes in [TAKES_IPIP, TAKES_FOU, TAKES_BOTH] {
        let bed = Bed::builder().takes(takes).load();
        let here = install(&bed, case).endpoints[0];
        for (port, (of_director, bit)) in
            (40000..).zip(ENCAPSULATIONS.into_iter().zip([TAKES_IPIP, TAKES_FOU]))
        {
            let syn = case.tcp_from(port, flag::SYN);
            let directed = tunnel(case, of_director).around(&syn, 2, 1, here.hint);
            if takes & bit == 0 {
                case.arrives(&bed, &directed).assert_untouched().assert_counted(Reason::NotOurs);
            } else {
                case.is_delivered(&bed, &directed, &syn.with_destination(here.at), Reason::ServedDsr);
            }
        }
    }
}

/// The sender chooses the first byte of the UDP header, and so also its meaning as an IPv4 header.
fn a_udp_header_behind_an_extension_header_is_no_inner_packet(case: Case) {
    // The frame has to be so large that TC takes it in no test run.
    if case.family == Family::V4 || !case.hook.is_xdp() {
        return;
    }
    let bed = both();
    install(&bed, case);
    let v4 = Case { family: Family::V4, ..case };
    let inner = v4.tcp(flag::ACK).payload(vec![0xa5; 5555 - 40]).build().slice(14..);
    // The source port and port 5555 are the version, type of service and length of an IPv4 header.
    // Its other fields follow.
    let source_port = u16::from_be_bytes([inner[0], inner[1]]);
    assert_eq!(u16::from_be_bytes([inner[2], inner[3]]), FOU_PORT);
    let outer = Frame::ip(case.family.node(2), case.family.node(1)).layer(Extension::hop_by_hop(1));
    let mut frame = outer.udp(source_port, FOU_PORT).payload(inner.slice(8..)).build().to_vec();
    // Length and checksum of UDP are the identification and the flags of the IPv4 header.
    let at = frame.len() - inner.len() + 4;
    frame[at..at + 4].copy_from_slice(&inner[4..8]);
    let outcome = bed.run(case.hook, &frame);
    assert_eq!(outcome.assert_untouched().counts.of(Reason::NotOurs).packets, 1, "{outcome}");
}

fn connections_have_source_ports_of_their_own_and_keep_them(case: Case) {
    let bed = tunnel(case, Encapsulation::Fou).bed();
    let way = tunnel(case, Encapsulation::Fou).way(&bed, 3);
    bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(3), way).install();
    let source_port = |frame: &Frame| {
        let outcome = case.arrives(&bed, frame);
        outcome.assert_counted(Reason::SentDsr);
        match outcome.frame().layers.get(1) {
            Some(Layer::Udp(udp)) => udp.source,
            other => panic!("{other:?} is no UDP header\n{outcome}"),
        }
    };
    let mut ports = BTreeSet::new();
    for port in 40000..40100 {
        let chosen = source_port(&case.tcp_from(port, flag::SYN));
        assert!(chosen >= 0xc000);
        assert_eq!(source_port(&case.tcp_from(port, flag::ACK)), chosen);
        ports.insert(chosen);
    }
    assert!(ports.len() > 90, "{ports:?}");
}

fn a_connection_that_comes_in_by_either_encapsulation_is_one(case: Case) {
    let bed = both();
    let here = install(&bed, case).endpoints[0];
    for (flags, encapsulation) in
        [(flag::SYN, Encapsulation::Ipip), (flag::ACK, Encapsulation::Fou), (flag::ACK, Encapsulation::Ipip)]
    {
        let frame = case.tcp(flags);
        // Without a hint: after the first packet, the flow entry has the backend.
        let hint = if flags == flag::SYN { here.hint } else { 0 };
        let directed = tunnel(case, encapsulation).around(&frame, 2, 1, hint);
        case.is_delivered(&bed, &directed, &frame.with_destination(here.at), Reason::ServedDsr);
    }
}

fn packets_to_the_port_without_a_packet_for_us_pass_byte_for_byte(case: Case) {
    let bed = both();
    let here = install(&bed, case).endpoints[0];
    let to_port = |payload: &[u8]| {
        let frame = Frame::ip(case.family.node(2), case.family.node(1)).udp(4000, FOU_PORT);
        frame.payload(payload.to_vec())
    };
    let syn = case.tcp(flag::SYN).build();
    let texts = [&b""[..], b"E", b"hello", &[0x45; 60], &[0x60; 60], &[0xf0; 60], &syn];
    let overlay =
        tunnel(case, Encapsulation::Fou).around(&case.tcp(flag::SYN).with_destination(here.at), 2, 1, 0);
    let mut other_port = tunnel(case, Encapsulation::Fou).around(&case.tcp(flag::SYN), 2, 1, here.hint);
    if let Some(Layer::Udp(udp)) = other_port.layers.get_mut(1) {
        udp.destination = FOU_PORT + 1;
    }
    for frame in texts.map(to_port).into_iter().chain([overlay, other_port]) {
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn a_service_on_the_port_is_served(case: Case) {
    let bed = both();
    let here = install(&bed, case).endpoints[0];
    let at = SocketAddr::new(case.vip().ip(), FOU_PORT);
    bed.service().udp().external(at).backend_local(case.pod(1)).install();
    for payload in [&b"a question"[..], &case.tcp(flag::SYN).build()[14..]] {
        let datagram = Frame::ip(case.client().ip(), case.vip().ip()).udp(4000, FOU_PORT);
        let datagram = datagram.payload(payload.to_vec());
        let delivered = datagram.clone().with_destination(here.at);
        case.is_delivered(&bed, &datagram, &delivered, Reason::ServedLocal);
    }
}

fn no_service_takes_the_port_of_a_node(case: Case) {
    let bed = both();
    let here = install(&bed, case).endpoints[0];
    let at = SocketAddr::new(case.family.node(1), FOU_PORT);
    bed.service().udp().external(at).backend_local(case.pod(2)).install();
    let syn = case.tcp(flag::SYN);
    let directed = tunnel(case, Encapsulation::Fou).around(&syn, 2, 1, here.hint);
    case.is_delivered(&bed, &directed, &syn.with_destination(here.at), Reason::ServedDsr);
    let datagram = Frame::ip(case.client().ip(), at.ip()).udp(4000, FOU_PORT).payload(&b"a question"[..]);
    case.arrives(&bed, &datagram).assert_untouched().assert_counted(Reason::NotOurs);
}
