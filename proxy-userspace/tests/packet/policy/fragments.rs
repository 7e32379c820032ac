//! Fragments: the first one is judged, and the others follow it.

use millrace_lab::frame::{Extension, Frame, Layer, flag};
use millrace_lab::program::DEVICE;
use proxy_common::fragment::FRAGMENT_SECONDS;
use proxy_common::policy::PolicyDirection;

use super::{ALLOWED, CLIENT, CLOSED, DENIED, PASSED, SERVED, UNREADABLE, World};
use crate::case::{Family, each_family};

each_family! {
    fragments_follow_the_first_one
    fragments_before_the_first_one_are_dropped
    fragments_of_a_denied_packet_are_dropped
    a_denied_first_fragment_ends_what_an_allowed_one_began
    fragments_are_known_by_all_that_their_packet_has
    fragments_are_awaited_for_a_time
    a_first_fragment_without_ports_and_flags_is_unreadable
    flags_in_the_padding_of_a_tiny_fragment_do_not_count
    a_fragment_that_overlaps_the_transport_header_is_unreadable
    fragments_of_an_open_pod_pass
    an_sctp_fragment_has_its_chunk
}

fn pieces(frame: &Frame, id: u32) -> Vec<Frame> {
    frame.fragments(id, 512)
}

fn datagram(world: &World, port: u16) -> Frame {
    world.incoming(world.friend()).udp(CLIENT, port).payload(vec![7; 1400])
}

fn fragments_follow_the_first_one(family: Family) {
    let mut world = World::new(family);
    let all = pieces(&datagram(&world, SERVED), 5);
    assert_eq!(all.len(), 3);
    assert_eq!(all.iter().map(|piece| world.enter(piece)).collect::<Vec<_>>(), [ALLOWED, PASSED, PASSED]);
    let all = pieces(&datagram(&world, SERVED).reply(), 6);
    assert_eq!(all.iter().map(|piece| world.leave(piece)).collect::<Vec<_>>(), [PASSED; 3]);
}

fn fragments_before_the_first_one_are_dropped(family: Family) {
    let mut world = World::new(family);
    let all = pieces(&datagram(&world, SERVED), 5);
    assert_eq!(world.enter(&all[1]), UNREADABLE);
    assert_eq!(world.enter(&all[0]), ALLOWED);
    assert_eq!(world.enter(&all[1]), PASSED);
}

fn fragments_of_a_denied_packet_are_dropped(family: Family) {
    let mut world = World::new(family);
    let all = pieces(&datagram(&world, CLOSED), 5);
    assert_eq!(world.enter(&all[0]), DENIED);
    assert_eq!(world.enter(&all[1]), UNREADABLE);
}

fn a_denied_first_fragment_ends_what_an_allowed_one_began(family: Family) {
    let mut world = World::new(family);
    let (allowed, denied) = (pieces(&datagram(&world, SERVED), 5), pieces(&datagram(&world, CLOSED), 5));
    assert_eq!(world.enter(&allowed[0]), ALLOWED);
    assert_eq!(world.enter(&denied[0]), DENIED);
    assert_eq!(world.enter(&denied[1]), UNREADABLE);
}

fn fragments_are_known_by_all_that_their_packet_has(family: Family) {
    let mut world = World::new(family);
    assert_eq!(world.enter(&pieces(&datagram(&world, SERVED), 5)[0]), ALLOWED);
    assert_eq!(world.enter(&pieces(&datagram(&world, SERVED), 6)[1]), UNREADABLE);
    let other = world.incoming(world.stranger()).udp(CLIENT, SERVED).payload(vec![7; 1400]);
    assert_eq!(world.enter(&pieces(&other, 5)[1]), UNREADABLE);
    // The same packet in the other direction.
    assert_eq!(world.leave(&pieces(&datagram(&world, SERVED).reply(), 5)[1]), UNREADABLE);
    if family == Family::V4 {
        let other = world.incoming(world.friend()).tcp(CLIENT, SERVED, flag::ACK).payload(vec![7; 1400]);
        assert_eq!(world.enter(&pieces(&other, 5)[1]), UNREADABLE);
    }
}

fn fragments_are_awaited_for_a_time(family: Family) {
    let mut world = World::new(family);
    let all = pieces(&datagram(&world, SERVED), 5);
    assert_eq!(world.enter(&all[0]), ALLOWED);
    world.bed.age(FRAGMENT_SECONDS - 2);
    assert_eq!(world.enter(&all[1]), PASSED);
    world.bed.age(4);
    assert_eq!(world.enter(&all[2]), UNREADABLE);
}

