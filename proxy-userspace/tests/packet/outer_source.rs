//! Outer sources of a prefix, another one for each flow.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use millrace_lab::frame::{Frame, Layer, flag};
use millrace_lab::program::{Bed, BedBuilder, Endpoint};
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{Family, Tunnel, each_tunnel};
use crate::tunnelled_fragments::{PIECE, tunnelled};

each_tunnel! {
    each_flow_is_sent_from_an_address_of_its_own_and_keeps_it
    tunnels_from_the_prefix_are_accepted_and_tunnels_from_outside_it_are_not
    fragments_inside_tunnels_from_the_prefix_are_accepted
    without_a_prefix_only_nodes_are_peers
    a_node_that_accepts_the_prefix_may_send_from_its_own_address
    a_packet_from_the_prefix_that_is_not_for_this_node_passes_byte_for_byte
}

/// Neither prefix ends at a whole word of an address.
const PREFIX4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 16, 0), 20);
const PREFIX6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0xdb8, 0xf0, 0x40, 0, 0, 0, 0), 58);

fn builder() -> BedBuilder {
    Bed::builder().outer_source(PREFIX4, PREFIX6)
}

/// Returns addresses inside the prefix, including the first and the last, and addresses just
/// outside.
fn inside_and_outside(family: Family) -> [Vec<IpAddr>; 2] {
    let addresses = |v4: &[&str], v6: &[&str]| {
        let texts = if family == Family::V4 { v4 } else { v6 };
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let v6 = ["2001:db8:f0:40::", "2001:db8:f0:7f:ffff:ffff:ffff:ffff", "2001:db8:f0:55::1"];
    [
        addresses(&["100.64.16.0", "100.64.31.255", "100.64.22.1"], &v6),
        addresses(&["100.64.15.255", "100.64.32.0"], &["2001:db8:f0:3f:ffff::1", "2001:db8:f0:80::"]),
    ]
}

fn is_inside(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => PREFIX4.contains(&address),
        IpAddr::V6(address) => PREFIX6.contains(&address),
    }
}

fn outer_source(frame: &Frame) -> IpAddr {
    match frame.layers.first() {
        Some(Layer::Ipv4(ip)) => ip.source.into(),
        Some(Layer::Ipv6(ip)) => ip.source.into(),
        other => panic!("{other:?} is no IP header"),
    }
}

fn with_outer_source(mut frame: Frame, source: IpAddr) -> Frame {
    match (frame.layers.first_mut(), source) {
        (Some(Layer::Ipv4(ip)), IpAddr::V4(source)) => ip.source = source,
        (Some(Layer::Ipv6(ip)), IpAddr::V6(source)) => ip.source = source,
        (other, _) => panic!("{other:?} is no header for {source}"),
    }
    frame
}

/// Installs a Service with a pod of node 1 and one of node 3. All nodes are known.
fn install(tunnel: Tunnel, bed: &Bed) -> [Endpoint; 2] {
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE), (3, PEER_NODE)] {
        bed.peer(tunnel.outer.node(number), bits);
    }
    let (case, way) = (tunnel.case, tunnel.way(bed, 3));
    let service = bed.service().dsr().external(case.vip());
    let service = service.backend_local(case.pod(1)).backend_remote(case.remote_pod(3), way).install();
    [service.endpoints[0], service.endpoints[1]]
}

fn each_flow_is_sent_from_an_address_of_its_own_and_keeps_it(tunnel: Tunnel) {
    let bed = tunnel.load(builder().spread());
    let case = tunnel.case;
    let way = tunnel.way(&bed, 3);
    let service = bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(3), way).install();
    let hint = service.endpoints[0].hint;
    let mut sources = BTreeSet::new();
    for port in 40000..40100 {
        let mut of_flow = BTreeSet::new();
        for flags in [flag::SYN, flag::ACK] {
            let frame = case.tcp_from(port, flags);
            let outcome = case.arrives(&bed, &frame);
            let source = outer_source(&outcome.frame());
            assert!(is_inside(source), "{source}");
            // Everything else is equal, and the header's checksum is right.
            outcome.assert_sent(&with_outer_source(tunnel.forwarded(&frame, 3, hint), source));
            of_flow.insert(source);
        }
        assert_eq!(of_flow.len(), 1, "{of_flow:?}");
        sources.extend(of_flow);
    }
    assert!(sources.len() > 90, "{sources:?}");
}

