//! TCP and SCTP.

use millrace_lab::frame::{chunk, flag, protocol};
use millrace_lab::program::DEVICE;
use proxy_common::policy::{NOT_ISOLATED, PolicyDirection, PolicyDrop};

use super::{ALLOWED, ASKED, CLIENT, CLOSED, DENIED, FRIENDS, FROM_POD, PASSED, SERVED, TO_POD, World, now};
use crate::case::{Family, each_family};
use crate::network::{connect_to_nodes, in_an_empty_namespace};

each_family! {
    a_friend_reaches_the_served_port_and_is_answered
    the_pod_reaches_a_friends_port_and_is_answered
    an_open_pod_is_reached_by_everyone_and_leaves_no_entry
    an_isolated_direction_leaves_the_other_one_open
    a_syn_is_judged_whatever_is_known_of_its_ports
    a_denied_syn_leaves_the_entry_of_an_allowed_connection
    just_after_the_isolation_a_packet_in_the_midst_of_a_connection_needs_no_entry
    just_after_the_isolation_a_packet_is_no_reply_if_both_directions_deny
    later_a_pod_sends_no_replies_to_what_it_was_not_asked
    new_tables_judge_a_connection_again
    a_denied_connection_stays_denied_in_both_directions
    a_denied_connection_is_allowed_again_by_later_tables
    a_connection_is_judged_again_by_the_end_that_opened_it
    another_pod_with_the_same_address_inherits_nothing
    tcp_connections_have_no_age
    rules_of_any_port_and_any_protocol_hold
    the_own_node_reaches_the_pod_but_not_the_other_way_round
    an_sctp_association_is_opened_by_init
    a_connection_keeps_its_number_of_packets_out_of_the_counters
    a_drop_is_recorded
    packets_that_are_not_linear_are_read
}

fn a_friend_reaches_the_served_port_and_is_answered(family: Family) {
    let mut world = World::new(family);
    let (friend, stranger) = (world.friend(), world.stranger());
    assert_eq!(world.enter(&world.request(stranger, flag::SYN)), DENIED);
    assert_eq!(world.enter(&world.incoming(friend).tcp(CLIENT, CLOSED, flag::SYN)), DENIED);
    assert_eq!(world.enter(&world.incoming(friend).udp(CLIENT, CLOSED)), DENIED);
    world.friend_connects();
    let ack = world.request(friend, flag::ACK);
    assert_eq!(world.enter(&ack), PASSED);
    assert_eq!(world.leave(&ack.reply()), PASSED);
}

fn the_pod_reaches_a_friends_port_and_is_answered(family: Family) {
    let mut world = World::new(family);
    let (friend, stranger) = (world.friend(), world.stranger());
    assert_eq!(world.leave(&world.call(stranger, flag::SYN)), DENIED);
    assert_eq!(world.leave(&world.outgoing(friend).tcp(CLIENT, SERVED, flag::SYN)), DENIED);
    world.pod_connects();
    let ack = world.call(friend, flag::ACK);
    assert_eq!(world.leave(&ack), PASSED);
    assert_eq!(world.enter(&ack.reply()), PASSED);
}

fn an_open_pod_is_reached_by_everyone_and_leaves_no_entry(family: Family) {
    let mut world = World::open(family);
    let request = world.request(world.stranger(), flag::SYN);
    assert_eq!(world.enter(&request), PASSED);
    assert_eq!(world.leave(&request.reply()), PASSED);
    assert_eq!(world.leave(&world.outgoing(world.stranger()).udp(1, 2)), PASSED);
    assert_eq!(world.flows(), 0);
}

fn an_isolated_direction_leaves_the_other_one_open(family: Family) {
    let mut world = World::with_profiles(family, TO_POD, NOT_ISOLATED);
    let stranger = world.stranger();
    let syn = world.call(stranger, flag::SYN);
    assert_eq!(world.leave(&syn), ALLOWED);
    assert_eq!(world.enter(&syn.reply().with_flags(flag::SYN | flag::ACK)), PASSED);
    assert_eq!(world.enter(&world.request(stranger, flag::SYN)), DENIED);

    let mut world = World::with_profiles(family, NOT_ISOLATED, FROM_POD);
    let syn = world.request(stranger, flag::SYN);
    assert_eq!(world.enter(&syn), ALLOWED);
    assert_eq!(world.leave(&syn.reply().with_flags(flag::SYN | flag::ACK)), PASSED);
    assert_eq!(world.leave(&world.call(stranger, flag::SYN)), DENIED);
}

