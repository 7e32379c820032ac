//! ICMP errors, which quote a packet of a connection.

use millrace_lab::frame::{Extension, Frame, Icmp, Layer, flag};

use super::{ALLOWED, ASKED, CLIENT, DENIED, PASSED, SERVED, World, at};
use crate::case::{Family, each_family};

each_family! {
    an_error_about_an_allowed_connection_passes_from_any_router
    an_error_about_no_connection_is_judged
    an_error_that_quotes_the_connection_of_another_pod_is_judged
    an_error_that_quotes_a_packet_to_the_pod_is_judged
    the_pods_own_errors_go_to_the_end_that_they_are_about
    an_error_about_a_denied_connection_is_judged
    an_error_about_an_echo_request_passes
    an_error_does_not_keep_an_exchange_alive
    an_error_that_quotes_a_later_fragment_is_judged
}

fn router(family: Family) -> std::net::IpAddr {
    family.pick("198.51.100.99", "2001:db8:51::99")
}

fn errors(family: Family) -> Vec<Icmp> {
    let kinds: &[u8] = if family == Family::V4 { &[3, 4, 11, 12] } else { &[1, 2, 3, 4] };
    kinds.iter().map(|kind| Icmp { kind: *kind, code: 0, rest: [0; 4] }).collect()
}

fn an_error_about_an_allowed_connection_passes_from_any_router(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    world.friend_connects();
    let sent = [world.call(world.friend(), flag::ACK), world.request(world.friend(), flag::ACK).reply()];
    for packet in sent {
        for error in errors(family) {
            assert_eq!(world.enter(&packet.icmp_error(router(family), error)), PASSED);
        }
        let other = Icmp { kind: 10, code: 0, rest: [0; 4] };
        assert_eq!(world.enter(&packet.icmp_error(router(family), other)), DENIED);
    }
}

fn an_error_about_no_connection_is_judged(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    let other = world.outgoing(world.friend()).tcp(CLIENT + 1, ASKED, flag::ACK);
    for error in errors(family) {
        assert_eq!(world.enter(&other.icmp_error(router(family), error)), DENIED);
    }
    // The node may send what it likes.
    assert_eq!(world.enter(&other.icmp_error(world.node(), errors(family)[0])), ALLOWED);
}

/// The error goes to the pod, whatever it quotes.
fn to_this_pod(world: &World, error: Frame) -> Frame {
    error.with_destination(at(world.pod(), 0))
}

fn an_error_that_quotes_the_connection_of_another_pod_is_judged(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    let foreign = world.call(world.friend(), flag::ACK).with_source(at(world.stranger(), CLIENT));
    let error = to_this_pod(&world, foreign.icmp_error(router(family), errors(family)[0]));
    assert_eq!(world.enter(&error), DENIED);
}

fn an_error_that_quotes_a_packet_to_the_pod_is_judged(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    let received = world.call(world.friend(), flag::ACK).reply();
    let error = to_this_pod(&world, received.icmp_error(router(family), errors(family)[0]));
    assert_eq!(world.enter(&error), DENIED);
}

fn the_pods_own_errors_go_to_the_end_that_they_are_about(family: Family) {
    let mut world = World::new(family);
    world.friend_connects();
    let pod = world.pod();
    let received = world.request(world.friend(), flag::ACK);
    for error in errors(family) {
        let error = received.icmp_error(pod, error);
        assert_eq!(world.leave(&error), PASSED);
        assert_eq!(world.leave(&error.with_destination(at(world.stranger(), 0))), DENIED);
    }
    let other = world.incoming(world.friend()).tcp(CLIENT + 1, SERVED, flag::ACK);
    assert_eq!(world.leave(&other.icmp_error(pod, errors(family)[0])), DENIED);
}

fn an_error_about_a_denied_connection_is_judged(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    world.bed.forget_rules();
    let error = world.call(world.friend(), flag::ACK).icmp_error(router(family), errors(family)[0]);
    assert_eq!(world.enter(&error), PASSED);
    world.bed.set_generation(2);
    assert_eq!(world.enter(&error), DENIED);
}

fn an_error_about_an_echo_request_passes(family: Family) {
    let mut world = World::new(family);
    let number = if family == Family::V4 { 1 } else { 58 };
    world.bed.allow(super::FROM_POD, super::FRIENDS, Some(number), None);
    let request = world.echo(world.outgoing(world.friend()), false, 7);
    assert_eq!(world.leave(&request), ALLOWED);
    assert_eq!(world.enter(&request.icmp_error(router(family), errors(family)[0])), PASSED);
    let other = world.echo(world.outgoing(world.friend()), false, 8);
    assert_eq!(world.enter(&other.icmp_error(router(family), errors(family)[0])), DENIED);
}

fn an_error_does_not_keep_an_exchange_alive(family: Family) {
    let mut world = World::new(family);
    let asked = world.outgoing(world.friend()).udp(CLIENT, ASKED);
    assert_eq!(world.leave(&asked), ALLOWED);
    for passage in [PASSED, DENIED] {
        world.bed.age(70);
        assert_eq!(world.enter(&asked.icmp_error(router(family), errors(family)[0])), passage);
    }
}

fn an_error_that_quotes_a_later_fragment_is_judged(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    let mut quoted = world.call(world.friend(), flag::ACK);
    match quoted.outermost_mut() {
        Layer::Ipv4(ip) => ip.fragment_offset = 100,
        _ => quoted.layers.insert(1, Extension::fragment(100, false, 5).into()),
    }
    assert_eq!(world.enter(&quoted.icmp_error(router(family), errors(family)[0])), DENIED);
}
