//! A trace build of the programs tells the steps of each packet. Runs with the object that
//! `cargo xtask test --layer packet` builds for it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::IpAddr;

use millrace_lab::frame::{Frame, flag};
use millrace_lab::program::{Bed, Hook};
use millrace_lab::trace::PacketLog;

fn bed() -> Bed {
    let object = std::env::var_os("MILLRACE_TRACE_OBJECT").expect("the path of the object");
    Bed::builder().object(object.into()).load()
}

/// Runs a program on a frame, and returns what it logged.
fn logged(bed: &Bed, log: &mut PacketLog, hook: Hook, frame: &Frame) -> Vec<String> {
    bed.send(hook, frame);
    log.packets().into_iter().map(|packet| packet.text).collect()
}

fn syn(client: &str, to: &str) -> Frame {
    let [client, to]: [IpAddr; 2] = [client, to].map(|address| address.parse().unwrap());
    Frame::ip(client, to).tcp(40000, 80, flag::SYN)
}

#[test]
fn each_step_of_a_packet_is_told_and_the_verdict() {
    let bed = bed();
    let service = bed.service().external("203.0.113.1:80").backend_local("10.1.0.5:8080").install();
    for hook in [Hook::XdpIngress, Hook::TcIngress] {
        let mut log = PacketLog::open(bed.program_id(hook)).unwrap();
        let name = hook.program();
        let frame = syn(if hook.is_xdp() { "192.0.2.9" } else { "192.0.2.10" }, "203.0.113.1");
        let client = if hook.is_xdp() { "192.0.2.9:40000" } else { "192.0.2.10:40000" };
        assert_eq!(
            logged(&bed, &mut log, hook, &frame),
            [format!(
                "{name} TCP {client} > 203.0.113.1:80, service {}, slot 1, backend 1: served_local",
                service.id
            )]
        );
        assert_eq!(
            logged(&bed, &mut log, hook, &frame),
            [format!(
                "{name} TCP {client} > 203.0.113.1:80, service {}, flow in FLOWS_NEW flags 0x02, backend 1: \
                 served_local",
                service.id
            )]
        );
        assert!(logged(&bed, &mut log, hook, &syn("192.0.2.9", "192.0.2.99")).is_empty(), "not for us");
    }
}

#[test]
fn a_packet_that_goes_on_in_parts_is_one_packet() {
    let bed = bed();
    let service = bed.service().external("[2001:db8::1]:80").install();
    for hook in [Hook::XdpIngress, Hook::TcIngress] {
        let mut log = PacketLog::open(bed.program_id(hook)).unwrap();
        assert_eq!(
            logged(&bed, &mut log, hook, &syn("2001:db8:1::9", "2001:db8::1")),
            [format!(
                "{} TCP 2001:db8:1::9:40000 > 2001:db8::1:80, part Ipv6, service {}, part Refusal6: no_endpoint",
                hook.program(),
                service.id
            )]
        );
    }
}

#[test]
fn a_usual_build_logs_nothing_and_says_so() {
    let id = Bed::new().program_id(Hook::TcEgress);
    let error = PacketLog::open(id).err().expect("an error").to_string();
    assert_eq!(error, format!("program {id} logs no packets"));
}