fn a_syn_is_judged_whatever_is_known_of_its_ports(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    // The server's own SYN, by the ports of the connection that it was allowed to answer.
    let syn = world.call(world.friend(), flag::SYN).reply();
    assert_eq!(world.enter(&syn), DENIED);
    assert_eq!(world.enter(&syn.clone().with_flags(flag::SYN | flag::FIN)), DENIED);
    assert_eq!(world.enter(&syn.with_flags(flag::SYN | flag::RST)), DENIED);
    let mut world = World::new(family);
    world.friend_connects();
    assert_eq!(world.leave(&world.request(world.friend(), flag::SYN).reply()), DENIED);
}

fn a_denied_syn_leaves_the_entry_of_an_allowed_connection(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    let ack = world.call(world.friend(), flag::ACK);
    assert_eq!(world.enter(&ack.clone().with_flags(flag::SYN).reply()), DENIED);
    assert_eq!(world.leave(&ack), PASSED);
    assert_eq!(world.enter(&ack.reply()), PASSED);
}

fn just_after_the_isolation_a_packet_in_the_midst_of_a_connection_needs_no_entry(family: Family) {
    let friend = World::new(family).friend();
    // Both ends of both connections, each as the first packet.
    let mut world = World::lenient(family);
    assert_eq!(world.enter(&world.request(friend, flag::ACK)), ALLOWED);
    assert_eq!(world.leave(&world.request(friend, flag::ACK).reply()), PASSED);
    let mut world = World::lenient(family);
    assert_eq!(world.leave(&world.request(friend, flag::ACK).reply()), ALLOWED);
    assert_eq!(world.enter(&world.request(friend, flag::ACK)), PASSED);
    let mut world = World::lenient(family);
    assert_eq!(world.enter(&world.call(friend, flag::ACK).reply()), ALLOWED);
    assert_eq!(world.leave(&world.call(friend, flag::ACK)), PASSED);
    // The entry knows who has opened.
    world.bed.forget_rules();
    world.bed.allow(FROM_POD, FRIENDS, Some(protocol::TCP), Some(ASKED));
    world.bed.set_generation(2);
    assert_eq!(world.enter(&world.call(friend, flag::ACK).reply()), PASSED);
    assert_eq!(world.enter(&world.call(friend, flag::SYN).reply()), DENIED);
}

fn just_after_the_isolation_a_packet_is_no_reply_if_both_directions_deny(family: Family) {
    let mut world = World::lenient(family);
    let stranger = world.stranger();
    for flags in [flag::ACK, flag::RST, flag::FIN | flag::ACK, flag::SYN | flag::ACK, 0] {
        assert_eq!(world.enter(&world.request(stranger, flags)), DENIED);
        assert_eq!(world.leave(&world.request(stranger, flags).reply()), DENIED);
    }
    assert_eq!(world.enter(&world.incoming(world.friend()).tcp(CLIENT, CLOSED, flag::ACK)), DENIED);
    assert_eq!(world.flows(), 0);
}

fn later_a_pod_sends_no_replies_to_what_it_was_not_asked(family: Family) {
    let mut world = World::with_profiles(family, NOT_ISOLATED, FROM_POD);
    let request = world.request(world.stranger(), flag::ACK);
    for lenient_until in [0, now(), now().wrapping_sub(1 << 20)] {
        world.set_pod_until(1, NOT_ISOLATED, FROM_POD, lenient_until);
        assert_eq!(world.leave(&request.clone().reply()), DENIED);
    }
    world.set_pod_until(1, NOT_ISOLATED, FROM_POD, now() + 30);
    assert_eq!(world.leave(&request.clone().reply()), ALLOWED);
    // Another pod, and the client's next packet enters the connection.
    world.set_pod_until(2, NOT_ISOLATED, FROM_POD, 0);
    assert_eq!(world.leave(&request.clone().reply()), DENIED);
    assert_eq!(world.enter(&request), ALLOWED);
    assert_eq!(world.leave(&request.reply()), PASSED);
}

