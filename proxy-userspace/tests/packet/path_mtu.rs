//! Routers between nodes that have no room for what a director sends: their word, and how long it holds.

use std::net::IpAddr;

use bytes::Bytes;
use millrace_lab::frame::{DEVICE_MAC, Frame, Icmp, Layer, NEIGHBOUR_MAC, flag};
use millrace_lab::program::{Bed, Endpoint, Hook, resolved_way};
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF, PEER_WAY_SHIFT, Way};

use crate::case::{Family, Tunnel, each_tunnel};
use crate::network::{connect_to_nodes, in_an_empty_namespace};

each_tunnel! {
    a_routers_word_lowers_the_ways_mtu_even_if_it_quotes_little
    a_router_that_has_more_room_than_another_changes_nothing
    the_client_is_told_what_fits_inside_the_tunnel
    a_client_that_lets_its_packets_be_cut_is_told_nothing
    an_error_that_is_not_about_a_packet_of_ours_changes_nothing
    an_error_about_somebody_elses_tunnel_to_the_same_node_is_left_to_the_stack
    after_ten_minutes_the_route_is_asked_again
}

/// What the router has room for.
const NARROW: u16 = 1400;

/// A director, node 1, of a service with a backend on node 2.
struct Director {
    tunnel: Tunnel,
    bed: Bed,
    way: u32,
    backend: Endpoint,
}

impl Director {
    fn new(tunnel: Tunnel) -> Self {
        let (bed, case) = (tunnel.bed(), tunnel.case);
        let way = bed.way(resolved_way(tunnel.outer.node(1), tunnel.outer.node(2)));
        for (number, bits) in
            [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE | way << PEER_WAY_SHIFT), (3, PEER_NODE)]
        {
            bed.peer(tunnel.outer.node(number), bits);
        }
        let service =
            bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
        bed.service().udp().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
        Self { tunnel, bed, way, backend: service.endpoints[0] }
    }

    fn mtu(&self) -> u16 {
        self.bed.current_way(self.way).mtu
    }

    /// A client's packet as it leaves.
    fn sent(&self, frame: &Frame) -> Bytes {
        let sent = self.tunnel.forwarded(frame, 2, self.backend.hint).build();
        sent.slice(14..)
    }

    /// What `size` bytes of inner packet do.
    #[track_caller]
    fn is_refused_above(&self, fits: usize) {
        let case = self.tunnel.case;
        case.arrives(&self.bed, &large(self.tunnel, fits)).assert_counted(Reason::SentDsr);
        let refused = large(self.tunnel, fits + 1);
        let (kind, code) = if case.family == Family::V4 { (3, 4) } else { (2, 0) };
        let rest = u32::try_from(fits).unwrap().to_be_bytes();
        let error = refused.icmp_error(case.vip().ip(), Icmp { kind, code, rest });
        case.arrives(&self.bed, &refused).assert_sent(&error).assert_counted(Reason::TooBig);
    }
}

/// A client's packet of so many bytes, which must not be cut.
fn large(tunnel: Tunnel, length: usize) -> Frame {
    large_from(tunnel, tunnel.case.client().ip(), length)
}

fn large_from(tunnel: Tunnel, client: IpAddr, length: usize) -> Frame {
    let frame = tunnel.case.tcp(flag::ACK).with_source((client, 40000).into());
    let headers = frame.clone().payload(Vec::new()).build().len() - 14;
    let mut frame = frame.payload(vec![0xa5; length - headers]);
    if let Layer::Ipv4(ip) = frame.innermost_mut() {
        ip.dont_fragment = true;
    }
    frame
}

/// What a router says of a packet, as it arrives here.
fn about(tunnel: Tunnel, packet: &Bytes, quoted: usize, mtu: u16) -> Frame {
    let (kind, code) = if tunnel.outer == Family::V4 { (3, 4) } else { (2, 0) };
    message(tunnel, packet.slice(..quoted), Icmp { kind, code, rest: u32::from(mtu).to_be_bytes() })
}

fn message(tunnel: Tunnel, quote: Bytes, icmp: Icmp) -> Frame {
    let router = tunnel.outer.pick("198.18.0.1", "2001:db8:18::1");
    let frame = Frame::ip(router, tunnel.outer.node(1)).layer(icmp).payload(quote);
    frame.with_macs(NEIGHBOUR_MAC, DEVICE_MAC)
}

/// Bytes of a quote that ends eight bytes behind the outer IP header.
fn short(tunnel: Tunnel) -> usize {
    if tunnel.outer == Family::V4 { 28 } else { 48 }
}

#[track_caller]
fn is_noted(tunnel: Tunnel, director: &Director, error: &Frame) {
    tunnel.case.arrives(&director.bed, error).assert_untouched().assert_counted(Reason::IcmpError);
}

fn a_routers_word_lowers_the_ways_mtu_even_if_it_quotes_little(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let (frame, overhead) = (large(tunnel, 1450), usize::from(tunnel.overhead()));
    director.is_refused_above(1500 - overhead);
    is_noted(tunnel, &director, &about(tunnel, &director.sent(&frame), short(tunnel), NARROW));
    assert_eq!(director.mtu(), NARROW);
    director.is_refused_above(usize::from(NARROW) - overhead);
}

fn a_router_that_has_more_room_than_another_changes_nothing(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let sent = director.sent(&large(tunnel, 1450));
    for (mtu, expected) in [(NARROW, NARROW), (NARROW + 20, NARROW), (NARROW - 20, NARROW - 20)] {
        is_noted(tunnel, &director, &about(tunnel, &sent, short(tunnel), mtu));
        assert_eq!(director.mtu(), expected);
    }
}

