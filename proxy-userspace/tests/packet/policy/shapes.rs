//! Frames that hide what is in them.

use millrace_lab::frame::{Extension, Frame, Layer, Vlan, flag, protocol};
use millrace_lab::program::DEVICE;
use proxy_common::policy::PolicyDirection;

use super::{ALLOWED, CLIENT, CLOSED, DENIED, PASSED, SERVED, UNREADABLE, World};
use crate::case::{Family, each_family};

each_family! {
    a_tagged_frame_is_unreadable
    other_types_of_frames_are_unreadable
    a_packet_longer_than_its_frame_is_unreadable
    a_packet_of_another_version_is_unreadable
    a_packet_without_ports_is_unreadable
    ports_in_the_padding_do_not_count
}

fn a_tagged_frame_is_unreadable(family: Family) {
    let syn = World::open(family).request(World::open(family).friend(), flag::SYN);
    for tags in [&[Vlan::customer(0)][..], &[Vlan::customer(5)], &[Vlan::service(5), Vlan::customer(5)]] {
        let mut world = World::new(family);
        assert_eq!(world.enter(&syn.clone().tagged(tags)), UNREADABLE);
        assert_eq!(world.leave(&syn.clone().reply().tagged(tags)), UNREADABLE);
        let mut world = World::open(family);
        assert_eq!(world.enter(&syn.clone().tagged(tags)), PASSED);
        // The node would take one whose two tags are priorities, with any source.
        assert_eq!(world.leave(&syn.clone().reply().tagged(tags)), UNREADABLE);
    }
}

fn other_types_of_frames_are_unreadable(family: Family) {
    for ethertype in [0x8847, 0x8864, 0x88b5, 0x8035, 0] {
        let frame = Frame { ethertype: Some(ethertype), ..Frame::ethernet() }.payload(vec![0; 60]);
        let mut world = World::new(family);
        assert_eq!((world.enter(&frame), world.leave(&frame)), (UNREADABLE, UNREADABLE));
        let mut world = World::open(family);
        assert_eq!((world.enter(&frame), world.leave(&frame)), (PASSED, PASSED));
    }
}

/// Sends the bytes of a packet of the friend, and those of the answer.
#[track_caller]
fn send_both(world: &mut World, change: impl Fn(&mut Vec<u8>)) -> [super::Passage; 2] {
    let syn = world.request(world.friend(), flag::SYN);
    [(PolicyDirection::Ingress, syn.clone()), (PolicyDirection::Egress, syn.reply())].map(
        |(direction, frame)| {
            let mut bytes = frame.build().to_vec();
            change(&mut bytes);
            world.bed.send_bytes(direction, DEVICE, &bytes)
        },
    )
}

fn a_packet_longer_than_its_frame_is_unreadable(family: Family) {
    let at = if family == Family::V4 { 16 } else { 18 };
    let change = |bytes: &mut Vec<u8>| bytes[at..at + 2].copy_from_slice(&2000_u16.to_be_bytes());
    assert_eq!(send_both(&mut World::new(family), change), [UNREADABLE; 2]);
    assert_eq!(send_both(&mut World::open(family), change), [PASSED; 2]);
    let change = |bytes: &mut Vec<u8>| bytes[at..at + 2].copy_from_slice(&0_u16.to_be_bytes());
    assert_eq!(send_both(&mut World::new(family), change), [UNREADABLE; 2]);
}

fn a_packet_of_another_version_is_unreadable(family: Family) {
    let version = if family == Family::V4 { 0x65 } else { 0x40 };
    let change = |bytes: &mut Vec<u8>| bytes[14] = version;
    assert_eq!(send_both(&mut World::new(family), change), [UNREADABLE; 2]);
    assert_eq!(send_both(&mut World::open(family), change), [PASSED; 2]);
}

fn a_packet_without_ports_is_unreadable(family: Family) {
    let mut world = World::new(family);
    for (number, bytes) in [(protocol::TCP, 13), (protocol::UDP, 3), (protocol::SCTP, 12)] {
        let mut frame = world.incoming(world.friend()).payload(vec![0; bytes]);
        match frame.outermost_mut() {
            Layer::Ipv4(ip) => ip.protocol = Some(number),
            Layer::Ipv6(ip) => ip.protocol = Some(number),
            other => panic!("{other:?}"),
        }
        assert_eq!(world.enter(&frame), UNREADABLE);
    }
}

fn ports_in_the_padding_do_not_count(family: Family) {
    let mut world = World::new(family);
    let whole = world.request(world.friend(), flag::SYN).build();
    let mut frame = world.incoming(world.friend());
    match frame.outermost_mut() {
        Layer::Ipv4(ip) => ip.protocol = Some(protocol::TCP),
        Layer::Ipv6(ip) => ip.protocol = Some(protocol::TCP),
        other => panic!("{other:?}"),
    }
    frame.trailer = whole.slice(whole.len() - 20..);
    assert_eq!(world.enter(&frame), UNREADABLE);
}