fn new_tables_judge_a_connection_again(family: Family) {
    let mut world = World::new(family);
    world.friend_connects();
    let ack = world.request(world.friend(), flag::ACK);
    world.bed.set_generation(2);
    assert_eq!(world.enter(&ack), PASSED);
    world.bed.forget_rules();
    // By the same tables the entry holds.
    assert_eq!(world.enter(&ack), PASSED);
    world.bed.set_generation(3);
    assert_eq!(world.leave(&ack.reply()), DENIED);
}

fn a_denied_connection_stays_denied_in_both_directions(family: Family) {
    let mut world = World::new(family);
    world.friend_connects();
    world.bed.forget_rules();
    // As a connection of the pod it would be allowed.
    world.bed.allow(FROM_POD, FRIENDS, Some(protocol::TCP), None);
    world.bed.set_generation(2);
    let ack = world.request(world.friend(), flag::ACK);
    for _ in 0..2 {
        assert_eq!(world.leave(&ack.clone().reply()), DENIED);
        assert_eq!(world.enter(&ack), DENIED);
    }
    assert_eq!(world.flows(), 1);
}

fn a_denied_connection_is_allowed_again_by_later_tables(family: Family) {
    let mut world = World::new(family);
    world.friend_connects();
    world.bed.forget_rules();
    world.bed.set_generation(2);
    let ack = world.request(world.friend(), flag::ACK);
    assert_eq!(world.enter(&ack), DENIED);
    world.bed.allow(TO_POD, FRIENDS, None, None);
    world.bed.set_generation(3);
    assert_eq!(world.leave(&ack.reply()), PASSED);
}

fn a_connection_is_judged_again_by_the_end_that_opened_it(family: Family) {
    let mut world = World::new(family);
    world.friend_connects();
    world.pod_connects();
    world.bed.forget_rules();
    world.bed.allow(FROM_POD, FRIENDS, Some(protocol::TCP), Some(ASKED));
    world.bed.set_generation(2);
    let friend = world.friend();
    assert_eq!(world.enter(&world.call(friend, flag::ACK).reply()), PASSED);
    assert_eq!(world.leave(&world.request(friend, flag::ACK).reply()), DENIED);
    world.bed.forget_rules();
    world.bed.allow(TO_POD, FRIENDS, Some(protocol::TCP), Some(SERVED));
    world.bed.set_generation(3);
    assert_eq!(world.enter(&world.call(friend, flag::ACK).reply()), DENIED);
    assert_eq!(world.leave(&world.request(friend, flag::ACK).reply()), PASSED);
}

fn another_pod_with_the_same_address_inherits_nothing(family: Family) {
    let mut world = World::new(family);
    world.friend_connects();
    world.bed.forget_rules();
    let ack = world.request(world.friend(), flag::ACK);
    assert_eq!(world.enter(&ack), PASSED);
    world.set_pod(2, TO_POD, FROM_POD);
    assert_eq!(world.enter(&ack), DENIED);
    assert_eq!(world.leave(&ack.reply()), DENIED);
}

fn tcp_connections_have_no_age(family: Family) {
    let mut world = World::new(family);
    world.friend_connects();
    world.bed.forget_rules();
    world.bed.age(1_000_000);
    assert_eq!(world.enter(&world.request(world.friend(), flag::ACK)), PASSED);
}

fn rules_of_any_port_and_any_protocol_hold(family: Family) {
    let mut world = World::with_profiles(family, TO_POD, FROM_POD);
    let friend = world.friend();
    world.bed.allow(TO_POD, FRIENDS, Some(protocol::TCP), None);
    assert_eq!(world.enter(&world.incoming(friend).tcp(CLIENT, 1, flag::SYN)), ALLOWED);
    assert_eq!(world.enter(&world.incoming(friend).udp(CLIENT, 1)), DENIED);
    world.bed.allow(TO_POD, FRIENDS, None, None);
    assert_eq!(world.enter(&world.incoming(friend).udp(CLIENT, 1)), ALLOWED);
    assert_eq!(world.enter(&world.incoming(world.stranger()).udp(CLIENT, 1)), DENIED);
    assert_eq!(world.leave(&world.outgoing(friend).udp(CLIENT, 2)), DENIED);
}

