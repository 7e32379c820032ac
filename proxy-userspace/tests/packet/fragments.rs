//! Fragments on this node: clients' packets for its own backends, translated packets for backends of
//! other nodes, and replies.

use bytes::Bytes;
use millrace_lab::frame::{Extension, Frame, Icmp, Layer, flag, protocol};
use millrace_lab::program::{Bed, FlowTable, Hook, ServiceBuilder};
use proxy_common::verdict::Reason;
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL};

use crate::case::{Case, Family, each_client, each_hook, each_ingress};
use crate::held_fragments::is_held;
use crate::snat::{Checked, Node, neighbour};

each_client! {
    every_fragment_of_a_datagram_gets_to_the_backend_and_back
    fragments_of_a_segment_follow_the_first_one
    a_fragment_that_comes_before_the_first_is_held_for_a_services_address_only
    a_first_fragment_without_a_whole_transport_header_is_not_remembered
    the_first_fragment_is_remembered_for_thirty_seconds
    a_reused_identification_means_the_newer_packet
    identifications_of_other_clients_do_not_matter
    fragments_of_other_packets_are_untouched_and_not_remembered
    fragments_to_an_unserved_port_are_treated_alike
    a_refusal_goes_to_the_sender_of_the_first_fragment_once
    fragments_that_lie_about_their_length_are_untouched
}

each_ingress! {
    fragments_leave_for_another_node_from_one_port_and_come_back
}

each_hook! {
    extension_headers_stand_on_either_side_of_the_fragment_header
    a_fragment_header_around_a_whole_packet_is_not_remembered
    fragments_of_protocols_without_ports_are_untouched
    fragments_of_sctp_are_dropped_for_a_services_address_only
    the_sender_of_a_fragment_that_does_not_fit_gets_one_error
}

/// Bytes of a fragment, which fits every way.
pub const PIECE: usize = 1200;

/// Returns a datagram that is cut into four.
pub fn large(case: Case) -> Frame {
    case.udp().payload((0..4000_u32).map(|byte| (byte % 251) as u8).collect::<Vec<u8>>())
}

pub fn bed_with_service(case: Case) -> Bed {
    let bed = Bed::new();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed.vip(case.vip().ip(), VIP_EXTERNAL);
    bed
}

#[track_caller]
pub fn all_are_delivered(case: Case, bed: &Bed, frame: &Frame) {
    let expected = frame.clone().with_destination(case.pod(1)).fragments(7, PIECE);
    for (piece, expected) in frame.fragments(7, PIECE).iter().zip(&expected) {
        case.is_delivered(bed, piece, expected, case.served());
    }
}

#[track_caller]
fn all_come_back(bed: &Bed, hook: Hook, reply: &Frame, restored: &Frame) {
    let expected = restored.fragments(8, PIECE);
    for (piece, expected) in reply.fragments(8, PIECE).iter().zip(&expected) {
        bed.send(hook, piece).assert_passed(expected).assert_counted(Reason::Reply);
    }
}

fn every_fragment_of_a_datagram_gets_to_the_backend_and_back(case: Case) {
    let bed = bed_with_service(case);
    let datagram = large(case);
    all_are_delivered(case, &bed, &datagram);
    let reply = datagram.clone().with_destination(case.pod(1)).reply();
    all_come_back(&bed, case.way_out(), &reply, &datagram.reply());
}

fn fragments_of_a_segment_follow_the_first_one(case: Case) {
    let bed = bed_with_service(case);
    all_are_delivered(case, &bed, &case.tcp(flag::ACK).payload(vec![3; 3000]));
    assert_eq!(bed.flows(FlowTable::New).len(), 2, "one connection, in which the client has sent one packet");
    all_are_delivered(case, &bed, &case.tcp(flag::FIN | flag::ACK).payload(vec![4; 3000]));
}

fn fragments_leave_for_another_node_from_one_port_and_come_back(case: Case) {
    Node::with(case, Bed::builder(), datagrams).in_its_network(|node| {
        let datagram = large(case).with_source(neighbour(case));
        let pieces = datagram.fragments(7, PIECE);
        let port = case.arrives(&node.bed, &pieces[0]).frame().ports().0;
        let source = (case.family.node(1), port).into();
        let forwarded = node.forwarded(&datagram, source);
        for (piece, expected) in pieces.iter().zip(&forwarded.fragments(7, PIECE)) {
            case.arrives(&node.bed, piece).assert_sent(expected).assert_counted(Reason::SentSnat);
        }
        let (reply, restored) = (forwarded.reply(), datagram.reply());
        for (piece, expected) in reply.fragments(9, PIECE).iter().zip(&restored.fragments(9, PIECE)) {
            let mut outcome = case.arrives(&node.bed, piece);
            if case.hook == Hook::XdpIngress {
                outcome.assert_untouched().assert_counted(Reason::HandedToTc);
                outcome = node.bed.send(Hook::TcIngress, piece);
            }
            outcome.checked(expected).assert_counted(Reason::ReplySnat);
        }
    });
}

