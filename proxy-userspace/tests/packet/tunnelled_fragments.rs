//! Fragments and Direct Server Return: those of clients' packets inside tunnels, and those of
//! tunnels.

use millrace_lab::frame::{DEVICE_MAC, Extension, Frame, Layer, flag};
use millrace_lab::program::{Bed, Hook, NEXT_HOP_MAC, hash_of};
use proxy_common::verdict::Reason;
use proxy_common::vip::VIP_EXTERNAL;
use proxy_common::way::{FOU_PORT, PEER_NODE, PEER_SELF};

use crate::case::{Encapsulation, Tunnel, each_tunnel};
use crate::held_fragments::{arrives_through, is_held};
use crate::network::in_an_empty_namespace;
use crate::shapes::with_options;

each_tunnel! {
    every_fragment_is_encapsulated_as_its_first_one
    a_fragment_that_came_too_early_is_encapsulated_behind_its_first_one
    every_fragment_is_decapsulated_and_the_reply_comes_back_in_fragments
    an_inner_fragment_whose_first_was_not_seen_passes_byte_for_byte
    fragments_in_a_tunnel_do_not_affect_fragments_outside
    a_strangers_first_fragment_does_not_turn_a_nodes_packet
    a_strangers_first_fragment_affects_its_own_packet_only
    fragments_of_a_tunnel_pass_byte_for_byte
    options_of_the_inner_header_travel_along
    options_of_the_outer_header_pass_byte_for_byte
}

pub const PIECE: usize = 1200;
/// A node outside the cluster.
const STRANGER: u8 = 66;

/// Returns the fragments of a datagram, and each as node `from` sends it to node `to`.
pub fn tunnelled(tunnel: Tunnel, whole: &Frame, from: u8, to: u8, hint: u16) -> Vec<(Frame, Frame)> {
    let around = |piece: Frame| {
        let header = tunnel.around(&whole.clone(), from, to, hint).outermost().clone();
        let frame = piece.encapsulated(header);
        match tunnel.encapsulation {
            Encapsulation::Ipip => frame,
            Encapsulation::Fou => frame.in_udp(0xc000 | hash_of(whole) as u16, FOU_PORT),
        }
    };
    whole.fragments(7, PIECE).into_iter().map(|piece| (piece.clone(), around(piece))).collect()
}

fn large(tunnel: Tunnel) -> Frame {
    tunnel.case.udp().payload(vec![0xa5; 4000])
}

fn backends_node(tunnel: Tunnel) -> (Bed, u16) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
        bed.peer(tunnel.outer.node(number), bits);
    }
    let service = bed.service().udp().dsr().external(case.vip()).backend_local(case.pod(1)).install();
    bed.service().dsr().external(case.vip()).backend_local(case.pod(1)).install();
    bed.vip(case.vip().ip(), VIP_EXTERNAL);
    (bed, service.endpoints[0].hint)
}

/// Returns a director, and the fragments of a client's datagram, each with its encapsulated form.
fn director(tunnel: Tunnel) -> (Bed, Vec<(Frame, Frame)>) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let service = bed.service().udp().dsr().external(case.vip());
    let service = service.backend_remote(case.remote_pod(1), tunnel.way(&bed, 2)).install();
    bed.vip(case.vip().ip(), VIP_EXTERNAL);
    let sent = large(tunnel).with_hop_limit(63);
    let sent = tunnelled(tunnel, &sent, 1, 2, service.endpoints[0].hint).into_iter();
    let sent = sent.map(|(_, outer)| outer.with_macs(DEVICE_MAC, NEXT_HOP_MAC));
    (bed, large(tunnel).fragments(7, PIECE).into_iter().zip(sent).collect())
}

fn every_fragment_is_encapsulated_as_its_first_one(tunnel: Tunnel) {
    let (bed, pieces) = director(tunnel);
    for (piece, expected) in &pieces {
        tunnel.case.arrives(&bed, piece).assert_sent(expected).assert_counted(Reason::SentDsr);
    }
}

fn a_fragment_that_came_too_early_is_encapsulated_behind_its_first_one(tunnel: Tunnel) {
    let ((bed, pieces), case) = (director(tunnel), tunnel.case);
    in_an_empty_namespace(move || {
        is_held(case, &bed, &pieces[1].0);
        for (piece, expected) in &pieces {
            arrives_through(case, &bed, piece).assert_sent(expected).assert_counted(Reason::SentDsr);
        }
        assert_eq!(bed.held_fragments(), 0);
    });
}

fn every_fragment_is_decapsulated_and_the_reply_comes_back_in_fragments(tunnel: Tunnel) {
    let ((bed, hint), case) = (backends_node(tunnel), tunnel.case);
    let datagram = large(tunnel);
    let delivered = datagram.clone().with_destination(case.pod(1));
    for ((_, outer), expected) in
        tunnelled(tunnel, &datagram, 2, 1, hint).iter().zip(&delivered.fragments(7, PIECE))
    {
        case.is_delivered(&bed, outer, expected, Reason::ServedDsr);
    }
    let expected = datagram.reply().fragments(8, PIECE);
    for (piece, expected) in delivered.reply().fragments(8, PIECE).iter().zip(&expected) {
        bed.send(Hook::TcEgress, piece).assert_passed(expected).assert_counted(Reason::Reply);
    }
}

