//! A client's packets for a backend on this node, and the backend's replies.

use millrace_lab::frame::{Frame, Layer, UdpChecksum, flag};
use millrace_lab::program::{Bed, ServiceBuilder};
use proxy_common::backend::{BACKEND_EXISTS, BACKEND_LOCAL, BACKEND_SERVING};
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;

use crate::case::{Case, each_client, each_ingress};

each_client! {
    a_new_tcp_connection_is_translated_to_the_backend
    packets_of_an_established_connection_follow_the_first_one
    a_datagram_is_translated_to_the_backend
    a_datagram_without_a_checksum_stays_without
    a_datagram_whose_new_checksum_is_zero_goes_out_as_ones
    a_reply_restores_the_frontend_and_keeps_everything_else
    two_local_backends_are_distinguished_in_both_directions
    tcp_and_udp_on_one_port_are_two_services
    a_backend_that_is_leaving_keeps_its_connections
    datagrams_leave_a_backend_that_serves_no_more
    with_affinity_all_connections_of_a_client_go_to_one_backend
    the_service_counts_its_clients_packets
}

each_ingress! {
    policy_local_without_a_local_backend_drops
    policy_local_uses_the_backends_of_this_node_only
}

fn a_new_tcp_connection_is_translated_to_the_backend(case: Case) {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    let syn = case.tcp(flag::SYN);
    case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), case.served());
}

fn packets_of_an_established_connection_follow_the_first_one(case: Case) {
    let bed = Bed::new();
    let service = bed
        .service()
        .external(case.vip())
        .backend_local(case.pod(1))
        .backend_local(case.pod(2))
        .backend_local(case.pod(3))
        .install();
    let first = service.choice(&case.tcp(flag::SYN)).at;
    for flags in [flag::SYN, flag::ACK, flag::PSH | flag::ACK, flag::FIN | flag::ACK, flag::ACK] {
        let frame = case.tcp(flags);
        case.is_delivered(&bed, &frame, &frame.clone().with_destination(first), case.served());
    }
}

fn a_datagram_is_translated_to_the_backend(case: Case) {
    let bed = Bed::new();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    let datagram = case.udp();
    for _ in 0..3 {
        let expected = datagram.clone().with_destination(case.pod(1));
        case.is_delivered(&bed, &datagram, &expected, case.served());
    }
}

fn a_datagram_without_a_checksum_stays_without(case: Case) {
    let bed = Bed::new();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    let mut datagram = case.udp();
    set_udp_checksum(&mut datagram, UdpChecksum::None);
    let translated = datagram.clone().with_destination(case.pod(1));
    case.is_delivered(&bed, &datagram, &translated, case.served());
    bed.send(case.way_out(), &translated.reply()).assert_passed(&datagram.reply());
}

fn set_udp_checksum(frame: &mut Frame, checksum: UdpChecksum) {
    match frame.layers.last_mut() {
        Some(Layer::Udp(header)) => header.checksum = checksum,
        other => panic!("{other:?} has no UDP checksum"),
    }
}

fn a_datagram_whose_new_checksum_is_zero_goes_out_as_ones(case: Case) {
    let bed = Bed::new();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    let field = |frame: &Frame| {
        let bytes = frame.build();
        let at = bytes.len() - frame.payload.len() - 2;
        u16::from_be_bytes([bytes[at], bytes[at + 1]])
    };
    // These two bytes bring the sum of the translated datagram to ones: they are its checksum while
    // they are zero.
    let zeros = case.udp().payload(vec![0, 0]);
    let missing = field(&zeros.clone().with_destination(case.pod(1)));
    let datagram = zeros.payload(missing.to_be_bytes().to_vec());
    let translated = datagram.clone().with_destination(case.pod(1));
    assert_eq!(field(&translated), 0xffff, "the case this test is for");
    case.is_delivered(&bed, &datagram, &translated, case.served());
}

fn a_reply_restores_the_frontend_and_keeps_everything_else(case: Case) {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    for sent in [case.tcp(flag::SYN), case.tcp(flag::ACK), case.udp()] {
        let delivered = case.arrives(&bed, &sent).frame();
        assert_eq!(delivered.source(), case.client(), "the client's address is kept");
        let reply = delivered.reply().with_hop_limit(63).payload(&b"an answer"[..]);
        let restored = reply.clone().with_source(case.vip());
        bed.send(case.way_out(), &reply).assert_passed(&restored).assert_counted(Reason::Reply);
    }
    let unrelated = Frame::ip(case.pod(1).ip(), case.client().ip()).tcp(8080, 50000, flag::ACK);
    bed.send(case.way_out(), &unrelated).assert_untouched().assert_counted(Reason::NotOurs);
}

