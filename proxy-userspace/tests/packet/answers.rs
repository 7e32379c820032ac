//! ICMP answers to packets that can't be served, if they are allowed and not too many.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use millrace_lab::frame::{Extension, Frame, Icmp, Layer, flag};
use millrace_lab::program::{Bed, Hook, Verdict, resolved_way};
use proxy_common::verdict::Reason;
use proxy_common::way::Way;

use crate::case::{Case, Family, Tunnel, VIP_PORT, each_client, each_hook, each_ingress, each_tunnel};

each_client! {
    a_service_without_any_endpoint_is_refused
    a_direct_return_service_without_any_endpoint_is_refused
    policy_local_without_any_endpoint_is_refused
    a_refusal_quotes_eight_bytes_of_the_transport_however_long_the_packet_is
    padding_is_not_quoted
    the_refusal_is_never_larger_than_a_packet_with_payload
    a_broadcast_or_multicast_frame_is_not_answered
    a_source_that_is_no_host_is_not_answered
    all_sources_together_are_answered_so_often_and_no_more
    each_answer_takes_a_token_of_its_source_prefix
}

each_ingress! {
    a_source_prefix_is_answered_so_often_and_no_more
}

each_hook! {
    ipv4_options_are_quoted
    ipv6_extension_headers_are_quoted_as_far_as_there_is_room
}

each_tunnel! {
    a_used_up_hop_limit_is_reported_from_the_nodes_address
    a_packet_too_large_for_its_way_is_reported_with_the_size_that_fits
    a_flood_of_refusals_does_not_prevent_errors_with_the_size_that_fits
}

impl Case {
    /// Returns a bed with a Service without endpoints, for TCP and UDP.
    fn bed_without_endpoints(self) -> Bed {
        let bed = Bed::new();
        bed.service().external(self.vip()).install();
        bed.service().udp().external(self.vip()).install();
        bed
    }

    /// Returns the error that tells the sender of `frame` that nothing serves the port.
    fn refusal(self, frame: &Frame) -> Frame {
        frame.icmp_error(frame.destination().ip(), self.family.port_unreachable())
    }

    #[track_caller]
    fn is_refused(self, bed: &Bed, frame: &Frame) {
        let outcome = self.arrives(bed, frame);
        outcome.assert_sent(&self.refusal(frame)).assert_counted(Reason::NoEndpoint);
        let same_device = if self.hook == Hook::XdpIngress { Verdict::Transmit } else { Verdict::Redirect };
        assert_eq!(outcome.verdict, same_device, "{outcome}");
    }
}

fn a_service_without_any_endpoint_is_refused(case: Case) {
    let bed = case.bed_without_endpoints();
    for frame in [case.tcp(flag::SYN), case.tcp(flag::ACK), case.udp()] {
        case.is_refused(&bed, &frame);
    }
}

fn a_direct_return_service_without_any_endpoint_is_refused(case: Case) {
    let bed = Bed::new();
    bed.service().dsr().external(case.vip()).install();
    bed.service().dsr().udp().external(case.vip()).install();
    case.is_refused(&bed, &case.tcp(flag::SYN));
    case.is_refused(&bed, &case.udp());
}

fn policy_local_without_any_endpoint_is_refused(case: Case) {
    let bed = Bed::new();
    bed.service().policy_local().external(case.vip()).install();
    case.is_refused(&bed, &case.tcp(flag::SYN));
}

fn a_refusal_quotes_eight_bytes_of_the_transport_however_long_the_packet_is(case: Case) {
    let bed = case.bed_without_endpoints();
    for length in [0, 1, 20, 27, 28, 29, 48, 49, 200, 1400] {
        case.is_refused(&bed, &case.tcp(flag::ACK).payload(vec![0xa5; length]));
        case.is_refused(&bed, &case.udp().payload(vec![0x5a; length]));
    }
}

fn padding_is_not_quoted(case: Case) {
    let bed = case.bed_without_endpoints();
    for length in [1, 6, 64] {
        let trailer = Bytes::from(vec![0xff; length]);
        case.is_refused(&bed, &Frame { trailer, ..case.tcp(flag::SYN) });
    }
}

fn the_refusal_is_never_larger_than_a_packet_with_payload(case: Case) {
    let bed = case.bed_without_endpoints();
    let smallest = if case.family == Family::V4 { 28 } else { 48 };
    let datagram = case.udp().payload(vec![0; smallest]);
    let refusal = case.arrives(&bed, &datagram).run.frame;
    assert_eq!(refusal.len(), datagram.build().len());
}

