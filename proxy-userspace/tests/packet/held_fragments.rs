//! Fragments that come before the first one of their packet: they are held, and received anew once
//! it has come.

use std::time::Duration;

use millrace_lab::capture::{Capture, Direction};
use millrace_lab::frame::Frame;
use millrace_lab::program::{Bed, Hook, Outcome};
use proxy_common::verdict::Reason;
use proxy_common::vip::VIP_EXTERNAL;
use proxy_common::way::{PEER_NODE, PEER_SELF};

use crate::case::{Case, Family, each_client, each_ingress};
use crate::fragments::datagrams;
use crate::network::{connect_to_nodes, in_an_empty_namespace};
use crate::snat::{Checked, Node, neighbour};

each_client! {
    early_fragments_are_received_after_the_first_fragment
    early_fragments_for_this_nodes_own_address_also_go_to_the_stack
    the_oldest_held_fragments_make_room_for_new_ones
    a_fragment_that_comes_twice_is_received_once
    a_held_fragment_waits_thirty_seconds_for_the_first
    held_fragments_are_removed_after_thirty_seconds
    a_frame_that_is_too_large_to_be_held_is_dropped
}

each_ingress! {
    an_answer_of_another_node_is_put_in_order
}

const PIECE: usize = 1200;
const LIMIT: Duration = Duration::from_secs(10);

/// Returns the four fragments of a datagram, each with bytes of its own.
fn pieces(datagram: &Frame) -> Vec<Frame> {
    datagram.fragments(7, PIECE)
}

fn large(case: Case) -> Frame {
    case.udp().payload((0..4000_u32).map(|byte| (byte / 7 % 251) as u8).collect::<Vec<u8>>())
}

fn bed_with_service(case: Case) -> Bed {
    let bed = Bed::new();
    bed.service().udp().external(case.vip()).backend_local(case.pod(1)).install();
    bed.vip(case.vip().ip(), VIP_EXTERNAL);
    bed
}

/// Runs a check of a bed in a network of its own, with a capture on its device.
fn watching(bed: Bed, case: Case, check: impl FnOnce(&Bed, &mut Capture) + Send) {
    let shared = std::sync::Mutex::new(bed);
    in_an_empty_namespace(|| {
        connect_to_nodes(case.family.node(1));
        let mut capture = Capture::start_here(&["lo"]).unwrap();
        check(&shared.into_inner().unwrap(), &mut capture);
    });
}

/// Runs the programs on a frame: XDP, then TC for a frame that XDP passes to it.
#[track_caller]
pub fn arrives_through(case: Case, bed: &Bed, frame: &Frame) -> Outcome {
    let outcome = case.arrives(bed, frame);
    if case.hook != Hook::XdpIngress || outcome.counts.of(Reason::HandedToTc).packets == 0 {
        return outcome;
    }
    outcome.assert_untouched().assert_counted(Reason::HandedToTc);
    bed.send(Hook::TcIngress, frame)
}

/// Checks that the frame is held.
#[track_caller]
pub fn is_held(case: Case, bed: &Bed, piece: &Frame) {
    arrives_through(case, bed, piece).assert_dropped(Reason::FragmentHeld);
}

/// Checks that exactly these frames were received anew, in this order.
#[track_caller]
fn are_received(capture: &mut Capture, frames: &[&Frame]) {
    let last = frames.last().unwrap().build();
    capture
        .wait_for(LIMIT, |captured| captured.direction == Direction::In && captured.frame == last)
        .unwrap();
    let received: Vec<Vec<u8>> = capture.packets().unwrap().iter().map(|one| one.frame.clone()).collect();
    let expected: Vec<Vec<u8>> = frames.iter().map(|frame| frame.build().to_vec()).collect();
    assert!(received == expected, "{} frames were received, {} were held", received.len(), expected.len());
}

fn early_fragments_are_received_after_the_first_fragment(case: Case) {
    let expected = pieces(&large(case).with_destination(case.pod(1)));
    let pieces = pieces(&large(case));
    for early in [&[1][..], &[3], &[2, 1], &[3, 1, 2]] {
        watching(bed_with_service(case), case, |bed, capture| {
            for number in early {
                is_held(case, bed, &pieces[*number]);
            }
            assert_eq!(bed.held_fragments(), early.len());
            let first = arrives_through(case, bed, &pieces[0]);
            first.assert_passed(&expected[0]).assert_counted(case.served());
            let mut early = early.to_vec();
            early.sort_unstable();
            are_received(capture, &early.iter().map(|number| &pieces[*number]).collect::<Vec<_>>());
            assert_eq!(bed.held_fragments(), 0);
            for (piece, expected) in pieces.iter().zip(&expected).skip(1) {
                case.is_delivered(bed, piece, expected, case.served());
            }
        });
    }
}

