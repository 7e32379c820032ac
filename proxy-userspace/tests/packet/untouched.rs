//! Packets that are for no Service, or that the programs do not understand, reach the stack
//! unchanged.

use millrace_lab::frame::{Extension, Frame, Icmp, Ipv4, Layer, Vlan, flag, protocol};
use millrace_lab::program::{Bed, Hook};
use proxy_common::verdict::Reason;

use crate::case::{Case, each_client, each_hook};

each_client! {
    packets_to_another_address_port_or_protocol_are_untouched
    later_fragments_are_untouched
    other_protocols_to_a_frontend_are_untouched
    truncated_frames_are_untouched_at_every_length
}

each_hook! {
    frames_that_are_no_ip_packets_are_untouched
    ipv6_packets_whose_ports_we_do_not_look_for_are_untouched
    lengths_that_lie_about_the_packet_leave_it_untouched
}

fn bed_with_service(case: Case) -> Bed {
    let bed = Bed::new();
    bed.service().external(case.vip()).backend_local(case.pod(1)).install();
    bed
}

fn packets_to_another_address_port_or_protocol_are_untouched(case: Case) {
    let bed = bed_with_service(case);
    let syn = case.tcp(flag::SYN);
    for frame in [
        syn.clone().with_destination(case.pod(9)),
        syn.clone().with_destination((case.vip().ip(), 81).into()),
        case.udp(),
        syn.reply(),
    ] {
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn later_fragments_are_untouched(case: Case) {
    let bed = bed_with_service(case);
    let mut frame = Frame::ip(case.client().ip(), case.vip().ip());
    if let Layer::Ipv4(ip) = frame.innermost_mut() {
        (ip.fragment_offset, ip.protocol) = (185, Some(protocol::TCP));
    } else {
        let fragment = Extension { protocol: Some(protocol::TCP), ..Extension::fragment(185, false, 7) };
        frame = frame.layer(fragment);
    }
    // The bytes at the place of the ports are the frontend's ports.
    let frame = frame.payload([0x9c, 0x40, 0, 80].repeat(10));
    case.arrives(&bed, &frame).assert_untouched();
}

fn other_protocols_to_a_frontend_are_untouched(case: Case) {
    let bed = bed_with_service(case);
    let ip = || Frame::ip(case.client().ip(), case.vip().ip());
    let echo = Icmp { kind: if case.vip().is_ipv4() { 8 } else { 128 }, code: 0, rest: [0, 1, 0, 1] };
    for frame in [ip().layer(echo).payload(&b"ping"[..]), ip().payload([0, 80].repeat(20))] {
        case.arrives(&bed, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn truncated_frames_are_untouched_at_every_length(case: Case) {
    let bed = bed_with_service(case);
    let whole = case.tcp(flag::ACK).build();
    let cut = (0..whole.len()).map(|length| &whole[..length]).filter(|frame| case.hook.takes(frame));
    for frame in cut {
        bed.run(case.hook, frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn frames_that_are_no_ip_packets_are_untouched(hook: Hook) {
    let bed = Bed::new();
    let arp = Frame { ethertype: Some(0x0806), ..Frame::ethernet() }.payload(vec![1; 28]);
    for frame in [arp, Frame::ethernet().payload(vec![0x45; 60]), Frame::ethernet().layer(Vlan::customer(7))]
    {
        bed.send(hook, &frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

fn ipv6_packets_whose_ports_we_do_not_look_for_are_untouched(hook: Hook) {
    let case = Case { hook, family: crate::case::Family::V6 };
    let bed = bed_with_service(case);
    let ip = || Frame::ip(case.client().ip(), case.vip().ip());
    let mut unfinished = Extension::routing();
    unfinished.body = [&[4, 1, 0, 0, 0, 0][..], &[0x20; 16]].concat().into();
    let authentication = Extension { kind: 51, ..Extension::routing() };
    // A routing header leads to another destination first. The bytes behind an authentication
    // header must not be changed.
    for extension in [unfinished, authentication] {
        let frame = ip().layer(extension).tcp(40000, 80, flag::SYN);
        bed.send(hook, &frame).assert_untouched();
    }
}

fn lengths_that_lie_about_the_packet_leave_it_untouched(hook: Hook) {
    let case = Case { hook, family: crate::case::Family::V4 };
    let bed = bed_with_service(case);
    let honest = case.tcp(flag::SYN).build();
    let lies: [(usize, u8); 5] = [
        (14, 0x44), // a header of 16 bytes
        (14, 0x4f), // a header of 60 bytes, which does not fit
        (14, 0x65), // not version 4
        (17, 30),   // a total length that cuts the TCP header
        (16, 0x40), // a total length beyond the frame
    ];
    for (at, byte) in lies {
        let mut frame = honest.to_vec();
        frame[at] = byte;
        bed.run(hook, &frame).assert_untouched();
    }
    let unknown = Ipv4 {
        protocol: Some(protocol::EXPERIMENT),
        ..Ipv4::new([192, 0, 2, 9].into(), [203, 0, 113, 1].into())
    };
    bed.send(hook, &Frame::ethernet().layer(unknown).payload([0, 80].repeat(10))).assert_untouched();
}
