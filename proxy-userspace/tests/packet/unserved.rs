//! Packets for a Service's address that nothing serves. The network sends them to this node, and
//! must not get them back.

use millrace_lab::frame::{Extension, Frame, flag};
use millrace_lab::program::{Bed, DEVICE, Hook};
use proxy_common::hop::Device;
use proxy_common::verdict::Reason;
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL};

use crate::case::{Case, Family, VIP_PORT, each_family};
use crate::vips::of_protocol;

each_family! {
    packets_from_the_network_for_a_services_address_do_not_go_back_there
    a_packet_of_this_nodes_pods_goes_to_another_nodes_address
    an_address_of_no_service_is_routed
    translated_packets_leave
}

const GRE: u8 = 47;

const fn leaving(family: Family) -> Case {
    Case { hook: Hook::TcEgress, family }
}

/// Returns a bed with an uplink as its device.
fn bed(case: Case, kinds: u32) -> Bed {
    let bed = Bed::builder().reject_unknown(0).load();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed.vip(case.vip().ip(), kinds);
    bed.device(DEVICE, Device::default());
    bed
}

/// Returns packets of various ports, protocols, extension headers and options.
fn packets(case: Case) -> Vec<Frame> {
    let ip = || Frame::ip(case.client().ip(), case.vip().ip());
    let mut packets = vec![
        ip().udp(40000, 9999).payload(&b"a question"[..]),
        ip().tcp(40000, 9999, flag::SYN),
        ip().tcp(40000, VIP_PORT, flag::ACK),
        of_protocol(case, GRE),
    ];
    if case.family == Family::V6 {
        packets.push(ip().layer(Extension::destination_options(1)).udp(40000, 9999));
        packets.push(ip().layer(Extension::fragment(0, true, 7)).udp(40000, 9999).payload(vec![7; 64]));
    }
    packets
}

fn packets_from_the_network_for_a_services_address_do_not_go_back_there(family: Family) {
    let case = leaving(family);
    for kinds in [VIP_CLUSTER_IP, VIP_EXTERNAL] {
        let bed = bed(case, kinds);
        for frame in packets(case) {
            case.arrives(&bed, &frame).assert_dropped(Reason::Unserved).assert_counted(Reason::Unserved);
        }
    }
}

fn a_packet_of_this_nodes_pods_goes_to_another_nodes_address(family: Family) {
    let case = leaving(family);
    let bed = Bed::builder().load();
    bed.vip(case.vip().ip(), VIP_EXTERNAL);
    for frame in packets(case) {
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn an_address_of_no_service_is_routed(family: Family) {
    let case = leaving(family);
    let bed = bed(case, VIP_EXTERNAL);
    bed.forget_vip(case.vip().ip());
    for frame in packets(case) {
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn translated_packets_leave(family: Family) {
    let case = leaving(family);
    let bed = bed(case, VIP_EXTERNAL);
    let served = Case { hook: Hook::TcIngress, family };
    served.arrives(&bed, &case.tcp(flag::SYN)).assert_counted(Reason::ServedLocal);
    let reply = case.tcp(flag::SYN).with_destination(case.pod(1)).reply();
    case.arrives(&bed, &reply).assert_passed(&case.tcp(flag::SYN).reply()).assert_counted(Reason::Reply);
}