/// There are several times as many as there is room for. Their packets' first fragments never come.
fn the_oldest_held_fragments_make_room_for_new_ones(case: Case) {
    let expected = pieces(&large(case).with_destination(case.pod(1)));
    let (flood, pieces) = (large(case), pieces(&large(case)));
    watching(bed_with_service(case), case, |bed, capture| {
        for id in 100..500 {
            is_held(case, bed, &flood.fragments(id, PIECE)[1]);
        }
        is_held(case, bed, &pieces[2]);
        let first = arrives_through(case, bed, &pieces[0]);
        first.assert_passed(&expected[0]).assert_counted(case.served());
        are_received(capture, &[&pieces[2]]);
    });
}

fn an_answer_of_another_node_is_put_in_order(case: Case) {
    Node::with(case, Bed::builder(), datagrams).in_its_network(|node| {
        let mut capture = Capture::start_here(&["lo"]).unwrap();
        let datagram = large(case).with_source(neighbour(case));
        let port = case.arrives(&node.bed, &pieces(&datagram)[0]).frame().ports().0;
        let forwarded = node.forwarded(&datagram, (case.family.node(1), port).into());
        let (answer, restored) = (pieces(&forwarded.reply()), pieces(&datagram.reply()));
        if case.hook == Hook::XdpIngress {
            case.arrives(&node.bed, &answer[2]).assert_untouched().assert_counted(Reason::NotOurs);
        }
        let early = node.bed.send(Hook::TcIngress, &answer[2]);
        early.assert_untouched().assert_counted(Reason::FragmentHeld);
        assert_eq!(node.bed.held_fragments(), 1);
        for (piece, restored) in answer.iter().zip(&restored) {
            arrives_through(case, &node.bed, piece).checked(restored);
        }
        are_received(&mut capture, &[&answer[2]]);
    });
}

fn early_fragments_for_this_nodes_own_address_also_go_to_the_stack(case: Case) {
    let bed = Bed::new();
    bed.peer(case.family.node(1), PEER_SELF | PEER_NODE);
    bed.peer(case.family.node(2), PEER_NODE);
    let hooks: &[Hook] = match case.hook {
        Hook::XdpIngress => &[Hook::XdpIngress, Hook::TcIngress],
        ref hook => std::slice::from_ref(hook),
    };
    // Only a fragment that comes too early is held, and only for this node.
    for (node, order, held) in [(1, [0_u8, 1, 2], 0), (1, [1, 0, 1], 1), (2, [1, 0, 1], 1)] {
        let mut known = false;
        let to = (case.family.node(node), 9999).into();
        let pieces = large(case).with_destination(to).fragments(7 + u32::from(order[0]), PIECE);
        for number in order {
            let piece = &pieces[usize::from(number)];
            known |= number == 0;
            for hook in hooks {
                let is_held = node == 1 && !known && *hook != Hook::XdpIngress;
                let reason = if is_held { Reason::FragmentHeld } else { Reason::NotOurs };
                bed.send(*hook, piece).assert_untouched().assert_counted(reason);
            }
        }
        assert_eq!(bed.held_fragments(), held, "{order:?} of what is for node {node}");
    }
}

fn a_fragment_that_comes_twice_is_received_once(case: Case) {
    watching(bed_with_service(case), case, |bed, capture| {
        let pieces = pieces(&large(case));
        is_held(case, bed, &pieces[2]);
        is_held(case, bed, &pieces[2]);
        is_held(case, bed, &pieces[3]);
        arrives_through(case, bed, &pieces[0]).assert_counted(case.served());
        are_received(capture, &[&pieces[2], &pieces[3]]);
    });
}

fn a_held_fragment_waits_thirty_seconds_for_the_first(case: Case) {
    let (bed, pieces) = (bed_with_service(case), pieces(&large(case)));
    is_held(case, &bed, &pieces[1]);
    bed.age_fragments(31);
    // The first fragment is served as if it were the first packet.
    case.arrives(&bed, &pieces[0]).assert_counted(case.served());
    assert_eq!(bed.held_fragments(), 1);
}

fn held_fragments_are_removed_after_thirty_seconds(case: Case) {
    watching(bed_with_service(case), case, |bed, capture| {
        let pieces = pieces(&large(case));
        is_held(case, bed, &pieces[1]);
        bed.age_held_fragments(31);
        is_held(case, bed, &pieces[2]);
        arrives_through(case, bed, &pieces[0]).assert_counted(case.served());
        are_received(capture, &[&pieces[2]]);
        assert_eq!(bed.held_fragments(), 0);
    });
}

fn a_frame_that_is_too_large_to_be_held_is_dropped(case: Case) {
    let bed = bed_with_service(case);
    // With its headers, the first fragment has 2048 bytes.
    let headers = if case.family == Family::V4 { 34 } else { 62 };
    for (id, bytes, reason) in
        [(7, 2048 - headers, Reason::FragmentHeld), (8, 2049 - headers, Reason::FragmentUnknown)]
    {
        let mut piece = large(case).fragments(id, 1200).swap_remove(1);
        piece.payload = vec![1; bytes].into();
        arrives_through(case, &bed, &piece).assert_dropped(reason);
    }
    assert_eq!(bed.held_fragments(), 1);
}
