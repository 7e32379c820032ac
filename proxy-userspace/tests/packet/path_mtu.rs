//! Routers between nodes with too narrow a link for a director's packets: their errors, and how
//! long these count.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use millrace_lab::frame::{DEVICE_MAC, Frame, Icmp, Layer, NEIGHBOUR_MAC, flag};
use millrace_lab::program::{Bed, Endpoint, Hook, Outcome, known_hop, resolved_way};
use proxy_common::verdict::Reason;
use proxy_common::way::{FOU_PORT, Narrowing, PEER_NODE, PEER_SELF, PEER_WAY_SHIFT, Way};

use crate::case::{Family, Tunnel, each_tunnel};
use crate::network::{connect_to_nodes, in_an_empty_namespace};

each_tunnel! {
    a_routers_error_lowers_the_ways_mtu_even_with_a_short_quote
    a_router_with_more_room_than_another_changes_nothing
    the_client_gets_an_error_with_the_size_that_fits_inside_the_tunnel
    the_client_gets_an_error_about_a_fragment
    a_client_that_allows_fragmentation_gets_no_error
    an_error_that_is_not_about_a_packet_of_ours_changes_nothing
    an_error_about_a_foreign_tunnel_to_the_same_node_is_left_to_the_stack
    a_quote_that_this_node_can_not_have_sent_changes_nothing
    a_router_that_quotes_too_little_is_believed_for_a_minute
    a_short_quote_that_is_not_shaped_as_what_this_node_sends_changes_nothing
    packets_that_fit_every_ipv6_link_are_sent_despite_any_router
    a_client_learns_of_a_router_with_less_room_than_the_way_keeps
    an_error_about_a_packet_sent_on_for_another_nodes_port_is_believed
    an_error_that_quotes_the_port_of_tunnels_is_the_connections_if_there_is_one
    after_ten_minutes_the_way_is_as_wide_as_before
    an_mtu_that_the_agent_writes_meanwhile_outlasts_the_ten_minutes
}

/// The MTU behind the router.
const NARROW: u16 = 1400;

/// Node 1 as director of a Service with a backend on node 2.
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

    /// Returns a client's packet as it leaves.
    fn sent(&self, frame: &Frame) -> Bytes {
        let sent = self.tunnel.forwarded(frame, 2, self.backend.hint).build();
        sent.slice(14..)
    }

    /// Checks that inner packets of `fits` bytes pass, and that larger ones are refused.
    #[track_caller]
    fn is_refused_above(&self, fits: usize) {
        let case = self.tunnel.case;
        case.arrives(&self.bed, &large(self.tunnel, fits)).assert_counted(Reason::SentDsr);
        let refused = large(self.tunnel, fits + 1);
        let error = refused.icmp_error(case.vip().ip(), case.family.too_big(fits));
        case.arrives(&self.bed, &refused).assert_sent(&error).assert_counted(Reason::TooBig);
    }
}

/// Returns a client's packet of `length` bytes with DF.
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

/// Returns a router's error about a packet, as it arrives here.
fn about(tunnel: Tunnel, packet: &Bytes, quoted: usize, mtu: u16) -> Frame {
    message(tunnel, packet.slice(..quoted), tunnel.outer.too_big(mtu))
}

fn message(tunnel: Tunnel, quote: Bytes, icmp: Icmp) -> Frame {
    let router = tunnel.outer.pick("198.18.0.1", "2001:db8:18::1");
    let frame = Frame::ip(router, tunnel.outer.node(1)).layer(icmp).payload(quote);
    frame.with_macs(NEIGHBOUR_MAC, DEVICE_MAC)
}

/// Returns the bytes of a quote that ends eight bytes behind the outer IP header.
fn short(tunnel: Tunnel) -> usize {
    if tunnel.outer == Family::V4 { 28 } else { 48 }
}

/// The least that a router is believed with: those of IPv6 quote more than the outer header.
fn least(tunnel: Tunnel, packet: &Bytes) -> usize {
    if tunnel.outer == Family::V4 { short(tunnel) } else { packet.len() }
}

