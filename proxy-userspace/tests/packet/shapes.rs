//! Packets of unusual shape for Services: options, extension headers, tags, padding. They are
//! handled or passed, never damaged.

use bytes::Bytes;
use millrace_lab::frame::{Extension, Frame, Layer, Vlan, flag};
use millrace_lab::program::{Bed, DEVICE, Hook, Ingress};
use proxy_common::config::DEFAULT_MARK;
use proxy_common::verdict::Reason;

use crate::case::{Case, Family, each_client, each_family, each_hook, each_ingress};
use crate::held_fragments::arrives_through;
use crate::snat::{Checked, Node, neighbour};

each_client! {
    ethernet_padding_stays_where_it_is
    every_hop_limit_reaches_a_local_backend_unchanged
    tcp_options_and_odd_payloads_are_carried_along
    the_traffic_class_is_kept
}

each_ingress! {
    a_tagged_frame_is_left_to_the_device_above
    options_travel_along_to_another_node_and_back
}

each_hook! {
    ipv4_options_of_every_length_are_handled
    ipv6_options_are_stepped_over_or_the_packet_is_passed
}

each_family! {
    a_frame_that_carries_our_mark_is_not_looked_up_again
    xdp_leaves_a_frame_with_a_priority_to_tc
}

fn bed_with_service(case: Case) -> Bed {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed
}

fn a_tagged_frame_is_left_to_the_device_above(case: Case) {
    let bed = bed_with_service(case);
    for tags in [&[Vlan::customer(7)][..], &[Vlan::service(5), Vlan::customer(7)]] {
        case.arrives(&bed, &case.tcp(flag::SYN).tagged(tags)).assert_untouched();
    }
}

fn ethernet_padding_stays_where_it_is(case: Case) {
    let bed = bed_with_service(case);
    let syn = Frame { trailer: Bytes::from_static(&[0xa5; 23]), ..case.tcp(flag::SYN) };
    case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), case.served());
}

fn every_hop_limit_reaches_a_local_backend_unchanged(case: Case) {
    let bed = bed_with_service(case);
    for limit in [1, 2, 255] {
        let syn = case.tcp(flag::SYN).with_hop_limit(limit);
        case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), case.served());
    }
}

fn tcp_options_and_odd_payloads_are_carried_along(case: Case) {
    let bed = bed_with_service(case);
    let mut frame = case.tcp(flag::ACK).payload(&b"odd"[..]);
    if let Some(Layer::Tcp(header)) = frame.layers.last_mut() {
        // Two NOPs and a time stamp.
        header.options = Bytes::from_static(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
    case.is_delivered(&bed, &frame, &frame.clone().with_destination(case.pod(1)), case.served());
}

fn the_traffic_class_is_kept(case: Case) {
    let bed = bed_with_service(case);
    let syn = case.tcp(flag::SYN).with_traffic_class(0xb9);
    case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), case.served());
}

fn ipv4_options_of_every_length_are_handled(hook: Hook) {
    let case = Case { hook, family: Family::V4 };
    let bed = bed_with_service(case);
    for words in 1..=10 {
        let mut syn = case.tcp(flag::SYN);
        if let Layer::Ipv4(ip) = syn.innermost_mut() {
            // Router alert, then no-operation.
            ip.options = [vec![148, 4, 0, 0], vec![1; 4 * (words - 1)]].concat().into();
        }
        case.is_delivered(&bed, &syn, &syn.clone().with_destination(case.pod(1)), case.served());
    }
}

fn ipv6_options_are_stepped_over_or_the_packet_is_passed(hook: Hook) {
    let case = Case { hook, family: Family::V6 };
    let bed = bed_with_service(case);
    let ip = || Frame::ip(case.client().ip(), case.vip().ip());
    let tcp = |frame: Frame| frame.tcp(40000, 80, flag::SYN).payload(&b"early data"[..]);
    for units in 1..=8 {
        let hop = Extension::hop_by_hop(units);
        let destination = Extension::destination_options(units);
        for frame in [
            tcp(ip().layer(hop.clone())),
            tcp(ip().layer(destination.clone())),
            tcp(ip().layer(hop).layer(destination)),
        ] {
            case.is_delivered(&bed, &frame, &frame.clone().with_destination(case.pod(1)), case.served());
        }
    }
    let long = (0..6).fold(ip(), |frame, _| frame.layer(Extension::destination_options(4)));
    case.arrives(&bed, &tcp(long)).assert_untouched().assert_counted(Reason::NotOurs);
}

fn a_frame_that_carries_our_mark_is_not_looked_up_again(family: Family) {
    let case = Case { hook: Hook::TcIngress, family };
    let bed = bed_with_service(case);
    let marked = Ingress { device: DEVICE, mark: DEFAULT_MARK | 1, ..Ingress::default() };
    let outcome = bed.run_with(Hook::TcIngress, &case.tcp(flag::SYN).build(), marked);
    outcome.assert_untouched();
    assert_eq!(outcome.run.mark, DEFAULT_MARK | 1, "bits that are not ours are kept");
}

/// Returns the client's packets with options, each with one more variant behind the IP header.
pub fn with_options(case: Case) -> Vec<Frame> {
    let frame = case.tcp(flag::ACK);
    if case.family == Family::V4 {
        let with = |bytes: usize| {
            let mut frame = frame.clone();
            if let Layer::Ipv4(ip) = frame.innermost_mut() {
                ip.options = [vec![148, 4, 0, 0], vec![1; bytes - 4]].concat().into();
            }
            frame
        };
        return [4, 8, 40].map(with).into();
    }
    let ip = || Frame::ip(case.client().ip(), case.vip().ip());
    let rest = |frame: Frame| frame.tcp(40000, 80, flag::ACK).payload(&b"GET /"[..]);
    let (hop, destination) = (Extension::hop_by_hop(1), Extension::destination_options(2));
    vec![
        rest(ip().layer(hop.clone())),
        rest(ip().layer(destination.clone())),
        rest(ip().layer(hop.clone()).layer(Extension::routing()).layer(destination)),
        rest(ip().layer(hop).layer(Extension::fragment(0, false, 1))),
    ]
}

fn options_travel_along_to_another_node_and_back(case: Case) {
    Node::new(case).in_its_network(|node| {
        for frame in with_options(case) {
            let frame = frame.with_source(neighbour(case));
            let reply = node.forwarded(&frame, node.forwards(&frame)).reply();
            let outcome = arrives_through(case, &node.bed, &reply);
            outcome.checked(&frame.reply());
        }
    });
}

/// The kernel takes the tag out of the frame before TC sees it.
fn xdp_leaves_a_frame_with_a_priority_to_tc(family: Family) {
    let case = Case { hook: Hook::XdpIngress, family };
    let bed = bed_with_service(case);
    let priority = Vlan { tag_protocol: 0x8100, control: 5 << 13 };
    let outcome = case.arrives(&bed, &case.tcp(flag::SYN).tagged(&[priority]));
    outcome.assert_untouched().assert_counted(Reason::NotOurs);
}
