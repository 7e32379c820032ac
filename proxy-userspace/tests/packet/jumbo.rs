//! Frames of more than one buffer, as devices deliver frames larger than a page. XDP sees the first
//! buffer, which has all headers.

use millrace_lab::frame::{DEVICE_MAC, Frame, flag};
use millrace_lab::program::{Bed, Hook, NEXT_HOP_MAC, Outcome, known_hop, resolved_way};
use proxy_common::config::HANDOVER_MAGIC;
use proxy_common::hop::Hop;
use proxy_common::verdict::Reason;
use proxy_common::way::{PEER_NODE, PEER_SELF, Way};

use crate::case::{Case, Family, each_family};
use crate::snat::Node;

each_family! {
    a_large_frame_is_delivered_whole
    a_large_frame_is_encapsulated_whole
    a_large_frame_is_decapsulated_whole
    a_large_frame_is_translated_whole
    a_large_frame_that_fits_no_way_is_refused
    a_large_fragment_follows_the_first_one
}

/// Bytes behind the TCP header: of two buffers, and of three.
const SIZES: [usize; 2] = [4000, 8900];

const fn case(family: Family) -> Case {
    Case { hook: Hook::XdpIngress, family }
}

fn large(case: Case, bytes: usize) -> Frame {
    case.tcp(flag::ACK).payload((0..bytes).map(|byte| (byte % 253) as u8).collect::<Vec<u8>>())
}

fn wide(case: Case) -> Way {
    Way { mtu: 9100, ..resolved_way(case.family.node(1), case.family.node(2)) }
}

/// Checks that the frame is counted once, with the bytes of the first buffer only.
#[track_caller]
fn is_counted(outcome: &Outcome, reason: Reason) {
    assert_eq!((outcome.counts.packets(), outcome.counts.of(reason).packets), (1, 1), "{outcome}");
}

#[track_caller]
fn is_handed_over(outcome: &Outcome, expected: &Frame, reason: Reason) {
    outcome.assert_passed(expected);
    assert_eq!(outcome.run.metadata[..], HANDOVER_MAGIC.to_ne_bytes(), "{outcome}");
    is_counted(outcome, reason);
}

fn a_large_frame_is_delivered_whole(family: Family) {
    let (case, bed) = (case(family), Bed::new());
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    for bytes in SIZES {
        let frame = large(case, bytes);
        let expected = frame.clone().with_destination(case.pod(1));
        is_handed_over(&case.arrives(&bed, &frame), &expected, Reason::ServedLocal);
    }
}

fn a_large_frame_is_encapsulated_whole(family: Family) {
    let (case, bed) = (case(family), Bed::new());
    let way = bed.way(wide(case));
    bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
    for bytes in SIZES {
        let frame = large(case, bytes);
        let outcome = case.arrives(&bed, &frame);
        is_counted(&outcome, Reason::SentDsr);
        assert!(outcome.verdict.is_sent(), "{outcome}");
        let sent = outcome.frame();
        assert_eq!(sent.decapsulated(), frame.with_hop_limit(63).with_macs(DEVICE_MAC, NEXT_HOP_MAC));
    }
}

fn a_large_frame_is_decapsulated_whole(family: Family) {
    let (case, bed) = (case(family), Bed::new());
    bed.peer(case.family.node(1), PEER_SELF | PEER_NODE);
    bed.peer(case.family.node(2), PEER_NODE);
    bed.service().dsr().external(case.vip()).backend_local(case.pod(1)).install();
    for bytes in SIZES {
        let frame = large(case, bytes);
        let outer = millrace_lab::frame::Layer::ip(case.family.node(2), case.family.node(1));
        let outcome = case.arrives(&bed, &frame.clone().encapsulated(outer));
        is_handed_over(&outcome, &frame.with_destination(case.pod(1)), Reason::ServedDsr);
    }
}

fn a_large_frame_is_translated_whole(family: Family) {
    let case = case(family);
    let node = Node::new(case);
    let source = node.forwards(&case.tcp(flag::SYN));
    node.bed.hop(case.remote_pod(1), Hop { mtu: 9100, ..known_hop(case.family.node(1)) });
    for bytes in SIZES {
        let frame = large(case, bytes);
        let outcome = case.arrives(&node.bed, &frame);
        is_counted(&outcome, Reason::SentSnat);
        outcome.assert_sent(&node.forwarded(&frame, source));
    }
}

fn a_large_frame_that_fits_no_way_is_refused(family: Family) {
    let (case, bed) = (case(family), Bed::new());
    let way = bed.way(Way { mtu: 8900, ..wide(case) });
    bed.service().dsr().external(case.vip()).backend_remote(case.remote_pod(1), way).install();
    let mut frame = large(case, 8900);
    if let millrace_lab::frame::Layer::Ipv4(ip) = frame.innermost_mut() {
        ip.dont_fragment = true;
    }
    let outcome = case.arrives(&bed, &frame);
    is_counted(&outcome, Reason::TooBig);
    assert!(outcome.verdict.is_sent(), "its sender is told\n{outcome}");
    assert_eq!(outcome.frame().destination().ip(), case.client().ip());
}

fn a_large_fragment_follows_the_first_one(family: Family) {
    let (case, bed) = (case(family), Bed::new());
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    let datagram = case.udp().payload(vec![0x5a; 20_000]);
    let expected = datagram.clone().with_destination(case.pod(1)).fragments(7, 8000);
    for (piece, expected) in datagram.fragments(7, 8000).iter().zip(&expected) {
        is_handed_over(&case.arrives(&bed, piece), expected, Reason::ServedLocal);
    }
}