/// A router names an MTU, and quotes no more than it must.
#[track_caller]
fn says(tunnel: Tunnel, director: &Director, sent: &Bytes, mtu: u16) {
    let error = about(tunnel, sent, least(tunnel, sent), mtu);
    if tunnel.outer == Family::V4 {
        is_noted(tunnel, director, &error);
    } else {
        tunnel.case.arrives(&director.bed, &error);
    }
}

#[track_caller]
fn is_noted(tunnel: Tunnel, director: &Director, error: &Frame) {
    tunnel.case.arrives(&director.bed, error).assert_untouched().assert_counted(Reason::IcmpError);
}

fn a_routers_error_lowers_the_ways_mtu_even_with_a_short_quote(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let (frame, overhead) = (large(tunnel, 1450), usize::from(tunnel.overhead()));
    director.is_refused_above(1500 - overhead);
    says(tunnel, &director, &director.sent(&frame), NARROW);
    assert_eq!(director.mtu(), NARROW);
    director.is_refused_above(usize::from(NARROW) - overhead);
}

fn a_router_with_more_room_than_another_changes_nothing(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let sent = director.sent(&large(tunnel, 1450));
    for (mtu, expected) in [(NARROW, NARROW), (NARROW + 20, NARROW), (NARROW - 20, NARROW - 20)] {
        says(tunnel, &director, &sent, mtu);
        assert_eq!(director.mtu(), expected);
    }
}

/// Runs a check with a route to the clients, so that the director itself sends them errors.
fn with_clients_at_hand(tunnel: Tunnel, check: impl FnOnce(&Director) + Send) {
    let director = std::sync::Mutex::new(Director::new(tunnel));
    in_an_empty_namespace(|| {
        connect_to_nodes(tunnel.case.family.node(1));
        let director = director.into_inner().unwrap();
        director.bed.beat();
        check(&director);
    });
}

/// Checks that the client gets an error, over whichever device leads to it.
#[track_caller]
fn is_told(outcome: &Outcome, error: Frame) {
    let (source, destination) = (outcome.frame().source_mac, outcome.frame().destination_mac);
    outcome.assert_sent(&error.with_macs(source, destination)).assert_counted(Reason::IcmpError);
}

fn the_client_gets_an_error_with_the_size_that_fits_inside_the_tunnel(tunnel: Tunnel) {
    let case = tunnel.case;
    with_clients_at_hand(tunnel, |director| {
        let frame = large_from(tunnel, case.family.node(99), 1450);
        let sent = director.sent(&frame);
        for quoted in [sent.len(), short(tunnel) + 60, short(tunnel) + 8 + 40] {
            let outcome = case.arrives(&director.bed, &about(tunnel, &sent, quoted, NARROW));
            assert_eq!(director.mtu(), NARROW);
            if case.hook == Hook::XdpIngress {
                // Only the stack can find the client's neighbour entry.
                outcome.assert_untouched().assert_counted(Reason::HandedToTc);
                continue;
            }
            // The client's packet as it was one hop later.
            let error = frame
                .clone()
                .with_hop_limit(63)
                .icmp_error(case.vip().ip(), case.family.too_big(NARROW - tunnel.overhead()));
            is_told(&outcome, error);
        }
    });
}

/// Only the sender of an IPv6 packet may cut it, so it gets an error, too.
fn the_client_gets_an_error_about_a_fragment(tunnel: Tunnel) {
    let case = tunnel.case;
    with_clients_at_hand(tunnel, |director| {
        let whole = large_from(tunnel, case.family.node(99), 3000);
        let fragment = whole.fragments(7, 1400).remove(0);
        let sent = director.sent(&fragment);
        let outcome = case.arrives(&director.bed, &about(tunnel, &sent, sent.len(), NARROW));
        assert_eq!(director.mtu(), NARROW);
        if case.hook == Hook::XdpIngress {
            outcome.assert_untouched().assert_counted(Reason::HandedToTc);
            return;
        }
        let headers = if case.family == Family::V4 { 20 } else { 8 };
        let fragment = fragment.with_hop_limit(63);
        let error = fragment.icmp_error_quoting(
            case.vip().ip(),
            case.family.too_big(NARROW - tunnel.overhead()),
            headers + 8,
        );
        is_told(&outcome, error);
    });
}