fn tunnels_from_the_prefix_are_accepted_and_tunnels_from_outside_it_are_not(tunnel: Tunnel) {
    let [inside, outside] = inside_and_outside(tunnel.outer);
    for builder in [builder(), builder().spread()] {
        let bed = tunnel.load(builder);
        let [here, _] = install(tunnel, &bed);
        let syn = tunnel.case.tcp(flag::SYN);
        let directed = |source| with_outer_source(tunnel.around(&syn, 2, 1, here.hint), source);
        let delivered = syn.clone().with_destination(here.at);
        for source in &inside {
            tunnel.case.is_delivered(&bed, &directed(*source), &delivered, Reason::ServedDsr);
        }
        for source in &outside {
            let outcome = tunnel.case.arrives(&bed, &directed(*source));
            outcome.assert_dropped(Reason::NotPeer);
        }
        // The nodes' own addresses are still accepted.
        tunnel.case.is_delivered(&bed, &tunnel.around(&syn, 3, 1, here.hint), &delivered, Reason::ServedDsr);
    }
}

fn fragments_inside_tunnels_from_the_prefix_are_accepted(tunnel: Tunnel) {
    let bed = tunnel.load(builder());
    let [here, _] = install(tunnel, &bed);
    let [inside, _] = inside_and_outside(tunnel.outer);
    let syn = tunnel.case.tcp(flag::SYN).payload(vec![0xa5; 4000]);
    let expected = syn.clone().with_destination(here.at).fragments(7, PIECE);
    for ((_, outer), expected) in tunnelled(tunnel, &syn, 2, 1, here.hint).into_iter().zip(&expected) {
        let outer = with_outer_source(outer, inside[0]);
        tunnel.case.is_delivered(&bed, &outer, expected, Reason::ServedDsr);
    }
}

fn without_a_prefix_only_nodes_are_peers(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let [here, _] = install(tunnel, &bed);
    let [inside, _] = inside_and_outside(tunnel.outer);
    let zero = tunnel.outer.pick("0.0.0.0", "::");
    for source in inside.into_iter().chain([zero]) {
        let directed = tunnel.around(&tunnel.case.tcp(flag::SYN), 2, 1, here.hint);
        let outcome = tunnel.case.arrives(&bed, &with_outer_source(directed, source));
        outcome.assert_dropped(Reason::NotPeer);
    }
}

fn a_node_that_accepts_the_prefix_may_send_from_its_own_address(tunnel: Tunnel) {
    let bed = tunnel.load(builder());
    let way = tunnel.way(&bed, 3);
    let case = tunnel.case;
    let service = bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(3), way).install();
    let frame = case.tcp(flag::SYN);
    let sent = tunnel.forwarded(&frame, 3, service.endpoints[0].hint);
    case.arrives(&bed, &frame).assert_sent(&sent).assert_counted(Reason::SentDsr);
}

fn a_packet_from_the_prefix_that_is_not_for_this_node_passes_byte_for_byte(tunnel: Tunnel) {
    let bed = tunnel.load(builder());
    let [here, _] = install(tunnel, &bed);
    let [inside, _] = inside_and_outside(tunnel.outer);
    let syn = tunnel.case.tcp(flag::SYN);
    let onward = with_outer_source(tunnel.around(&syn, 2, 3, here.hint), inside[0]);
    let overlay = syn.with_destination(here.at);
    let overlay = with_outer_source(tunnel.around(&overlay, 2, 1, here.hint), inside[0]);
    for frame in [onward, overlay] {
        tunnel.case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}