fn a_fragment_that_comes_before_the_first_is_held_for_a_services_address_only(case: Case) {
    let bed = bed_with_service(case);
    let pieces = large(case).fragments(9, PIECE);
    for piece in pieces.iter().skip(1) {
        is_held(case, &bed, piece);
        // A frame that leaves the node may be on its way to another one.
        bed.send(case.way_out(), piece).assert_untouched();
    }
    assert!(bed.flows(FlowTable::New).is_empty(), "a later fragment opens nothing");
    bed.forget_vip(case.vip().ip());
    for piece in pieces.iter().skip(1) {
        case.arrives(&bed, piece).assert_untouched().assert_counted(Reason::NotOurs);
    }
    all_are_delivered(case, &bed, &large(case));
}

fn a_first_fragment_without_a_whole_transport_header_is_not_remembered(case: Case) {
    let bed = bed_with_service(case);
    let segment = case.tcp(flag::SYN).payload(vec![5; 100]);
    let mut datagram = large(case).fragments(8, 8).swap_remove(0);
    datagram.payload = datagram.payload.slice(..7);
    // The bytes behind the packet do not belong to it.
    datagram.trailer = Bytes::from_static(&[0; 30]);
    for short in [segment.fragments(7, 16).swap_remove(0), datagram] {
        case.arrives(&bed, &short).assert_dropped(Reason::FragmentUnknown);
    }
    for later in [segment.fragments(7, 16).swap_remove(1), large(case).fragments(8, 8).swap_remove(1)] {
        is_held(case, &bed, &later);
    }
}

fn the_first_fragment_is_remembered_for_thirty_seconds(case: Case) {
    let bed = bed_with_service(case);
    let pieces = large(case).fragments(7, PIECE);
    case.arrives(&bed, &pieces[0]).assert_counted(case.served());
    bed.age_fragments(29);
    case.arrives(&bed, &pieces[1]).assert_counted(case.served());
    bed.age_fragments(2);
    is_held(case, &bed, &pieces[2]);
}

fn a_reused_identification_means_the_newer_packet(case: Case) {
    let bed = Bed::new();
    let second = (case.vip().ip(), 81).into();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    bed.service().udp().external(second).backend_local(case.pod(2)).install();
    all_are_delivered(case, &bed, &large(case));
    let other = large(case).with_destination(second);
    let expected = other.clone().with_destination(case.pod(2)).fragments(7, PIECE);
    for (piece, expected) in other.fragments(7, PIECE).iter().zip(&expected) {
        case.is_delivered(&bed, piece, expected, case.served());
    }
}

fn identifications_of_other_clients_do_not_matter(case: Case) {
    let bed = bed_with_service(case);
    let pieces = large(case).fragments(7, PIECE);
    case.arrives(&bed, &pieces[0]).assert_counted(case.served());
    let stranger = (case.family.pick("198.51.100.99", "2001:db8:51::99"), 0).into();
    is_held(case, &bed, &pieces[1].clone().with_source(stranger));
    let other_id = large(case).fragments(8, PIECE).swap_remove(1);
    is_held(case, &bed, &other_id);
}

fn fragments_of_other_packets_are_untouched_and_not_remembered(case: Case) {
    let bed = bed_with_service(case);
    for frame in [large(case).with_destination(case.pod(9)), large(case).reply()] {
        for piece in frame.fragments(7, PIECE) {
            for hook in [case.hook, case.way_out()] {
                bed.send(hook, &piece).assert_untouched().assert_counted(Reason::NotOurs);
            }
        }
    }
    assert_eq!(bed.fragmented_packets(), 0);
}

fn fragments_to_an_unserved_port_are_treated_alike(case: Case) {
    let unknown = large(case).with_destination((case.vip().ip(), 81).into()).fragments(7, PIECE);
    let bed = Bed::builder().reject_unknown(VIP_CLUSTER_IP).load();
    bed.vip(case.vip().ip(), VIP_EXTERNAL);
    for piece in &unknown {
        case.arrives(&bed, piece).assert_untouched().assert_counted(Reason::NotOurs);
    }
    bed.vip(case.vip().ip(), VIP_CLUSTER_IP);
    is_told_once(case, &bed, &unknown, case.family.port_unreachable(), Reason::UnknownPort);
}