fn a_client_that_allows_fragmentation_gets_no_error(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let mut frame = large(tunnel, 1450);
    let Layer::Ipv4(ip) = frame.innermost_mut() else {
        // Only the sender cuts IPv6 packets.
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
        about(tunnel, &packet, least(tunnel, &packet), NARROW)
    };
    let sent = director.sent(&frame);
    let length = u16::try_from(sent.len()).unwrap();
    let smallest = if tunnel.outer == Family::V4 { 576 } else { 1280 };
    let Icmp { kind, code, rest } = tunnel.outer.too_big(NARROW);
    let kinds = [(kind, code + 1), (kind + 1, code)]
        .map(|(kind, code)| message(tunnel, sent.slice(..least(tunnel, &sent)), Icmp { kind, code, rest }));
    let errors = [
        // Packets of another node, to a node without a way, and to no node.
        around(2, 3),
        around(1, 3),
        around(1, 9),
        // The packet would have fitted. No link is so narrow. The quote ends before the bytes that
        // identify the packet.
        about(tunnel, &sent, least(tunnel, &sent), length),
        about(tunnel, &sent, least(tunnel, &sent), smallest - 1),
        about(tunnel, &sent, 0, NARROW),
        about(tunnel, &sent, short(tunnel) - 12, NARROW),
    ];
    for error in errors.iter().chain(&kinds) {
        tunnel.case.arrives(&director.bed, error).assert_untouched().assert_counted(Reason::NotOurs);
        assert_eq!(director.mtu(), 1500);
    }
}

fn an_error_about_a_foreign_tunnel_to_the_same_node_is_left_to_the_stack(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let case = tunnel.case;
    case.arrives(&director.bed, &case.udp()).assert_counted(Reason::SentDsr);
    let foreign = large(tunnel, 1450).with_destination((case.vip().ip(), 81).into());
    let sent = director.sent(&foreign);
    let error = about(tunnel, &sent, sent.len(), NARROW);
    case.arrives(&director.bed, &error).assert_untouched().assert_counted(Reason::NotOurs);
    assert_eq!(director.mtu(), 1500);
}

fn a_short_quote_that_is_not_shaped_as_what_this_node_sends_changes_nothing(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let frame = large(tunnel, 1450);
    let with_hint = |hint| tunnel.around(&frame, 1, 2, hint);
    let mut quotes = vec![with_hint(0), with_hint(0x8000 | director.backend.hint)];
    let mut divisible = with_hint(director.backend.hint);
    if let Layer::Ipv4(ip) = divisible.outermost_mut() {
        ip.dont_fragment = false;
        quotes.push(divisible);
    }
    for quote in quotes {
        let error = about(tunnel, &quote.build().slice(14..), short(tunnel), NARROW);
        tunnel.case.arrives(&director.bed, &error).assert_untouched().assert_counted(Reason::NotOurs);
        assert_eq!(director.mtu(), 1500);
    }
    // A whole quote has to carry the hint of its own backend.
    for (hint, mtu) in [(0, 1500), (director.backend.hint, NARROW)] {
        let whole = with_hint(hint).build().slice(14..);
        tunnel.case.arrives(&director.bed, &about(tunnel, &whole, whole.len(), NARROW));
        assert_eq!(director.mtu(), mtu, "hint {hint}");
    }
}

fn a_quote_that_this_node_can_not_have_sent_changes_nothing(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let hint = director.backend.hint;
    let fits = 1500 - usize::from(tunnel.overhead());
    let too_large = tunnel.around(&large(tunnel, fits + 1), 1, 2, hint);
    let to_another_node = tunnel.around(&large(tunnel, fits), 1, 3, hint);
    let from_another_node = tunnel.around(&large(tunnel, fits), 3, 2, hint);
    for (what, quote) in
        [("size", too_large), ("destination", to_another_node), ("source", from_another_node)]
    {
        let quote = quote.build().slice(14..);
        for quoted in [short(tunnel), quote.len()] {
            let error = about(tunnel, &quote, quoted, NARROW);
            tunnel.case.arrives(&director.bed, &error).assert_untouched().assert_counted(Reason::NotOurs);
            assert_eq!(director.mtu(), 1500, "{what}, {quoted} bytes");
        }
    }
    says(tunnel, &director, &director.sent(&large(tunnel, fits)), NARROW);
    assert_eq!(director.mtu(), NARROW, "what it can have sent");
}