fn a_first_fragment_without_ports_and_flags_is_unreadable(family: Family) {
    let mut world = World::new(family);
    let syn = world.request(world.friend(), flag::SYN);
    // Eight bytes have the ports, but not the flags.
    let all = syn.fragments(5, 8);
    assert_eq!(world.enter(&all[0]), UNREADABLE);
    assert_eq!(world.enter(&all[2]), UNREADABLE);
    assert_eq!(world.enter(&syn.fragments(6, 16)[0]), ALLOWED);
}

fn flags_in_the_padding_of_a_tiny_fragment_do_not_count(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    let syn = world.call(world.friend(), flag::SYN).reply();
    let mut tiny = syn.clone().fragments(5, 8).remove(0);
    // Where the flags would be: those of an answer.
    tiny.trailer = vec![flag::ACK; 12].into();
    assert_eq!(world.enter(&tiny), UNREADABLE);
}

fn a_fragment_that_overlaps_the_transport_header_is_unreadable(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    let ack = world.call(world.friend(), flag::ACK).reply().payload(vec![0; 100]);
    assert_eq!(world.enter(&ack.fragments(5, 64)[0]), PASSED);
    // The second eight bytes have the flags.
    let syn = ack.with_flags(flag::SYN).fragments(5, 8);
    assert_eq!(world.enter(&syn[1]), UNREADABLE);
    assert_eq!(world.enter(&syn[2]), PASSED);
}

fn fragments_of_an_open_pod_pass(family: Family) {
    let mut world = World::open(family);
    let all = pieces(&datagram(&world, CLOSED), 5);
    assert_eq!(world.enter(&all[1]), PASSED);
    let all = pieces(&datagram(&world, CLOSED).reply(), 5);
    assert_eq!(world.leave(&all[1]), PASSED);
    assert_eq!(world.leave(&all[0]), PASSED);
}

fn an_sctp_fragment_has_its_chunk(family: Family) {
    let mut world = World::new(family);
    let frame = world.incoming(world.friend()).sctp(CLIENT, SERVED, 1).payload(vec![7; 400]);
    assert_eq!(world.enter(&frame.fragments(5, 8)[0]), UNREADABLE);
    assert_eq!(world.enter(&frame.fragments(5, 128)[0]), ALLOWED);
}

#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    let mut world = World::new(Family::V6);
    for (port, passage) in [(CLOSED, DENIED), (SERVED, ALLOWED)] {
        let frame = world.incoming(world.friend()).layer(Extension::fragment(0, false, 5));
        assert_eq!(world.enter(&frame.tcp(CLIENT, port, flag::SYN)), passage);
    }
    let later = world.incoming(world.friend()).layer(Extension::fragment(100, false, 5));
    assert_eq!(world.enter(&later.tcp(CLIENT, SERVED, flag::SYN)), UNREADABLE);
}

#[test]
fn options_behind_the_fragment_header_belong_to_the_first_fragment() {
    let mut world = World::new(Family::V6);
    let frame = world.incoming(world.friend()).layer(Extension::destination_options(1));
    let all = frame.udp(CLIENT, SERVED).payload(vec![7; 1400]).fragments(5, 512);
    assert_eq!(all.iter().map(|piece| world.enter(piece)).collect::<Vec<_>>(), [ALLOWED, PASSED, PASSED]);
}

#[test]
fn a_fragment_of_a_fragment_is_unreadable() {
    let mut world = World::new(Family::V6);
    let frame = world.incoming(world.friend()).layer(Extension::fragment(0, true, 5));
    let frame = frame.layer(Extension::fragment(0, false, 6)).udp(CLIENT, SERVED).payload(vec![7; 64]);
    assert_eq!(world.enter(&frame), UNREADABLE);
}

#[test]
fn the_first_fragment_of_an_unreadable_packet_is_not_awaited() {
    let mut world = World::new(Family::V4);
    let all = pieces(&datagram(&world, SERVED), 5);
    let mut first = all[0].clone();
    match first.outermost_mut() {
        Layer::Ipv4(ip) => ip.options = vec![1; 4].into(),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.bed.send(PolicyDirection::Ingress, DEVICE, &first), UNREADABLE);
    assert_eq!(world.enter(&all[1]), UNREADABLE);
}
