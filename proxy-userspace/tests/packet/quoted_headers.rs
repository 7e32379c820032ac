//! ICMP errors that quote IPv6 packets with extension headers, above all fragments. The ports
//! behind the headers name the connection.

use bytes::Bytes;
use millrace_lab::frame::{DEVICE_MAC, Extension, Frame, NEIGHBOUR_MAC, flag, protocol};
use millrace_lab::program::{Bed, Hook, NEXT_HOP_MAC, known_hop};
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;

use crate::case::Encapsulation::{Fou, Ipip};
use crate::case::{Case, Family, Tunnel, each_hook};
use crate::errors::{backend_node, director, node_of};

/// Declares each function as tests for clients outside and for pods.
macro_rules! each_inside {
    ($($name:ident)+) => {$(
        mod $name {
            use millrace_lab::program::Hook::{TcIngress, TcPodIn, XdpIngress};

            #[test] fn xdp() { super::$name(super::inside(XdpIngress)); }
            #[test] fn tc() { super::$name(super::inside(TcIngress)); }
            #[test] fn of_a_pod() { super::$name(super::inside(TcPodIn)); }
        }
    )+};
}
each_hook! {
    an_error_about_a_first_fragment_that_was_translated_goes_on
    a_director_sends_an_error_about_a_first_fragment_where_the_slots_packets_go
    the_backends_node_gives_an_encapsulated_error_about_a_first_fragment_to_the_backend
}

each_inside! {
    an_error_about_a_packet_with_extension_headers_reaches_the_backend
    a_backends_error_about_a_packet_with_extension_headers_comes_from_the_frontend
    an_error_that_quotes_no_ports_is_untouched
    an_error_whose_quote_ends_in_its_headers_is_untouched
}

/// Bytes behind an extension header that every error quotes.
const QUOTED: usize = 8;

const fn inside(hook: Hook) -> Case {
    Case { hook, family: Family::V6 }
}

fn every_tunnel(hook: Hook) -> impl Iterator<Item = Tunnel> {
    let outer = [Family::V4, Family::V6].into_iter();
    outer.flat_map(move |outer| {
        [Ipip, Fou].map(|encapsulation| Tunnel { case: inside(hook), outer, encapsulation })
    })
}

/// A packet behind one or more extension headers, and their bytes.
struct Shaped {
    frame: Frame,
    headers: usize,
}

impl Shaped {
    fn first_fragment(frame: &Frame, headers: usize) -> Self {
        let piece = frame.clone().payload(vec![7; 3000]).fragments(77, 1200).remove(0);
        Self { frame: piece, headers: headers + 8 }
    }

    /// Returns a router's error about it, as it arrives here.
    fn error(&self, case: Case, quoted: usize) -> Frame {
        quoting(&self.frame, case, self.headers + quoted)
    }
}

/// Returns the error about a packet with a quote of `behind` bytes behind the IP header.
fn quoting(frame: &Frame, case: Case, behind: usize) -> Frame {
    let bytes = frame.build();
    let error = Frame::ip(case.router(), frame.source().ip()).with_traffic_class(0xc0).layer(case.too_big());
    let quote: Bytes = bytes.slice(14..bytes.len().min(14 + 40 + behind));
    error.payload(quote).with_macs(NEIGHBOUR_MAC, DEVICE_MAC)
}

fn with_headers(frame: &Frame, headers: &[Extension]) -> Frame {
    let mut frame = frame.clone();
    for header in headers.iter().rev() {
        frame.layers.insert(1, header.clone().into());
    }
    frame
}

/// Returns a packet with each chain of headers that may precede its transport header.
fn shapes(frame: &Frame) -> Vec<Shaped> {
    let (hop, options) = (Extension::hop_by_hop(1), Extension::destination_options(2));
    let (atomic, routing) = (Extension::fragment(0, false, 7), Extension::routing());
    let length = |headers: &[Extension]| headers.iter().map(|header| 2 + header.body.len()).sum::<usize>();
    let chains = [vec![hop.clone()], vec![options.clone()], vec![atomic], vec![routing]];
    let plain = chains.map(|chain| Shaped { frame: with_headers(frame, &chain), headers: length(&chain) });
    // Options for routers precede the fragment header, those for the destination follow it.
    let chains = [vec![], vec![hop.clone()], vec![hop, options]];
    let fragments = chains.map(|chain| Shaped::first_fragment(&with_headers(frame, &chain), length(&chain)));
    plain.into_iter().chain(fragments).collect()
}

/// Returns an opened UDP and TCP connection of a client to the frontend.
fn open_connections(case: Case, bed: &Bed) -> [Frame; 2] {
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    case.arrives(bed, &case.tcp(flag::SYN));
    let connections = [case.tcp(flag::ACK), case.udp()];
    for frame in &connections {
        case.arrives(bed, frame).assert_counted(case.served());
    }
    connections
}

fn an_error_about_a_packet_with_extension_headers_reaches_the_backend(case: Case) {
    let bed = Bed::new();
    for sent in open_connections(case, &bed) {
        let reply = sent.with_destination(case.pod(1)).reply();
        let seen = reply.clone().with_source(case.vip());
        for (reply, seen) in shapes(&reply).iter().zip(&shapes(&seen)) {
            bed.send(case.way_out(), &reply.frame).assert_passed(&seen.frame).assert_counted(Reason::Reply);
            for quoted in [QUOTED, 20, 100] {
                let expected = reply.error(case, quoted);
                case.is_delivered(&bed, &seen.error(case, quoted), &expected, Reason::IcmpError);
            }
        }
    }
}

