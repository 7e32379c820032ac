//! Fragments with forged sources: a fragment that is met on one side says nothing about those of
//! another side.

use millrace_lab::frame::Frame;
use millrace_lab::program::{Bed, Hook, Ingress, Outcome};
use nix::net::if_::if_nametoindex;
use proxy_common::verdict::Reason;

use crate::case::{Case, Family, each_family, each_ingress};
use crate::fragments::{PIECE, all_are_delivered, bed_with_service, large};
use crate::held_fragments::is_held;
use crate::network::{connect_to_nodes, in_an_empty_namespace};

each_ingress! {
    a_pod_that_lies_about_its_address_does_not_turn_a_clients_packet
    a_pod_that_lies_about_its_address_adds_nothing_to_a_clients_packet
    a_forged_reply_from_outside_adds_nothing_to_a_reply
}

each_family! {
    pods_add_nothing_to_each_others_packets
}

/// Returns a bed with a second Service, and the first fragment of a packet for it that looks like
/// the client's.
fn with_a_second_service(case: Case) -> (Bed, Frame) {
    let (bed, other) = (bed_with_service(case), (case.vip().ip(), 81).into());
    bed.service().udp().external(other).backend_local(case.pod(2)).install();
    (bed, large(case).with_destination(other).fragments(7, PIECE).swap_remove(0))
}

fn a_pod_that_lies_about_its_address_does_not_turn_a_clients_packet(case: Case) {
    let (bed, forged) = with_a_second_service(case);
    let expected = large(case).with_destination(case.pod(1)).fragments(7, PIECE);
    for (piece, expected) in large(case).fragments(7, PIECE).iter().zip(&expected) {
        case.is_delivered(&bed, piece, expected, case.served());
        bed.send(Hook::TcPodIn, &forged).assert_counted(Reason::ServedPod);
    }
}

fn a_pod_that_lies_about_its_address_adds_nothing_to_a_clients_packet(case: Case) {
    let bed = bed_with_service(case);
    let pieces = large(case).fragments(7, PIECE);
    let of_pod = Case { hook: Hook::TcPodIn, ..case };
    // Neither before the first fragment nor behind it.
    is_held(of_pod, &bed, &pieces[2]);
    case.arrives(&bed, &pieces[0]).assert_counted(case.served());
    is_held(of_pod, &bed, &pieces[1]);
    assert_eq!(bed.held_fragments(), 2);
}

fn a_forged_reply_from_outside_adds_nothing_to_a_reply(case: Case) {
    let bed = bed_with_service(case);
    all_are_delivered(case, &bed, &large(case));
    let reply = large(case).with_destination(case.pod(1)).reply().fragments(8, PIECE);
    case.arrives(&bed, &reply[0]).assert_untouched().assert_counted(Reason::NotOurs);
    bed.send(case.way_out(), &reply[1]).assert_untouched().assert_counted(Reason::NotOurs);
}

fn pods_add_nothing_to_each_others_packets(family: Family) {
    let case = Case { hook: Hook::TcPodIn, family };
    let (bed, forged) = with_a_second_service(case);
    in_an_empty_namespace(move || {
        connect_to_nodes(family.node(1));
        let [own, other] = ["wire", "far-end"].map(|name| if_nametoindex(name).unwrap());
        let sent_by = |device, frame: &Frame| -> Outcome {
            bed.run_with(Hook::TcPodIn, &frame.build(), Ingress { device, ..Ingress::default() })
        };
        let pieces = large(case).fragments(7, PIECE);
        sent_by(own, &pieces[0]).assert_counted(Reason::ServedPod);
        sent_by(other, &pieces[1]).assert_dropped(Reason::FragmentHeld);
        sent_by(other, &forged).assert_counted(Reason::ServedPod);
        let expected = large(case).with_destination(case.pod(1)).fragments(7, PIECE);
        for (piece, expected) in pieces.iter().zip(&expected).skip(1) {
            sent_by(own, piece).assert_passed(expected).assert_counted(Reason::ServedPod);
        }
    });
}