fn an_inner_fragment_whose_first_was_not_seen_passes_byte_for_byte(tunnel: Tunnel) {
    let (bed, hint) = backends_node(tunnel);
    for (_, outer) in &tunnelled(tunnel, &large(tunnel), 2, 1, hint)[1..] {
        tunnel.case.arrives(&bed, outer).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn fragments_in_a_tunnel_do_not_affect_fragments_outside(tunnel: Tunnel) {
    let case = tunnel.case;
    let ((bed, hint), datagram) = (backends_node(tunnel), large(tunnel));
    let pieces = tunnelled(tunnel, &datagram, 2, 1, hint);
    case.arrives(&bed, &pieces[0].0).assert_counted(Reason::ServedLocal);
    case.arrives(&bed, &pieces[1].1).assert_untouched().assert_counted(Reason::NotOurs);

    let (bed, _) = backends_node(tunnel);
    case.arrives(&bed, &pieces[0].1).assert_counted(Reason::ServedDsr);
    is_held(case, &bed, &pieces[1].0);
}

fn a_strangers_first_fragment_does_not_turn_a_nodes_packet(tunnel: Tunnel) {
    let ((bed, hint), case) = (backends_node(tunnel), tunnel.case);
    let other = (case.vip().ip(), 81).into();
    let service = bed.service().udp().dsr().external(other).backend_local(case.pod(2)).install();
    let (datagram, to_other) = (large(tunnel), large(tunnel).with_destination(other));
    let (_, forged) = &tunnelled(tunnel, &to_other, STRANGER, 1, service.endpoints[0].hint)[0];
    let expected = datagram.clone().with_destination(case.pod(1)).fragments(7, PIECE);
    for ((_, outer), expected) in tunnelled(tunnel, &datagram, 2, 1, hint).iter().zip(&expected) {
        case.is_delivered(&bed, outer, expected, Reason::ServedDsr);
        case.arrives(&bed, forged).assert_dropped(Reason::NotPeer);
    }
}

fn a_strangers_first_fragment_affects_its_own_packet_only(tunnel: Tunnel) {
    let ((bed, hint), case) = (backends_node(tunnel), tunnel.case);
    let [strangers, nodes] = [STRANGER, 2].map(|from| tunnelled(tunnel, &large(tunnel), from, 1, hint));
    case.arrives(&bed, &strangers[0].1).assert_dropped(Reason::NotPeer);
    case.arrives(&bed, &nodes[1].1).assert_untouched().assert_counted(Reason::NotOurs);
    case.arrives(&bed, &strangers[1].1).assert_dropped(Reason::NotPeer);
}

fn fragments_of_a_tunnel_pass_byte_for_byte(tunnel: Tunnel) {
    let (bed, hint) = backends_node(tunnel);
    let mut whole = tunnel.around(&tunnel.case.udp().payload(vec![1; 600]), 2, 1, hint);
    let inner = whole.layers.iter().rposition(Layer::is_ip).unwrap();
    // The packet is cut behind the outer header, with the whole inner header in the first fragment.
    let bytes = whole.build();
    let (first, number) = match whole.outermost() {
        Layer::Ipv4(_) => (20, bytes[14 + 9]),
        _ => (40, bytes[14 + 6]),
    };
    let body = bytes.slice(14 + first..);
    whole.layers.truncate(if tunnel.encapsulation == Encapsulation::Fou { inner - 1 } else { inner });
    for (offset, more, part) in [(0, true, body.slice(..480)), (60, false, body.slice(480..))] {
        let mut piece = whole.clone().payload(part);
        if let Layer::Ipv4(ip) = piece.outermost_mut() {
            (ip.more_fragments, ip.fragment_offset, ip.protocol) = (more, offset, Some(number));
        } else {
            let header = Extension { protocol: Some(number), ..Extension::fragment(offset, more, 9) };
            piece = piece.layer(header);
        }
        tunnel.case.arrives(&bed, &piece).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn options_of_the_inner_header_travel_along(tunnel: Tunnel) {
    let case = tunnel.case;
    for frame in with_options(case) {
        let bed = tunnel.bed();
        let way = tunnel.way(&bed, 2);
        let service =
            bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
        let expected = tunnel.forwarded(&frame, 2, service.endpoints[0].hint);
        case.arrives(&bed, &frame).assert_sent(&expected).assert_counted(Reason::SentDsr);

        let (bed, hint) = backends_node(tunnel);
        let delivered = frame.clone().with_destination(case.pod(1));
        case.is_delivered(&bed, &tunnel.around(&frame, 2, 1, hint), &delivered, Reason::ServedDsr);
        bed.send(Hook::TcEgress, &delivered.reply()).assert_passed(&frame.reply());
    }
}

fn options_of_the_outer_header_pass_byte_for_byte(tunnel: Tunnel) {
    let (bed, hint) = backends_node(tunnel);
    let mut frame = tunnel.around(&tunnel.case.tcp(flag::ACK), 2, 1, hint);
    if let Layer::Ipv4(ip) = frame.outermost_mut() {
        ip.options = vec![148, 4, 0, 0].into();
    } else {
        frame.layers.insert(1, Extension::destination_options(1).into());
    }
    tunnel.case.arrives(&bed, &frame).assert_untouched();
}