fn the_own_node_reaches_the_pod_but_not_the_other_way_round(family: Family) {
    let mut world = World::new(family);
    let probe = world.incoming(world.node()).tcp(CLIENT, CLOSED, flag::SYN);
    assert_eq!(world.enter(&probe), ALLOWED);
    assert_eq!(world.leave(&probe.reply().with_flags(flag::SYN | flag::ACK)), PASSED);
    assert_eq!(world.leave(&world.call(world.node(), flag::SYN)), DENIED);
}

fn an_sctp_association_is_opened_by_init(family: Family) {
    let mut world = World::new(family);
    let (friend, stranger) = (world.friend(), world.stranger());
    let init = world.incoming(friend).sctp(CLIENT, SERVED, chunk::INIT);
    assert_eq!(world.enter(&world.incoming(stranger).sctp(CLIENT, SERVED, chunk::INIT)), DENIED);
    assert_eq!(world.enter(&world.incoming(stranger).sctp(CLIENT, SERVED, chunk::DATA)), DENIED);
    assert_eq!(world.enter(&init), ALLOWED);
    assert_eq!(world.leave(&init.clone().reply().with_chunk(chunk::INIT_ACK)), PASSED);
    assert_eq!(world.leave(&init.reply()), DENIED);
    let mut world = World::lenient(family);
    assert_eq!(world.leave(&world.incoming(friend).sctp(CLIENT, SERVED, chunk::DATA).reply()), ALLOWED);
}

fn a_connection_keeps_its_number_of_packets_out_of_the_counters(family: Family) {
    let mut world = World::new(family);
    world.friend_connects();
    // `send` tells a packet by an entry from one that a judgement allowed.
    for _ in 0..3 {
        assert_eq!(world.enter(&world.request(world.friend(), flag::ACK)), PASSED);
    }
}

fn a_drop_is_recorded(family: Family) {
    let mut world = World::new(family);
    let syn = world.request(world.stranger(), flag::SYN);
    assert_eq!(world.enter(&syn), DENIED);
    assert_eq!(world.leave(&world.outgoing(world.stranger()).udp(5, 6)), DENIED);
    let events = world.bed.events();
    assert_eq!(events.len(), 2);
    let mapped = proxy_common::addr::mapped;
    let event = events[0];
    assert_eq!((event.device, event.reserved), (DEVICE, 0));
    assert_eq!(event.length as usize, syn.build().len());
    assert_eq!((event.source, event.destination), (mapped(world.stranger()), mapped(world.pod())));
    assert_eq!((u16::from_be(event.source_port), u16::from_be(event.destination_port)), (CLIENT, SERVED));
    assert_eq!(event.protocol, protocol::TCP);
    assert_eq!((event.direction, event.reason), (PolicyDirection::Ingress as u8, PolicyDrop::Denied as u8));
    let event = events[1];
    assert_eq!((event.source, event.destination), (mapped(world.pod()), mapped(world.stranger())));
    assert_eq!((u16::from_be(event.source_port), u16::from_be(event.destination_port)), (5, 6));
    assert_eq!(event.direction, PolicyDirection::Egress as u8);
    assert!(event.sequence > 0 && event.at > 0);
}

fn packets_that_are_not_linear_are_read(family: Family) {
    let mut world = World::new(family);
    let header = if family == Family::V4 { 34 } else { 54 };
    in_an_empty_namespace(|| {
        // The loopback device has the number of the pod's device.
        connect_to_nodes(family.node(1));
        for (port, passage) in [(SERVED, ALLOWED), (CLOSED, DENIED)] {
            let frame = world.incoming(world.friend()).tcp(CLIENT, port, flag::SYN).payload(vec![0; 6000]);
            for linear in [14, header - 2, header, header + 3, header + 12] {
                let seen = world.bed.send_paged("lo", &frame.build(), linear);
                assert_eq!(seen, passage, "{linear} bytes are linear");
            }
        }
    });
}