fn two_local_backends_are_distinguished_in_both_directions(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().external(case.vip()).backend_local(case.pod(1)).backend_local(case.pod(2)).install();
    let mut seen = Vec::new();
    for port in 40000..40032 {
        let syn = case.tcp_from(port, flag::SYN);
        let backend = service.choice(&syn).at;
        let delivered = syn.clone().with_destination(backend);
        case.is_delivered(&bed, &syn, &delivered, case.served());
        bed.send(case.way_out(), &delivered.reply()).assert_passed(&syn.reply());
        seen.push(backend);
    }
    assert!(seen.contains(&case.pod(1)) && seen.contains(&case.pod(2)), "32 clients, two backends: {seen:?}");
}

fn tcp_and_udp_on_one_port_are_two_services(case: Case) {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed.service().udp().external(case.vip()).backend_local(case.pod(2)).install();
    let (syn, datagram) = (case.tcp(flag::SYN), case.udp());
    case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), case.served());
    case.is_delivered(&bed, &datagram, &datagram.clone().with_destination(case.pod(2)), case.served());
}

fn policy_local_without_a_local_backend_drops(case: Case) {
    let bed = Bed::new();
    bed.service().policy_local().external(case.vip()).backend_remote(case.remote_pod(1), 1).install();
    case.arrives(&bed, &case.tcp(flag::SYN)).assert_dropped(Reason::NoLocalEndpoint);
}

fn policy_local_uses_the_backends_of_this_node_only(case: Case) {
    let bed = Bed::new();
    let remote = case.remote_pod(1);
    bed.service()
        .policy_local()
        .external(case.vip())
        .backend_remote(remote, 1)
        .backend_local(case.pod(1))
        .install();
    for port in 40000..40016 {
        let syn = case.tcp_from(port, flag::SYN);
        case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), case.served());
    }
}

fn a_backend_that_is_leaving_keeps_its_connections(case: Case) {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    case.arrives(&bed, &case.tcp(flag::SYN));
    bed.set_backend_flags(case.pod(1), BACKEND_EXISTS | BACKEND_LOCAL);
    let data = case.tcp(flag::ACK);
    case.is_delivered(&bed, &data, &data.clone().with_destination(case.pod(1)), case.served());
}

fn datagrams_leave_a_backend_that_serves_no_more(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().udp().external(case.vip()).backend_local(case.pod(1)).backend_local(case.pod(2));
    let service = service.install();
    let datagram = case.udp();
    let first = service.choice(&datagram).at;
    let other = if first == case.pod(1) { case.pod(2) } else { case.pod(1) };
    let goes_to = |backend| {
        case.is_delivered(&bed, &datagram, &datagram.clone().with_destination(backend), case.served());
    };
    goes_to(first);
    service.set_slot(&bed, &datagram, Slot::settled_on(bed.backend_local(other)));
    bed.set_backend_flags(first, BACKEND_EXISTS | BACKEND_LOCAL | BACKEND_SERVING);
    goes_to(first);
    bed.set_backend_flags(first, BACKEND_EXISTS | BACKEND_LOCAL);
    goes_to(other);
    goes_to(other);
}

fn with_affinity_all_connections_of_a_client_go_to_one_backend(case: Case) {
    let bed = Bed::new();
    let pods = (1..=8).map(|number| case.pod(number));
    let service =
        pods.fold(bed.service().affinity().external(case.vip()), ServiceBuilder::backend_local).install();
    let backend = service.choice(&case.tcp(flag::SYN)).at;
    for port in 40000..40016 {
        let syn = case.tcp_from(port, flag::SYN);
        case.is_delivered(&bed, &syn, &syn.clone().with_destination(backend), case.served());
    }
}

fn the_service_counts_its_clients_packets(case: Case) {
    let bed = Bed::new();
    let service = bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    let before = bed.service_counter(service.id);
    let frames = [case.tcp(flag::SYN), case.tcp(flag::ACK)];
    let bytes: usize = frames.iter().map(|frame| frame.build().len()).sum();
    for frame in &frames {
        case.arrives(&bed, frame);
    }
    let after = bed.service_counter(service.id);
    assert_eq!((after.packets - before.packets, after.bytes - before.bytes), (2, bytes as u64));
}
