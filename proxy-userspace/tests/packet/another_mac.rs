//! Frames for the MAC address of another node. A switch that does not know an address floods its frames to all ports.

use millrace_lab::frame::{DEVICE_MAC, Frame, Mac, NEIGHBOUR_MAC, flag};
use millrace_lab::program::{Bed, DEVICE, FlowTable, Hook};
use proxy_common::device_mac::DEVICE_MAC_WORDS;
use proxy_common::verdict::Reason;

use crate::case::{Case, each_ingress};

each_ingress! {
    a_frame_for_another_nodes_mac_address_is_untouched_also_in_mid_connection
    frames_for_this_node_for_groups_and_for_virtual_routers_are_served
    a_device_without_a_known_mac_address_takes_all_frames
    the_kernel_knows_better_and_tells_tc
}

const ANOTHER: Mac = [0x02, 0, 0, 0, 0, 0x77];

fn bed(case: Case) -> Bed {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed
}

fn to(frame: &Frame, mac: Mac) -> Frame {
    frame.clone().with_macs(NEIGHBOUR_MAC, mac)
}

fn is_served(case: Case, bed: &Bed, frame: &Frame) {
    case.is_delivered(bed, frame, &frame.clone().with_destination(case.pod(1)), case.served());
}

fn a_frame_for_another_nodes_mac_address_is_untouched_also_in_mid_connection(case: Case) {
    let bed = bed(case);
    bed.device_mac(DEVICE, DEVICE_MAC);
    let (syn, ack) = (case.tcp(flag::SYN), case.tcp(flag::ACK));
    case.arrives(&bed, &to(&syn, ANOTHER)).assert_untouched().assert_counted(Reason::NotOurs);
    assert!(bed.flows(FlowTable::New).is_empty());
    is_served(case, &bed, &syn);
    case.arrives(&bed, &to(&ack, ANOTHER)).assert_untouched().assert_counted(Reason::NotOurs);
    is_served(case, &bed, &ack);
}

fn frames_for_this_node_for_groups_and_for_virtual_routers_are_served(case: Case) {
    let bed = bed(case);
    bed.device_mac(DEVICE, DEVICE_MAC);
    for mac in [DEVICE_MAC, [0xff; 6], [0x01, 0, 0x5e, 0, 0, 1], [0, 0, 0x5e, 0, 1, 4], [0, 0, 0x5e, 0, 2, 4]]
    {
        is_served(case, &bed, &to(&case.tcp(flag::SYN), mac));
    }
}

/// The device of these runs is the loopback device, whose address is zero. The agent does not know of its change yet.
fn the_kernel_knows_better_and_tells_tc(case: Case) {
    let bed = bed(case);
    bed.device_mac(DEVICE, DEVICE_MAC);
    let frame = to(&case.tcp(flag::SYN), [0; 6]);
    if case.hook == Hook::XdpIngress {
        case.arrives(&bed, &frame).assert_untouched();
    } else {
        is_served(case, &bed, &frame);
    }
}

fn a_device_without_a_known_mac_address_takes_all_frames(case: Case) {
    let bed = bed(case);
    let frame = to(&case.tcp(flag::SYN), ANOTHER);
    is_served(case, &bed, &frame);
    bed.device_mac(DEVICE + DEVICE_MAC_WORDS, DEVICE_MAC);
    is_served(case, &bed, &frame);
}