fn a_broadcast_or_multicast_frame_is_not_answered(case: Case) {
    let bed = case.bed_without_endpoints();
    for mac in [[0xff; 6], [0x01, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        let frame = Frame { destination_mac: mac, ..case.udp() };
        case.arrives(&bed, &frame).assert_dropped(Reason::NoEndpoint);
    }
}

fn a_source_that_is_no_host_is_not_answered(case: Case) {
    let bed = case.bed_without_endpoints();
    let sources: &[&str] = match case.family {
        Family::V4 => &["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255"],
        Family::V6 => &["::", "::1", "ff02::1", "ff0e::1:2"],
    };
    for source in sources {
        let source = SocketAddr::new(source.parse().unwrap(), 7);
        let frame = case.udp().with_source(source);
        case.arrives(&bed, &frame).assert_dropped(Reason::NoEndpoint);
    }
}

fn a_source_prefix_is_answered_so_often_and_no_more(case: Case) {
    let bed = case.bed_without_endpoints();
    case.exhaust_icmp(&bed);
    case.arrives(&bed, &case.udp()).assert_dropped(Reason::NoEndpoint);
    // The same prefix, and another one.
    let (neighbour, stranger) = match case.family {
        Family::V4 => ("198.51.100.200", "198.51.101.10"),
        Family::V6 => ("2001:db8:51::ffff:1", "2001:db8:51:1::10"),
    };
    let from = |source: &str| case.udp().with_source(SocketAddr::new(source.parse().unwrap(), 7));
    case.arrives(&bed, &from(neighbour)).assert_dropped(Reason::NoEndpoint);
    case.is_refused(&bed, &from(stranger));
}

fn all_sources_together_are_answered_so_often_and_no_more(case: Case) {
    let bed = case.bed_without_endpoints();
    bed.exhaust_all_icmp();
    case.arrives(&bed, &case.udp()).assert_dropped(Reason::NoEndpoint);
    assert_eq!(bed.icmp_buckets(), [], "a message that was not sent takes no token");
}

fn each_answer_takes_a_token_of_its_source_prefix(case: Case) {
    let bed = case.bed_without_endpoints();
    let full_at = || match bed.icmp_buckets()[..] {
        [(_, full_at)] => full_at,
        ref other => panic!("one prefix, but {other:?}"),
    };
    case.is_refused(&bed, &case.udp());
    let first = full_at();
    case.is_refused(&bed, &case.udp());
    assert!(full_at() >= first + 10_000_000, "{first} and {}", full_at());
}

fn ipv4_options_are_quoted(hook: Hook) {
    let case = Case { hook, family: Family::V4 };
    let bed = case.bed_without_endpoints();
    for words in 1..=10 {
        for mut frame in [case.tcp(flag::SYN), case.udp()] {
            if let Layer::Ipv4(ip) = frame.innermost_mut() {
                ip.options = [vec![148, 4, 0, 0], vec![1; 4 * (words - 1)]].concat().into();
            }
            case.is_refused(&bed, &frame);
        }
    }
}

fn ipv6_extension_headers_are_quoted_as_far_as_there_is_room(hook: Hook) {
    let case = Case { hook, family: Family::V6 };
    let bed = case.bed_without_endpoints();
    let with = |units| {
        let ip = Frame::ip(case.client().ip(), case.vip().ip()).layer(Extension::destination_options(units));
        ip.udp(40000, VIP_PORT).payload(&b"a question"[..])
    };
    for units in 1..=6 {
        case.is_refused(&bed, &with(units));
    }
    case.arrives(&bed, &with(7)).assert_dropped(Reason::NoEndpoint);
}

/// Returns a bed with a DSR Service behind a way of this MTU.
fn service_behind(tunnel: Tunnel, mtu: u16) -> Bed {
    let (bed, case) = (Bed::new(), tunnel.case);
    let way = bed.way(Way { mtu, ..resolved_way(tunnel.outer.node(1), tunnel.outer.node(2)) });
    bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
    bed.service().udp().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
    bed
}

fn a_used_up_hop_limit_is_reported_from_the_nodes_address(tunnel: Tunnel) {
    let (bed, case) = (service_behind(tunnel, 1500), tunnel.case);
    // A way of the other family has no address of this one.
    let node: IpAddr = if tunnel.outer == case.family { tunnel.outer.node(1) } else { case.vip().ip() };
    let kind = if case.family == Family::V4 { 11 } else { 3 };
    for limit in [0, 1] {
        for frame in [case.tcp(flag::SYN), case.tcp(flag::ACK), case.udp()] {
            let frame = frame.with_hop_limit(limit);
            let error = frame.icmp_error(node, Icmp { kind, code: 0, rest: [0; 4] });
            case.arrives(&bed, &frame).assert_sent(&error).assert_counted(Reason::HopLimit);
        }
    }
}

/// Returns a packet of `length` bytes for a way of 1400 bytes, and the error that its sender would
/// get.
fn large(tunnel: Tunnel, frame: Frame, length: usize) -> (Frame, Frame) {
    let headers = frame.clone().payload(Vec::new()).build().len() - 14;
    let mut frame = frame.payload(vec![0xa5; length - headers]);
    if let Layer::Ipv4(ip) = frame.innermost_mut() {
        ip.dont_fragment = true;
    }
    let fits: u32 = if tunnel.outer == Family::V4 { 1380 } else { 1360 };
    let error = frame.icmp_error(tunnel.case.vip().ip(), tunnel.case.family.too_big(fits));
    (frame, error)
}

fn a_packet_too_large_for_its_way_is_reported_with_the_size_that_fits(tunnel: Tunnel) {
    let (bed, case) = (service_behind(tunnel, 1400), tunnel.case);
    let fits = if tunnel.outer == Family::V4 { 1380 } else { 1360 };
    for frame in [case.tcp(flag::ACK), case.udp()] {
        for length in [fits + 1, 1400, 1500] {
            let (frame, error) = large(tunnel, frame.clone(), length);
            case.arrives(&bed, &frame).assert_sent(&error).assert_counted(Reason::TooBig);
        }
        case.arrives(&bed, &large(tunnel, frame, fits).0).assert_counted(Reason::SentDsr);
    }
}

fn a_flood_of_refusals_does_not_prevent_errors_with_the_size_that_fits(tunnel: Tunnel) {
    let (bed, case) = (service_behind(tunnel, 1400), tunnel.case);
    bed.exhaust_refusals(case.client().ip());
    // This is a refusal, and its bucket is empty.
    case.arrives(&bed, &case.udp().with_hop_limit(1)).assert_dropped(Reason::HopLimit);
    let (frame, error) = large(tunnel, case.tcp(flag::ACK), 1500);
    case.arrives(&bed, &frame).assert_sent(&error).assert_counted(Reason::TooBig);
}
