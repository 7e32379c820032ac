//! SCTP: associations have states as TCP connections do, and a checksum that covers ports but no
//! addresses.

use std::net::SocketAddr;

use millrace_lab::frame::{
    DEVICE_MAC, Extension, Frame, Icmp, Layer, NEIGHBOUR_MAC, Sctp, SctpChecksum, chunk, protocol,
};
use millrace_lab::program::{Bed, FlowTable, Service};
use proxy_common::flow::{FLOW_CLOSING, FLOW_DECAPSULATED, FLOW_ESTABLISHED, FLOW_SYN};
use proxy_common::selection::Slot;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{CLIENT_PORT, Case, Family, Tunnel, VIP_PORT, each_client, each_ingress, each_tunnel};
use crate::snat::{self, Node};

each_client! {
    packets_of_every_length_have_the_right_checksum_behind_another_port
    options_extension_headers_and_padding_are_not_counted
    the_checksum_is_left_alone_if_no_port_changes
    a_checksum_that_is_wrong_stays_wrong
    a_checksum_that_was_not_filled_in_stays_so
    a_packet_without_a_whole_chunk_header_is_untouched
    an_association_opens_and_is_promoted_as_a_connection
    it_closes_when_it_is_aborted_or_its_shutdown_is_complete
    a_shutdown_that_has_only_begun_closes_nothing
    an_acknowledged_shutdown_of_an_unknown_association_is_answered_from_the_service
    one_that_opens_anew_after_its_end_goes_to_the_slots_owner
    an_abort_without_an_association_leaves_no_trace
    an_association_keeps_its_backend_when_its_slot_gets_another_owner
    a_client_port_that_two_frontends_see_is_translated_both_ways
    an_association_with_a_service_without_endpoints_is_refused
    an_error_about_a_reply_reaches_the_backend
    a_backends_error_comes_from_the_frontend
}

each_ingress! {
    a_backend_on_another_node_is_reached_from_a_port_of_this_one
}

each_tunnel! {
    a_director_sends_the_packet_as_it_is
    a_packet_that_is_too_large_for_the_tunnel_is_refused_with_what_fits
    a_director_follows_the_rules_of_an_unsettled_slot
    the_backends_node_translates_the_port_and_back
}

impl Case {
    /// Returns the client's packet to the frontend that begins with `chunk`.
    ///
    /// All packets of both sides have the same verification tag. It is also the tag that a chunk
    /// chooses.
    fn sctp(self, chunk: u8) -> Frame {
        let tag = Sctp::new(CLIENT_PORT, VIP_PORT, chunk).tag.to_be_bytes();
        let frame = Frame::ip(self.client().ip(), self.vip().ip()).sctp(CLIENT_PORT, VIP_PORT, chunk);
        frame.payload(tag.repeat(3))
    }

    fn is_served(self, bed: &Bed, frame: &Frame, backend: SocketAddr) {
        let delivered = frame.clone().with_destination(backend);
        self.is_delivered(bed, frame, &delivered, self.served());
    }
}

fn served_here(case: Case) -> Bed {
    let bed = Bed::new();
    bed.service().protocol(protocol::SCTP).external(case.vip()).backend_local(case.pod(1)).install();
    bed
}

/// Checks that the backend's packet leaves as the frontend's.
#[track_caller]
fn answers(case: Case, bed: &Bed, chunk: u8) {
    let seen = case.sctp(chunk).reply();
    let reply = seen.clone().with_source(case.pod(1));
    bed.send(case.way_out(), &reply).assert_passed(&seen).assert_counted(Reason::Reply);
}

fn packets_of_every_length_have_the_right_checksum_behind_another_port(case: Case) {
    let bed = served_here(case);
    case.is_served(&bed, &case.sctp(chunk::INIT), case.pod(1));
    for bytes in [0, 1, 4, 43, 239, 240, 241, 495, 496, 1000, 1424, 3000] {
        let data = case.sctp(chunk::DATA).payload((0..=u8::MAX).cycle().take(bytes).collect::<Vec<_>>());
        case.is_served(&bed, &data, case.pod(1));
        let reply = data.clone().with_destination(case.pod(1)).reply();
        bed.send(case.way_out(), &reply).assert_passed(&data.reply());
    }
}