fn the_client_is_told_what_fits_inside_the_tunnel(tunnel: Tunnel) {
    let case = tunnel.case;
    let director = std::sync::Mutex::new(Director::new(tunnel));
    in_an_empty_namespace(|| {
        connect_to_nodes(case.family.node(1));
        let director = director.into_inner().unwrap();
        director.bed.beat();
        let frame = large_from(tunnel, case.family.node(99), 1450);
        let sent = director.sent(&frame);
        for quoted in [sent.len(), short(tunnel) + 60, short(tunnel) + 8 + 40] {
            let outcome = case.arrives(&director.bed, &about(tunnel, &sent, quoted, NARROW));
            assert_eq!(director.mtu(), NARROW);
            if case.hook == Hook::XdpIngress {
                // The client's neighbour entry is the stack's to find.
                outcome.assert_untouched().assert_counted(Reason::HandedToTc);
                continue;
            }
            let (kind, code) = if case.family == Family::V4 { (3, 4) } else { (2, 0) };
            let rest = u32::from(NARROW - tunnel.overhead()).to_be_bytes();
            // The client's packet as it was one hop on.
            let error =
                frame.clone().with_hop_limit(63).icmp_error(case.vip().ip(), Icmp { kind, code, rest });
            let (source, destination) = (outcome.frame().source_mac, outcome.frame().destination_mac);
            outcome.assert_sent(&error.with_macs(source, destination)).assert_counted(Reason::IcmpError);
        }
    });
}

fn a_client_that_lets_its_packets_be_cut_is_told_nothing(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let mut frame = large(tunnel, 1450);
    let Layer::Ipv4(ip) = frame.innermost_mut() else {
        // Nobody but the sender cuts IPv6 packets.
        return;
    };
    ip.dont_fragment = false;
    let sent = director.sent(&frame);
    is_noted(tunnel, &director, &about(tunnel, &sent, sent.len(), NARROW));
    assert_eq!(director.mtu(), NARROW);
}

fn an_error_that_is_not_about_a_packet_of_ours_changes_nothing(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let frame = large(tunnel, 1450);
    let around = |from, to| {
        let packet = tunnel.around(&frame, from, to, director.backend.hint).build().slice(14..);
        about(tunnel, &packet, short(tunnel), NARROW)
    };
    let sent = director.sent(&frame);
    let length = u16::try_from(sent.len()).unwrap();
    let least = if tunnel.outer == Family::V4 { 576 } else { 1280 };
    let (kind, code) = if tunnel.outer == Family::V4 { (3, 4) } else { (2, 0) };
    let kinds = [(kind, code + 1), (kind + 1, code)].map(|(kind, code)| {
        let rest = u32::from(NARROW).to_be_bytes();
        message(tunnel, sent.slice(..short(tunnel)), Icmp { kind, code, rest })
    });
    let errors = [
        // Another node's packet, one to a node without a way, one to no node.
        around(2, 3),
        around(1, 3),
        around(1, 9),
        // It would have fitted; no link has so little room; there are only the bytes before those that say what it is.
        about(tunnel, &sent, short(tunnel), length),
        about(tunnel, &sent, short(tunnel), least - 1),
        about(tunnel, &sent, 0, NARROW),
        about(tunnel, &sent, short(tunnel) - 12, NARROW),
    ];
    for error in errors.iter().chain(&kinds) {
        tunnel.case.arrives(&director.bed, error).assert_untouched().assert_counted(Reason::NotOurs);
        assert_eq!(director.mtu(), 1500);
    }
}

fn an_error_about_somebody_elses_tunnel_to_the_same_node_is_left_to_the_stack(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let case = tunnel.case;
    case.arrives(&director.bed, &case.udp()).assert_counted(Reason::SentDsr);
    let foreign = large(tunnel, 1450).with_destination((case.vip().ip(), 81).into());
    let sent = director.sent(&foreign);
    let error = about(tunnel, &sent, sent.len(), NARROW);
    case.arrives(&director.bed, &error).assert_untouched().assert_counted(Reason::NotOurs);
    assert_eq!(director.mtu(), 1500);
}

fn after_ten_minutes_the_route_is_asked_again(tunnel: Tunnel) {
    let director = std::sync::Mutex::new(Director::new(tunnel));
    in_an_empty_namespace(|| {
        connect_to_nodes(tunnel.outer.node(1));
        let director = director.into_inner().unwrap();
        director.bed.beat();
        let frame = large(tunnel, 1450);
        is_noted(tunnel, &director, &about(tunnel, &director.sent(&frame), short(tunnel), NARROW));
        tunnel.case.arrives(&director.bed, &frame).assert_counted(Reason::TooBig);
        director.bed.forget_narrowness(director.way);
        tunnel.case.arrives(&director.bed, &frame).assert_counted(Reason::SentDsr);
        assert_eq!(director.mtu(), 1500);
        director.is_refused_above(1500 - usize::from(tunnel.overhead()));
        // It is forgotten that there was a router: nobody asks again because of it.
        director.bed.set::<Way>(
            "WAYS",
            director.way,
            Way { mtu: NARROW, ..director.bed.current_way(director.way) },
        );
        director.is_refused_above(usize::from(NARROW) - usize::from(tunnel.overhead()));
    });
}