pub fn datagrams(service: ServiceBuilder<'_>) -> ServiceBuilder<'_> {
    service.udp()
}

#[track_caller]
fn is_told_once(case: Case, bed: &Bed, pieces: &[Frame], icmp: Icmp, reason: Reason) {
    // The headers of the first fragment, and eight bytes of its payload.
    let refused =
        Frame { layers: [&pieces[0].layers[..], &[Layer::from(icmp)]].concat(), ..pieces[0].clone() };
    let quoted = pieces[0].layers.iter().map(Layer::length).sum::<usize>() + 8;
    let mut error = refused.icmp_error_quoting(case.vip().ip(), icmp, 0);
    error.payload = pieces[0].build().slice(14..14 + quoted);
    case.arrives(bed, &pieces[0]).assert_sent(&error).assert_counted(reason);
    for piece in &pieces[1..] {
        case.arrives(bed, piece).assert_dropped(reason);
    }
}

fn a_refusal_goes_to_the_sender_of_the_first_fragment_once(case: Case) {
    let bed = Bed::new();
    bed.service().udp().external(case.vip()).install();
    let pieces = large(case).fragments(7, PIECE);
    is_told_once(case, &bed, &pieces, case.family.port_unreachable(), Reason::NoEndpoint);
}

/// Routers cut no IPv6 packets.
fn the_sender_of_a_fragment_that_does_not_fit_gets_one_error(hook: Hook) {
    let case = Case { hook, family: Family::V6 };
    let node = Node::with(case, Bed::builder(), datagrams);
    let pieces = large(case).fragments(7, 1600);
    let outcome = case.arrives(&node.bed, &pieces[0]);
    outcome.assert_counted(Reason::TooBig);
    assert!(outcome.verdict.is_sent(), "told\n{outcome}");
    case.arrives(&node.bed, &pieces[1]).assert_dropped(Reason::TooBig);
}

fn fragments_that_lie_about_their_length_are_untouched(case: Case) {
    let bed = bed_with_service(case);
    let pieces = large(case).fragments(7, PIECE);
    case.arrives(&bed, &pieces[0]).assert_counted(case.served());
    let mut longer = pieces[1].build().to_vec();
    let field = if case.family == Family::V4 { 16 } else { 18 };
    longer[field] += 1;
    bed.run(case.hook, &longer).assert_untouched().assert_counted(Reason::NotOurs);
}

fn extension_headers_stand_on_either_side_of_the_fragment_header(hook: Hook) {
    let case = Case { hook, family: Family::V6 };
    let bed = bed_with_service(case);
    let ip = || Frame::ip(case.client().ip(), case.vip().ip());
    let (hop, options) = (Extension::hop_by_hop(2), Extension::destination_options(2));
    for frame in [
        ip().layer(hop.clone()),
        ip().layer(Extension::routing()),
        ip().layer(options.clone()),
        ip().layer(hop).layer(options),
    ] {
        all_are_delivered(case, &bed, &frame.udp(40000, 80).payload(vec![9; 3000]));
    }
}

fn a_fragment_header_around_a_whole_packet_is_not_remembered(hook: Hook) {
    let case = Case { hook, family: Family::V6 };
    let bed = bed_with_service(case);
    let ip = Frame::ip(case.client().ip(), case.vip().ip()).layer(Extension::fragment(0, false, 7));
    let datagram = ip.udp(40000, 80).payload(&b"whole"[..]);
    case.is_delivered(&bed, &datagram, &datagram.clone().with_destination(case.pod(1)), case.served());
    assert_eq!(bed.fragmented_packets(), 0);
}

fn fragments_of_protocols_without_ports_are_untouched(hook: Hook) {
    for family in [Family::V4, Family::V6] {
        let case = Case { hook, family };
        let bed = bed_with_service(case);
        let echo = Icmp { kind: if family == Family::V4 { 8 } else { 128 }, code: 0, rest: [0, 1, 0, 1] };
        let ping = Frame::ip(case.client().ip(), case.vip().ip()).layer(echo).payload(vec![1; 3000]);
        let mut other = Frame::ip(case.client().ip(), case.vip().ip()).payload(vec![1; 3000]);
        match other.innermost_mut() {
            Layer::Ipv4(ip) => ip.protocol = Some(protocol::EXPERIMENT),
            Layer::Ipv6(ip) => ip.protocol = Some(protocol::EXPERIMENT),
            _ => {}
        }
        for piece in ping.fragments(7, PIECE).iter().chain(&other.fragments(8, PIECE)) {
            case.arrives(&bed, piece).assert_untouched().assert_counted(Reason::NotOurs);
        }
        assert_eq!(bed.held_fragments(), 0);
    }
}

/// Patching the checksum behind the ports would need the end of the packet.
fn fragments_of_sctp_are_dropped_for_a_services_address_only(hook: Hook) {
    for family in [Family::V4, Family::V6] {
        let case = Case { hook, family };
        let bed = bed_with_service(case);
        let mut packet = Frame::ip(case.client().ip(), case.vip().ip()).payload([0, 80].repeat(1500));
        match packet.innermost_mut() {
            Layer::Ipv4(ip) => ip.protocol = Some(protocol::SCTP),
            Layer::Ipv6(ip) => ip.protocol = Some(protocol::SCTP),
            _ => {}
        }
        for piece in packet.fragments(7, PIECE) {
            case.arrives(&bed, &piece).assert_dropped(Reason::FragmentUnknown);
        }
        bed.forget_vip(case.vip().ip());
        for piece in packet.fragments(7, PIECE) {
            case.arrives(&bed, &piece).assert_untouched();
        }
    }
}