fn options_extension_headers_and_padding_are_not_counted(case: Case) {
    let bed = served_here(case);
    let mut init = case.sctp(chunk::INIT);
    if let Layer::Ipv4(ip) = init.innermost_mut() {
        ip.options = vec![1; 8].into();
    } else {
        init.layers.insert(1, Extension::destination_options(2).into());
    }
    case.is_served(&bed, &init, case.pod(1));
    let mut padded = case.sctp(chunk::DATA).payload(vec![1]);
    padded.trailer = vec![0xa5; 9].into();
    case.is_served(&bed, &padded, case.pod(1));
}

fn the_checksum_is_left_alone_if_no_port_changes(case: Case) {
    let bed = Bed::new();
    let backend = SocketAddr::new(case.pod(1).ip(), VIP_PORT);
    bed.service().protocol(protocol::SCTP).external(case.vip()).backend_local(backend).install();
    for kind in [chunk::INIT, chunk::COOKIE_ECHO, chunk::DATA] {
        let outcome = case.arrives(&bed, &case.sctp(kind));
        assert_eq!(checksum(&outcome.run.frame), checksum(&case.sctp(kind).build()));
        outcome.assert_passed(&case.sctp(kind).with_destination(backend));
    }
}

/// Returns the checksum. The frames of this file end with a header of 16 bytes and a payload of 12.
fn checksum(frame: &[u8]) -> u32 {
    let at = frame.len() - 12 - 8;
    u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

fn a_checksum_that_is_wrong_stays_wrong(case: Case) {
    let bed = served_here(case);
    let mut bytes = case.sctp(chunk::INIT).build().to_vec();
    let at = bytes.len() - 12 - 8;
    bytes[at] ^= 0x40;
    let run = bed.run(case.hook, &bytes).run;
    let right = case.sctp(chunk::INIT).with_destination(case.pod(1)).build();
    assert_eq!(checksum(&run.frame), checksum(&right) ^ 0x40);
}

fn a_checksum_that_was_not_filled_in_stays_so(case: Case) {
    let bed = served_here(case);
    let mut init = case.sctp(chunk::INIT);
    match init.layers.last_mut() {
        Some(Layer::Sctp(header)) => header.checksum = SctpChecksum::None,
        other => panic!("{other:?} has no such checksum"),
    }
    case.is_served(&bed, &init, case.pod(1));
    let delivered = init.clone().with_destination(case.pod(1));
    bed.send(case.way_out(), &delivered.reply()).assert_passed(&init.reply());
}

fn a_packet_without_a_whole_chunk_header_is_untouched(case: Case) {
    let bed = served_here(case);
    let whole = case.sctp(chunk::INIT).payload(Vec::new()).build();
    for missing in 1..=16 {
        let end = whole.len() - missing;
        bed.run(case.hook, &whole[..end]).assert_untouched().assert_counted(Reason::NotOurs);
        // The length in the IP header is less than that of the frame.
        let mut padded = whole.to_vec();
        let (at, length) = if case.family == Family::V4 { (16, end - 14) } else { (18, end - 54) };
        padded[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        bed.run(case.hook, &padded).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

/// Opens an association, answers it, and goes on.
#[track_caller]
fn associate(case: Case, bed: &Bed) {
    case.is_served(bed, &case.sctp(chunk::INIT), case.pod(1));
    answers(case, bed, chunk::INIT_ACK);
    case.is_served(bed, &case.sctp(chunk::COOKIE_ECHO), case.pod(1));
}

fn states(bed: &Bed, table: FlowTable) -> Vec<u8> {
    bed.flows(table).iter().map(|entry| entry.state).collect()
}

fn an_association_opens_and_is_promoted_as_a_connection(case: Case) {
    let bed = served_here(case);
    case.is_served(&bed, &case.sctp(chunk::INIT), case.pod(1));
    answers(case, &bed, chunk::INIT_ACK);
    assert_eq!(states(&bed, FlowTable::New), [FLOW_SYN; 2]);
    case.is_served(&bed, &case.sctp(chunk::INIT), case.pod(1));
    assert_eq!(states(&bed, FlowTable::New), [FLOW_SYN; 2], "sent again, it is no answer");
    case.is_served(&bed, &case.sctp(chunk::COOKIE_ECHO), case.pod(1));
    assert_eq!(bed.flows(FlowTable::New), []);
    assert_eq!(states(&bed, FlowTable::Established), [FLOW_ESTABLISHED; 2]);
}

fn it_closes_when_it_is_aborted_or_its_shutdown_is_complete(case: Case) {
    for last in [chunk::ABORT, chunk::SHUTDOWN_COMPLETE] {
        let bed = served_here(case);
        associate(case, &bed);
        bed.age_flows(2);
        case.is_served(&bed, &case.sctp(last), case.pod(1));
        assert_eq!(states(&bed, FlowTable::Established), [FLOW_CLOSING; 2]);
        // Entries are written at most once a second.
        bed.age_flows(2);
        case.is_served(&bed, &case.sctp(chunk::DATA), case.pod(1));
        assert_eq!(states(&bed, FlowTable::Established), [FLOW_ESTABLISHED; 2], "it was not believed");
        answers(case, &bed, last);
        assert_eq!(states(&bed, FlowTable::Established), [FLOW_CLOSING; 2]);
    }
}

fn a_shutdown_that_has_only_begun_closes_nothing(case: Case) {
    let bed = served_here(case);
    associate(case, &bed);
    answers(case, &bed, chunk::SHUTDOWN);
    case.is_served(&bed, &case.sctp(chunk::SHUTDOWN), case.pod(1));
    assert_eq!(states(&bed, FlowTable::Established), [FLOW_ESTABLISHED; 2]);
}

fn an_acknowledged_shutdown_of_an_unknown_association_is_answered_from_the_service(case: Case) {
    let bed = served_here(case);
    case.is_served(&bed, &case.sctp(chunk::SHUTDOWN_ACK), case.pod(1));
    answers(case, &bed, chunk::SHUTDOWN_COMPLETE);
}

fn one_that_opens_anew_after_its_end_goes_to_the_slots_owner(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().protocol(protocol::SCTP).external(case.vip()).backend_local(case.pod(1)).install();
    associate(case, &bed);
    service.set_slot(&bed, &case.sctp(chunk::INIT), Slot::settled_on(bed.backend_local(case.pod(2))));
    case.is_served(&bed, &case.sctp(chunk::INIT), case.pod(1));
    case.is_served(&bed, &case.sctp(chunk::SHUTDOWN_COMPLETE), case.pod(1));
    case.is_served(&bed, &case.sctp(chunk::INIT), case.pod(2));
}

fn an_abort_without_an_association_leaves_no_trace(case: Case) {
    let bed = served_here(case);
    case.is_served(&bed, &case.sctp(chunk::ABORT), case.pod(1));
    assert_eq!((bed.flows(FlowTable::New), bed.flows(FlowTable::Established)), (vec![], vec![]));
}

fn an_association_keeps_its_backend_when_its_slot_gets_another_owner(case: Case) {
    let bed = Bed::new();
    let service =
        bed.service().protocol(protocol::SCTP).external(case.vip()).backend_local(case.pod(1)).install();
    associate(case, &bed);
    service.set_slot(&bed, &case.sctp(chunk::DATA), Slot::settled_on(bed.backend_local(case.pod(2))));
    // Unlike a datagram, an association stays with a backend that is draining.
    bed.set_backend_flags(
        case.pod(1),
        proxy_common::backend::BACKEND_EXISTS | proxy_common::backend::BACKEND_LOCAL,
    );
    case.is_served(&bed, &case.sctp(chunk::DATA), case.pod(1));
}

fn a_client_port_that_two_frontends_see_is_translated_both_ways(case: Case) {
    let bed = served_here(case);
    let second: SocketAddr = (case.family.pick("203.0.113.2", "2001:db8:113::2"), VIP_PORT).into();
    bed.service().protocol(protocol::SCTP).external(second).backend_local(case.pod(1)).install();
    case.is_served(&bed, &case.sctp(chunk::INIT), case.pod(1));
    let init = case.sctp(chunk::INIT).with_destination(second);
    let outcome = case.arrives(&bed, &init);
    let source = outcome.frame().source();
    assert_ne!(source.port(), CLIENT_PORT, "the case this test is for");
    let delivered = init.clone().with_destination(case.pod(1)).with_source(source);
    outcome.assert_passed(&delivered).assert_counted(case.served());
    bed.send(case.way_out(), &delivered.reply()).assert_passed(&init.reply());
}

fn a_backend_on_another_node_is_reached_from_a_port_of_this_one(case: Case) {
    Node::with(case, Bed::builder(), |service| service.protocol(protocol::SCTP)).in_its_network(|node| {
        let init = case.sctp(chunk::INIT).with_source(snat::neighbour(case));
        let source = node.forwards(&init);
        let answer = node.forwarded(&init, source).reply().with_chunk(chunk::INIT_ACK);
        snat::returns(node, &answer, &init);
        let data = init.with_chunk(chunk::DATA).payload(vec![3; 1001]);
        assert_eq!(node.forwards(&data), source);
    });
}

fn an_association_with_a_service_without_endpoints_is_refused(case: Case) {
    let bed = Bed::new();
    bed.service().protocol(protocol::SCTP).external(case.vip()).install();
    let init = case.sctp(chunk::INIT);
    let told = init.icmp_error(case.vip().ip(), case.family.port_unreachable());
    case.arrives(&bed, &init).assert_sent(&told).assert_counted(Reason::NoEndpoint);
}

/// Returns a router's message: 1400 bytes would have fitted.
fn too_big(case: Case) -> Icmp {
    case.family.too_big(1400)
}

/// The quote of an error: eight bytes with ports and tag, or the whole packet with a checksum that
/// no host can verify.
const QUOTED: usize = 8;

fn an_error_about_a_reply_reaches_the_backend(case: Case) {
    let bed = served_here(case);
    associate(case, &bed);
    let seen = case.sctp(chunk::DATA).reply();
    let sent = seen.clone().with_source(case.pod(1));
    let router = case.family.pick("198.18.0.1", "2001:db8:18::1");
    let about = |frame: &Frame| {
        frame.icmp_error_quoting(router, too_big(case), QUOTED).with_macs(NEIGHBOUR_MAC, DEVICE_MAC)
    };
    case.is_delivered(&bed, &about(&seen), &about(&sent), Reason::IcmpError);
}

fn a_backends_error_comes_from_the_frontend(case: Case) {
    let bed = served_here(case);
    associate(case, &bed);
    let seen = case.sctp(chunk::DATA);
    let delivered = seen.clone().with_destination(case.pod(1));
    let error = |frame: &Frame, whole| {
        frame.icmp_error_quoting(frame.destination().ip(), too_big(case), if whole { 28 } else { QUOTED })
    };
    bed.send(case.way_out(), &error(&delivered, false)).assert_passed(&error(&seen, false));
    // The quoted checksum is still the backend's. The error's own checksum is right.
    let mut expected = error(&seen, true);
    let mut payload = expected.payload.to_vec();
    let (at, quoted) = (payload.len() - 20, delivered.build());
    payload[at..at + 4].copy_from_slice(&quoted[quoted.len() - 20..][..4]);
    expected.payload = payload.into();
    bed.send(case.way_out(), &error(&delivered, true)).assert_passed(&expected);
}

fn with_direct_return(tunnel: Tunnel, bed: &Bed) -> Service {
    let (case, way) = (tunnel.case, tunnel.way(bed, 2));
    bed.service()
        .protocol(protocol::SCTP)
        .dsr()
        .external(case.vip())
        .backend_remote(case.remote_pod(1), way)
        .install()
}

fn a_director_sends_the_packet_as_it_is(tunnel: Tunnel) {
    let bed = tunnel.bed();
    let backend = with_direct_return(tunnel, &bed).endpoints[0];
    for kind in [chunk::INIT, chunk::COOKIE_ECHO, chunk::DATA, chunk::SACK, chunk::ABORT] {
        let frame = tunnel.case.sctp(kind);
        let outcome = tunnel.case.arrives(&bed, &frame);
        outcome.assert_sent(&tunnel.forwarded(&frame, 2, backend.hint)).assert_counted(Reason::SentDsr);
    }
    assert_eq!(bed.flows(FlowTable::New), []);
}

fn a_packet_that_is_too_large_for_the_tunnel_is_refused_with_what_fits(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let backend = with_direct_return(tunnel, &bed).endpoints[0];
    let data = |bytes| {
        let mut frame = case.sctp(chunk::DATA).payload(vec![7; bytes]);
        if let Layer::Ipv4(ip) = frame.innermost_mut() {
            ip.dont_fragment = true;
        }
        frame
    };
    let fits = 1500 - usize::from(tunnel.overhead());
    let headers = data(0).build().len() - 14;
    let largest = data(fits - headers);
    case.arrives(&bed, &largest).assert_sent(&tunnel.forwarded(&largest, 2, backend.hint));
    let refused = data(fits - headers + 1);
    let error = refused.icmp_error(case.vip().ip(), case.family.too_big(fits));
    case.arrives(&bed, &refused).assert_sent(&error).assert_counted(Reason::TooBig);
}

fn a_director_follows_the_rules_of_an_unsettled_slot(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    let service = bed
        .service()
        .protocol(protocol::SCTP)
        .dsr()
        .external(case.vip())
        .backend_remote(case.remote_pod(1), tunnel.way(&bed, 2))
        .backend_remote(case.remote_pod(2), tunnel.way(&bed, 3))
        .install();
    let [settled, current] = [service.endpoints[0], service.endpoints[1]];
    let slot = Slot::unsettled(current.reference, settled.reference);
    service.set_slot(&bed, &case.sctp(chunk::INIT), slot);
    let goes_to = |chunk, node, hint| {
        let frame = case.sctp(chunk);
        case.arrives(&bed, &frame).assert_sent(&tunnel.forwarded(&frame, node, hint));
    };
    goes_to(chunk::DATA, 2, settled.hint);
    goes_to(chunk::SHUTDOWN_ACK, 2, settled.hint);
    let closing = bed.flow_of(FlowTable::Established, &case.sctp(chunk::DATA)).unwrap();
    assert_eq!(closing.state, FLOW_CLOSING, "a director sees no more of an association than this");
    goes_to(chunk::INIT, 3, current.hint);
    goes_to(chunk::COOKIE_ECHO, 3, current.hint);
}

fn the_backends_node_translates_the_port_and_back(tunnel: Tunnel) {
    let (bed, case) = (tunnel.bed(), tunnel.case);
    for (number, bits) in [(1, PEER_SELF | PEER_NODE), (2, PEER_NODE)] {
        bed.peer(tunnel.outer.node(number), bits);
    }
    let service = bed
        .service()
        .protocol(protocol::SCTP)
        .dsr()
        .external(case.vip())
        .backend_local(case.pod(1))
        .install();
    for kind in [chunk::INIT, chunk::COOKIE_ECHO, chunk::DATA] {
        let frame = case.sctp(kind);
        let arriving = tunnel.around(&frame, 2, 1, service.endpoints[0].hint);
        let delivered = frame.clone().with_destination(case.pod(1));
        case.is_delivered(&bed, &arriving, &delivered, Reason::ServedDsr);
        bed.send(case.way_out(), &delivered.reply()).assert_passed(&frame.reply());
    }
    let entry = bed.flow_of(FlowTable::Established, &case.sctp(chunk::DATA)).unwrap();
    assert_eq!((entry.state, entry.flags & FLOW_DECAPSULATED), (FLOW_ESTABLISHED, FLOW_DECAPSULATED));
}
