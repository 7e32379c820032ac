use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_generic::GenlMessage;

use super::*;

fn bytes(message: Message) -> Vec<u8> {
    let mut message = GenlMessage::from_payload(message);
    message.set_resolved_family_id(0x21);
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    header.sequence_number = 7;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.lines().map(|line| line.split("//").next().unwrap()).collect();
    let digits: Vec<char> = digits.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

fn web() -> Virtual {
    Virtual::Address { protocol: Protocol::Tcp, address: "10.96.0.10:443".parse().unwrap() }
}

#[cfg(target_endian = "little")]
#[test]
fn the_message_for_a_new_service_equals_the_one_of_ipvsadm() {
    let scheduling = Scheduling { scheduler: "rr".to_owned(), flags: 1, timeout: 10_800, netmask: u32::MAX };
    let golden = "
        68000000 2100 0500 07000000 00000000 // header: length, family, request and ack, sequence, port
        01 01 0000                           // new service, version 1
        5400 0180                            // the service, nested
        0600 0100 0200 0000                  // AF_INET
        0600 0200 0600 0000                  // TCP
        1400 0300 0a60000a 00000000 00000000 00000000
        0600 0400 01bb 0000                  // port 443
        0700 0600 727200 00                  // rr
        0c00 0700 01000000 ffffffff          // persistent, of all flags
        0800 0800 302a0000                   // 10800 s
        0800 0900 ffffffff                   // /32
    ";
    assert_eq!(bytes(Message::describe(Command::NewService, &web(), &scheduling)), hex(golden));
}

#[cfg(target_endian = "little")]
#[test]
fn the_message_for_a_new_server_of_a_marked_service_equals_the_one_of_ipvsadm() {
    let service = Virtual::Mark { family: Family::V6, mark: 0x4d00_0001 };
    let server = Server { weight: 1, method: 0 };
    let message =
        Message::of(Command::NewServer, &service).described_server("[fd00::7]:8080".parse().unwrap(), server);
    let golden = "
        70000000 2100 0500 07000000 00000000
        05 01 0000                           // new server
        1400 0180                            // the service, nested
        0600 0100 0a00 0000                  // AF_INET6
        0800 0500 0100004d                   // the mark
        4800 0280                            // the server, nested
        1400 0100 fd000000 00000000 00000000 00000007
        0600 0200 1f90 0000                  // port 8080
        0600 0b00 0a00 0000                  // AF_INET6
        0800 0300 00000000                   // masquerading
        0800 0400 01000000                   // weight 1
        0800 0500 00000000                   // no thresholds
        0800 0600 00000000
    ";
    assert_eq!(bytes(message), hex(golden));
}

#[test]
fn a_written_service_is_read_back_unchanged() {
    for (service, netmask) in [
        (web(), u32::MAX),
        (Virtual::Address { protocol: Protocol::Sctp, address: "[fd00::1]:9".parse().unwrap() }, 128),
        (Virtual::Mark { family: Family::V4, mark: 0x4d10_0002 }, u32::MAX),
    ] {
        let scheduling = Scheduling { scheduler: "mh".to_owned(), flags: 0x18, timeout: 0, netmask };
        let message = Message::describe(Command::NewService, &service, &scheduling);
        assert_eq!(message.service().unwrap(), Some((service, scheduling)));
    }
}

#[test]
fn the_flag_that_only_the_kernel_sets_is_left_out() {
    let scheduling = Scheduling { scheduler: "rr".to_owned(), flags: HASHED | 1, timeout: 9, netmask: 0 };
    let (_, read) = Message::describe(Command::NewService, &web(), &scheduling).service().unwrap().unwrap();
    assert_eq!(read.flags, 1);
}

#[cfg(target_endian = "little")]
#[test]
fn the_traffic_of_clients_is_read_from_the_64_bit_counters() {
    let told = |attributes: &str| {
        let header = GenlHeader { cmd: Command::NewService as u8, version: 1 };
        Message::parse_with_param(&hex(attributes), header).unwrap().traffic().unwrap()
    };
    let whole = "
        5400 0180                            // the service, nested
        0600 0100 0200 0000                  // AF_INET
        0c00 0a00 0800 0200 63000000         // packets in, as a 32-bit counter
        3c00 0c00                            // the 64-bit counters
        0c00 0100 0300000000000000           // connections
        0c00 0200 0700000001000000           // packets in
        0c00 0300 0500000000000000           // packets out
        0c00 0400 9001000000000000           // bytes in
        0800 0600 09000000                   // connections per second
    ";
    assert_eq!(told(whole), Traffic { packets: (1 << 32) + 7, bytes: 400 });
    assert_eq!(told("0c00 0180 0600 0100 0200 0000"), Traffic::default());
}

#[test]
fn a_service_of_another_protocol_is_left_out() {
    let other = attribute::nested(
        ATTRIBUTE_SERVICE,
        &[attribute::u16(SERVICE_AF, 2), attribute::u16(SERVICE_PROTOCOL, 51)],
    );
    let message = Message { command: Command::NewService as u8, attributes: vec![other] };
    assert_eq!(message.service().unwrap(), None);
}

#[test]
fn a_truncated_message_does_not_panic() {
    let whole = bytes(Message::of(Command::NewServer, &web()).server("10.0.0.1:80".parse().unwrap()));
    for length in 20..whole.len() {
        let header = GenlHeader { cmd: 5, version: 1 };
        if let Ok(message) = Message::parse_with_param(whole.get(20..length).unwrap(), header) {
            let _ = (message.service(), message.told_server(Family::V4));
        }
    }
}