#[test]
fn ipv4_options_are_unreadable() {
    // Loose source routing, and a plain NOP.
    for options in [&[0x83, 7, 4, 10, 2, 0, 2, 0][..], &[1; 4]] {
        let with_options = |mut frame: Frame| {
            match frame.outermost_mut() {
                Layer::Ipv4(ip) => ip.options = options.to_vec().into(),
                other => panic!("{other:?}"),
            }
            frame
        };
        let mut world = World::new(Family::V4);
        let syn = world.request(world.friend(), flag::SYN);
        assert_eq!(world.enter(&with_options(syn.clone())), UNREADABLE);
        assert_eq!(world.leave(&with_options(syn.clone().reply())), UNREADABLE);
        let mut world = World::open(Family::V4);
        assert_eq!(world.enter(&with_options(syn.clone())), PASSED);
        assert_eq!(world.leave(&with_options(syn.reply())), PASSED);
    }
}

#[test]
fn an_ipv4_header_of_less_than_five_words_is_unreadable() {
    let change = |bytes: &mut Vec<u8>| bytes[14] = 0x44;
    assert_eq!(send_both(&mut World::new(Family::V4), change), [UNREADABLE; 2]);
    assert_eq!(send_both(&mut World::open(Family::V4), change), [PASSED; 2]);
}

/// A packet behind extension headers.
fn behind(world: &World, headers: &[Extension], port: u16) -> Frame {
    let frame = world.incoming(world.friend());
    headers.iter().fold(frame, |frame, header| frame.layer(header.clone())).tcp(CLIENT, port, flag::SYN)
}

#[test]
fn ports_behind_extension_headers_are_read() {
    let chains = [
        vec![Extension::hop_by_hop(1)],
        vec![Extension::hop_by_hop(2), Extension::destination_options(3), Extension::routing()],
        vec![Extension::destination_options(4); 6],
        vec![Extension::destination_options(200), Extension::destination_options(1)],
    ];
    for chain in chains {
        let mut world = World::new(Family::V6);
        assert_eq!(world.enter(&behind(&world, &chain, SERVED)), ALLOWED, "{chain:?}");
        assert_eq!(world.enter(&behind(&world, &chain, CLOSED)), DENIED, "{chain:?}");
        assert_eq!(world.leave(&behind(&world, &chain, SERVED).reply().with_flags(flag::ACK)), PASSED);
    }
}

#[test]
fn a_long_chain_of_headers_is_unreadable() {
    let chain = vec![Extension::destination_options(1); 7];
    let mut world = World::new(Family::V6);
    assert_eq!(world.enter(&behind(&world, &chain, SERVED)), UNREADABLE);
    assert_eq!(world.leave(&behind(&world, &chain, SERVED).reply()), UNREADABLE);
    let mut world = World::open(Family::V6);
    assert_eq!(world.enter(&behind(&world, &chain, SERVED)), PASSED);
    assert_eq!(world.leave(&behind(&world, &chain, SERVED).reply()), UNREADABLE);
}

#[test]
fn a_packet_that_is_to_be_routed_on_is_unreadable() {
    let mut routing = Extension::routing();
    let mut body = routing.body.to_vec();
    body[1] = 1;
    routing.body = body.into();
    let mut world = World::new(Family::V6);
    assert_eq!(world.enter(&behind(&world, &[routing.clone()], SERVED)), UNREADABLE);
    assert_eq!(world.leave(&behind(&world, &[routing.clone()], SERVED).reply()), UNREADABLE);
    let mut world = World::open(Family::V6);
    assert_eq!(world.leave(&behind(&world, &[routing], SERVED).reply()), PASSED);
}

#[test]
fn an_authentication_header_is_a_protocol_without_ports() {
    const AUTHENTICATION: u8 = 51;
    let mut world = World::new(Family::V6);
    let header = Extension { kind: AUTHENTICATION, body: vec![0; 22].into(), protocol: None };
    assert_eq!(world.enter(&behind(&world, std::slice::from_ref(&header), SERVED)), DENIED);
    world.bed.allow(super::TO_POD, super::FRIENDS, Some(AUTHENTICATION), None);
    assert_eq!(world.enter(&behind(&world, &[header], SERVED)), ALLOWED);
}

#[test]
fn a_header_that_ends_behind_the_packet_is_unreadable() {
    let mut world = World::new(Family::V6);
    let mut bytes = behind(&world, &[Extension::destination_options(1)], SERVED).build().to_vec();
    // The length of the options.
    bytes[55] = 100;
    assert_eq!(world.bed.send_bytes(PolicyDirection::Ingress, DEVICE, &bytes), UNREADABLE);
}