fn a_backends_error_about_a_packet_with_extension_headers_comes_from_the_frontend(case: Case) {
    let bed = Bed::new();
    for sent in open_connections(case, &bed) {
        let delivered = sent.clone().with_destination(case.pod(1));
        for (sent, delivered) in shapes(&sent).iter().zip(&shapes(&delivered)) {
            let from_pod = |shaped: &Shaped, from| shaped.error(case, 20).with_source((from, 0).into());
            let leaving = from_pod(delivered, case.pod(1).ip());
            let expected = from_pod(sent, case.vip().ip());
            bed.send(case.way_out(), &leaving).assert_passed(&expected).assert_counted(Reason::IcmpError);
        }
    }
}

fn an_error_that_quotes_no_ports_is_untouched(case: Case) {
    let bed = Bed::new();
    let [tcp, udp] = open_connections(case, &bed);
    let later = udp.reply().payload(vec![7; 3000]).fragments(77, 1200).remove(1);
    let seen = tcp.reply();
    let mut unfinished = Extension::routing();
    let mut body = unfinished.body.to_vec();
    body[1] = 1;
    unfinished.body = body.into();
    let options = Extension::destination_options(1);
    for frame in [
        later,
        with_headers(&seen, &[unfinished]),
        with_headers(&seen, &[Extension { kind: 51, ..Extension::routing() }]),
        with_headers(&seen, &vec![options; 5]),
        with_headers(&seen, &[Extension::destination_options(32)]),
        with_headers(
            &seen,
            &[Extension { protocol: Some(protocol::EXPERIMENT), ..Extension::hop_by_hop(1) }],
        ),
    ] {
        let arriving = quoting(&frame, case, 400);
        case.arrives(&bed, &arriving).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn an_error_whose_quote_ends_in_its_headers_is_untouched(case: Case) {
    let bed = Bed::new();
    let [_, udp] = open_connections(case, &bed);
    for seen in shapes(&udp.reply()) {
        for behind in 0..seen.headers + QUOTED {
            let arriving = quoting(&seen.frame, case, behind);
            case.arrives(&bed, &arriving).assert_untouched().assert_counted(Reason::NotOurs);
        }
    }
}

fn an_error_about_a_first_fragment_that_was_translated_goes_on(hook: Hook) {
    let (bed, case) = (Bed::new(), inside(hook));
    bed.service().udp().external(case.vip()).backend_remote(case.remote_pod(1), 0).install();
    bed.hop(case.remote_pod(1), known_hop(case.family.node(1)));
    let sent = case.udp();
    let outcome = case.arrives(&bed, &sent);
    outcome.assert_counted(Reason::SentSnat);
    let left = sent.clone().with_source(outcome.frame().source()).with_destination(case.remote_pod(1));
    let [seen, reply] = [sent.reply(), left.clone().reply()].map(|frame| Shaped::first_fragment(&frame, 0));
    // The backend knows only this node.
    let expected = reply.error(case, QUOTED).with_source((left.source().ip(), 0).into());
    let expected = expected.with_hop_limit(63).with_macs(DEVICE_MAC, NEXT_HOP_MAC);
    case.arrives(&bed, &seen.error(case, QUOTED)).assert_sent(&expected).assert_counted(Reason::IcmpError);
}

fn a_director_sends_an_error_about_a_first_fragment_where_the_slots_packets_go(hook: Hook) {
    for tunnel in every_tunnel(hook) {
        let ((bed, service), case) = (director(tunnel), tunnel.case);
        for port in 40000..40008 {
            let sent = case.tcp_from(port, flag::ACK);
            let backend = service.choice(&sent);
            let arriving = Shaped::first_fragment(&sent.reply(), 0).error(case, QUOTED);
            let mut expected = tunnel.forwarded(&arriving, node_of(tunnel, backend), backend.hint);
            expected.set_outer_traffic_class(0xc0);
            case.arrives(&bed, &arriving).assert_sent(&expected).assert_counted(Reason::IcmpError);
        }
    }
}

fn the_backends_node_gives_an_encapsulated_error_about_a_first_fragment_to_the_backend(hook: Hook) {
    for tunnel in every_tunnel(hook) {
        let ((bed, service), case) = (backend_node(tunnel), tunnel.case);
        let [local, remote] = [service.endpoints[0], service.endpoints[1]];
        let syn = case.tcp(flag::SYN);
        case.arrives(&bed, &tunnel.around(&syn, 2, 1, local.hint)).assert_counted(Reason::ServedDsr);
        let reply = syn.clone().with_destination(case.pod(1)).reply();
        let [seen, reply] = [syn.clone().reply(), reply].map(|frame| Shaped::first_fragment(&frame, 0));
        let arriving = tunnel.around(&seen.error(case, 20), 2, 1, local.hint);
        case.is_delivered(&bed, &arriving, &reply.error(case, 20), Reason::IcmpError);

        bed.forget_flows();
        service.set_slot(&bed, &syn, Slot::unsettled(local.reference, remote.reference));
        let sent_on = tunnel.around(&seen.error(case, 20), 1, 3, remote.hint | 1 << 14);
        let mut sent_on = sent_on.with_macs(DEVICE_MAC, NEXT_HOP_MAC);
        sent_on.set_outer_traffic_class(0xc0);
        case.arrives(&bed, &arriving).assert_sent(&sent_on).assert_counted(Reason::SentOnward);
    }
}