/// A forger of a short quote has to guess only a hint, so a short quote may do less harm than a
/// whole one. Routers of IPv6 never quote so little (RFC 4443, section 2.4).
fn a_router_that_quotes_too_little_is_believed_for_a_minute(tunnel: Tunnel) {
    if tunnel.outer == Family::V6 {
        let director = Director::new(tunnel);
        let sent = director.sent(&large(tunnel, 1450));
        let error = about(tunnel, &sent, short(tunnel), NARROW);
        tunnel.case.arrives(&director.bed, &error).assert_untouched().assert_counted(Reason::NotOurs);
        assert_eq!(director.mtu(), 1500);
        return;
    }
    let until = |quoted: fn(Tunnel, &Bytes) -> usize| {
        let director = Director::new(tunnel);
        let sent = director.sent(&large(tunnel, 1450));
        tunnel.case.arrives(&director.bed, &about(tunnel, &sent, quoted(tunnel, &sent), NARROW));
        assert_eq!(director.mtu(), NARROW);
        Narrowing(director.bed.get::<u64>("NARROWED", director.way)).until()
    };
    let doubted = until(|tunnel, _| short(tunnel));
    let believed = until(|_, sent| sent.len());
    let longer = believed - doubted;
    // Some seconds may pass between the two.
    assert!((540..600).contains(&longer), "{longer} seconds longer");
}

fn packets_that_fit_every_ipv6_link_are_sent_despite_any_router(tunnel: Tunnel) {
    for mtu in [1280, 1300] {
        let director = Director::new(tunnel);
        let sent = director.sent(&large(tunnel, 1450));
        says(tunnel, &director, &sent, mtu);
        assert_eq!(director.mtu(), mtu.max(1280 + tunnel.overhead()));
        tunnel.case.arrives(&director.bed, &large(tunnel, 1280)).assert_counted(Reason::SentDsr);
        director.is_refused_above(usize::from(director.mtu() - tunnel.overhead()));
    }
    // A way with a narrower route. A client of IPv6 gets a size that it believes.
    let director = Director::new(tunnel);
    let way = Way { mtu: 1280, ..director.bed.current_way(director.way) };
    director.bed.set::<Way>("WAYS", director.way, way);
    let refused = large(tunnel, 1400);
    let told = if tunnel.case.family == Family::V4 { 1280 - tunnel.overhead() } else { 1280 };
    let error = refused.icmp_error(tunnel.case.vip().ip(), tunnel.case.family.too_big(told));
    tunnel.case.arrives(&director.bed, &refused).assert_sent(&error).assert_counted(Reason::TooBig);
}

fn a_client_learns_of_a_router_with_less_room_than_the_way_keeps(tunnel: Tunnel) {
    let case = tunnel.case;
    if case.hook == Hook::XdpIngress {
        // Only the stack can find the client's neighbour entry.
        return;
    }
    with_clients_at_hand(tunnel, |director| {
        let tells = |length, told: u32| {
            let frame = large_from(tunnel, case.family.node(99), length);
            let sent = director.sent(&frame);
            let outcome = case.arrives(&director.bed, &about(tunnel, &sent, sent.len(), 1280));
            assert_eq!(director.mtu(), 1280 + tunnel.overhead());
            let error = frame.with_hop_limit(63).icmp_error(case.vip().ip(), case.family.too_big(told));
            is_told(&outcome, error);
        };
        let inside = u32::from(1280 - tunnel.overhead());
        if case.family == Family::V4 {
            tells(1450, inside);
            tells(1270, inside);
        } else {
            tells(1450, 1280);
            // The sender can't make this packet smaller.
            let sent = director.sent(&large_from(tunnel, case.family.node(99), 1280));
            is_noted(tunnel, director, &about(tunnel, &sent, sent.len(), 1280));
        }
    });
}

fn an_error_about_a_packet_sent_on_for_another_nodes_port_is_believed(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let case = tunnel.case;
    director.bed.peer(case.family.node(3), PEER_NODE);
    let own = SocketAddr::new(case.family.node(1), 30080);
    let service = director.bed.service().dsr().node_ports().external(own);
    service.backend_remote(case.remote_pod(1), director.way).install();
    let of_others = large(tunnel, 1450).with_destination((case.family.node(3), own.port()).into());
    let sent = tunnel.around(&of_others, 1, 2, director.backend.hint | 1 << 14).build().slice(14..);
    case.arrives(&director.bed, &about(tunnel, &sent, sent.len(), NARROW));
    assert_eq!(director.mtu(), NARROW);
}

fn an_error_that_quotes_the_port_of_tunnels_is_the_connections_if_there_is_one(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let case = tunnel.case;
    // A client with this source port: the error of its Service goes the way of its packets.
    let request = case.udp().with_source((case.client().ip(), FOU_PORT).into());
    case.arrives(&director.bed, &request).assert_counted(Reason::SentDsr);
    let icmp = case.family.port_unreachable();
    let refused = request.reply().icmp_error(case.client().ip(), icmp).with_macs(NEIGHBOUR_MAC, DEVICE_MAC);
    case.arrives(&director.bed, &refused).assert_counted(Reason::IcmpError);
    // A pod with this port, by SNAT: it comes back to the client.
    let pod = SocketAddr::new(case.remote_pod(7).ip(), FOU_PORT);
    let frontend = SocketAddr::new(case.vip().ip(), 53);
    director.bed.service().udp().external(frontend).backend_remote(pod, director.way).install();
    director.bed.hop(pod, known_hop(case.family.node(1)));
    let request = case.udp().with_destination(frontend);
    let outcome = case.arrives(&director.bed, &request);
    outcome.assert_counted(Reason::SentSnat);
    let refused = outcome.frame().icmp_error(pod.ip(), icmp).with_macs(NEIGHBOUR_MAC, DEVICE_MAC);
    let director = std::sync::Mutex::new(director);
    in_an_empty_namespace(|| {
        let director = director.into_inner().unwrap();
        // There is no route to the client here. The result shows that a program looked for one.
        let reason = if case.hook == Hook::XdpIngress { Reason::HandedToTc } else { Reason::NoWay };
        case.arrives(&director.bed, &refused).assert_counted(reason);
    });
}

fn after_ten_minutes_the_way_is_as_wide_as_before(tunnel: Tunnel) {
    // A route with a smaller MTU than that of its device.
    let director = Director::new(tunnel);
    let write = |mtu| {
        let way = Way { mtu, ..director.bed.current_way(director.way) };
        director.bed.set::<Way>("WAYS", director.way, way);
    };
    write(1450);
    let overhead = tunnel.overhead();
    let frame = large(tunnel, usize::from(1440 - overhead));
    let sent = director.sent(&frame);
    says(tunnel, &director, &sent, NARROW + 10);
    says(tunnel, &director, &sent, NARROW);
    tunnel.case.arrives(&director.bed, &frame).assert_counted(Reason::TooBig);
    director.bed.forget_narrowness(director.way);
    tunnel.case.arrives(&director.bed, &frame).assert_counted(Reason::SentDsr);
    assert_eq!(director.mtu(), 1450);
    director.is_refused_above(usize::from(1450 - overhead));
    // The router is forgotten: the agent's next value stays.
    write(NARROW);
    director.is_refused_above(usize::from(NARROW - overhead));
}

fn an_mtu_that_the_agent_writes_meanwhile_outlasts_the_ten_minutes(tunnel: Tunnel) {
    let director = Director::new(tunnel);
    let sent = director.sent(&large(tunnel, 1450));
    says(tunnel, &director, &sent, NARROW);
    let way = Way { mtu: 1420, ..director.bed.current_way(director.way) };
    director.bed.set::<Way>("WAYS", director.way, way);
    director.bed.forget_narrowness(director.way);
    director.is_refused_above(usize::from(1420 - tunnel.overhead()));
    assert_eq!(director.mtu(), 1420);
}
