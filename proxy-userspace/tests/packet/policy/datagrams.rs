//! UDP, echo and protocols without ports: whoever sends first has opened an exchange.

use millrace_lab::frame::{Frame, Icmp, protocol};
use proxy_common::policy::{DATAGRAM_SECONDS, ECHO_SECONDS, NOT_ISOLATED, OPENED_BY_POD, PolicyFlow};

use super::{ALLOWED, ASKED, CLIENT, DENIED, FRIENDS, FROM_POD, PASSED, SERVED, TO_POD, World};
use crate::case::{Family, each_family};

each_family! {
    a_datagram_is_answered_and_an_unasked_one_is_not
    an_exchange_ends_after_a_silence
    each_packet_of_an_exchange_begins_its_time_anew
    a_denied_exchange_ends_although_it_goes_on
    an_echo_request_is_answered_by_its_identifier
    the_peer_that_answers_may_not_ask
    an_answer_that_nobody_asked_for_opens_nothing
    an_echo_exchange_ends_after_a_silence
    an_echo_exchange_is_judged_again_without_a_port
    other_messages_are_judged_one_by_one
    a_protocol_without_ports_is_an_exchange
}

fn asked(world: &World) -> Frame {
    world.outgoing(world.friend()).udp(CLIENT, ASKED)
}

fn a_datagram_is_answered_and_an_unasked_one_is_not(family: Family) {
    let mut world = World::new(family);
    let asked = asked(&world);
    assert_eq!(world.enter(&asked.clone().reply()), DENIED);
    assert_eq!(world.leave(&asked), ALLOWED);
    assert_eq!(world.enter(&asked.clone().reply()), PASSED);
    assert_eq!(world.leave(&asked), PASSED);
    let other = world.incoming(world.friend()).udp(ASKED, CLIENT + 1);
    assert_eq!(world.enter(&other), DENIED);
    assert_eq!(world.enter(&world.incoming(world.friend()).udp(CLIENT, SERVED)), ALLOWED);
}

fn an_exchange_ends_after_a_silence(family: Family) {
    let mut world = World::new(family);
    let asked = asked(&world);
    assert_eq!(world.leave(&asked), ALLOWED);
    world.bed.age(DATAGRAM_SECONDS - 5);
    assert_eq!(world.enter(&asked.clone().reply()), PASSED);
    world.bed.age(DATAGRAM_SECONDS + 2);
    assert_eq!(world.enter(&asked.clone().reply()), DENIED);
    assert_eq!(world.leave(&asked), ALLOWED);
}

fn each_packet_of_an_exchange_begins_its_time_anew(family: Family) {
    let mut world = World::new(family);
    let asked = asked(&world);
    assert_eq!(world.leave(&asked), ALLOWED);
    for _ in 0..3 {
        world.bed.age(DATAGRAM_SECONDS / 2 + 10);
        assert_eq!(world.enter(&asked.clone().reply()), PASSED);
    }
}

fn a_denied_exchange_ends_although_it_goes_on(family: Family) {
    let mut world = World::new(family);
    let asked = asked(&world);
    assert_eq!(world.leave(&asked), ALLOWED);
    world.bed.forget_rules();
    world.bed.allow(TO_POD, FRIENDS, None, None);
    world.bed.set_generation(2);
    world.bed.age(DATAGRAM_SECONDS / 2 + 10);
    // The pod has opened it, so what the friend may open does not matter.
    assert_eq!(world.enter(&asked.clone().reply()), DENIED);
    assert_eq!(world.enter(&asked.clone().reply()), DENIED);
    world.bed.age(DATAGRAM_SECONDS / 2 + 10);
    assert_eq!(world.enter(&asked.reply()), ALLOWED);
}

fn allow_icmp(world: &mut World, profile: u32) {
    let number = if world.family == Family::V4 { protocol::ICMP } else { protocol::ICMP6 };
    world.bed.allow(profile, FRIENDS, Some(number), Some(0));
}

fn an_echo_request_is_answered_by_its_identifier(family: Family) {
    let mut world = World::new(family);
    let (friend, stranger) = (world.friend(), world.stranger());
    let request = world.echo(world.outgoing(friend), false, 7);
    assert_eq!(world.leave(&request), DENIED);
    allow_icmp(&mut world, FROM_POD);
    assert_eq!(world.leave(&request), ALLOWED);
    assert_eq!(world.enter(&world.echo(world.incoming(friend), true, 7)), PASSED);
    assert_eq!(world.enter(&world.echo(world.incoming(friend), true, 8)), DENIED);
    assert_eq!(world.enter(&world.echo(world.incoming(stranger), true, 7)), DENIED);
}

fn the_peer_that_answers_may_not_ask(family: Family) {
    let mut world = World::new(family);
    let friend = world.friend();
    allow_icmp(&mut world, FROM_POD);
    assert_eq!(world.leave(&world.echo(world.outgoing(friend), false, 7)), ALLOWED);
    assert_eq!(world.enter(&world.echo(world.incoming(friend), false, 7)), DENIED);
    let mut world = World::new(family);
    allow_icmp(&mut world, TO_POD);
    assert_eq!(world.enter(&world.echo(world.incoming(friend), false, 7)), ALLOWED);
    assert_eq!(world.leave(&world.echo(world.outgoing(friend), false, 7)), DENIED);
    assert_eq!(world.leave(&world.echo(world.outgoing(friend), true, 7)), PASSED);
}

fn an_answer_that_nobody_asked_for_opens_nothing(family: Family) {
    let mut world = World::new(family);
    let friend = world.friend();
    allow_icmp(&mut world, TO_POD);
    assert_eq!(world.enter(&world.echo(world.incoming(friend), true, 7)), ALLOWED);
    assert_eq!(world.flows(), 0);
    assert_eq!(world.leave(&world.echo(world.outgoing(friend), false, 7)), DENIED);
}

fn an_echo_exchange_ends_after_a_silence(family: Family) {
    let mut world = World::new(family);
    let friend = world.friend();
    allow_icmp(&mut world, FROM_POD);
    assert_eq!(world.leave(&world.echo(world.outgoing(friend), false, 7)), ALLOWED);
    world.bed.age(ECHO_SECONDS + 2);
    assert_eq!(world.enter(&world.echo(world.incoming(friend), true, 7)), DENIED);
}

fn an_echo_exchange_is_judged_again_without_a_port(family: Family) {
    let mut world = World::new(family);
    let friend = world.friend();
    let number = if family == Family::V4 { protocol::ICMP } else { protocol::ICMP6 };
    world.bed.allow(FROM_POD, FRIENDS, Some(number), Some(0));
    assert_eq!(world.leave(&world.echo(world.outgoing(friend), false, 7)), ALLOWED);
    world.bed.set_generation(2);
    assert_eq!(world.enter(&world.echo(world.incoming(friend), true, 7)), PASSED);
    world.bed.forget_rules();
    world.bed.set_generation(3);
    assert_eq!(world.enter(&world.echo(world.incoming(friend), true, 7)), DENIED);
}

fn other_messages_are_judged_one_by_one(family: Family) {
    let mut world = World::new(family);
    let friend = world.friend();
    // A time stamp request, and a node information query.
    let kind = if family == Family::V4 { 13 } else { 139 };
    let message = |frame: Frame| frame.layer(Icmp { kind, code: 0, rest: [0; 4] });
    let (incoming, outgoing) = (message(world.incoming(friend)), message(world.outgoing(friend)));
    assert_eq!(world.enter(&incoming), DENIED);
    allow_icmp(&mut world, TO_POD);
    assert_eq!(world.enter(&incoming), ALLOWED);
    assert_eq!(world.leave(&outgoing), DENIED);
    assert_eq!(world.flows(), 0);
    let mut world = World::with_profiles(family, NOT_ISOLATED, FROM_POD);
    assert_eq!(world.enter(&incoming), ALLOWED);
    assert_eq!(world.leave(&outgoing), DENIED);
}

fn a_protocol_without_ports_is_an_exchange(family: Family) {
    const GRE: u8 = 47;
    let mut world = World::new(family);
    let friend = world.friend();
    let gre = |frame: Frame| {
        let mut frame = frame.payload(&[0; 16][..]);
        match frame.outermost_mut() {
            millrace_lab::frame::Layer::Ipv4(ip) => ip.protocol = Some(GRE),
            millrace_lab::frame::Layer::Ipv6(ip) => ip.protocol = Some(GRE),
            other => panic!("{other:?}"),
        }
        frame
    };
    let (incoming, outgoing) = (gre(world.incoming(friend)), gre(world.outgoing(friend)));
    assert_eq!(world.leave(&outgoing), DENIED);
    world.bed.allow(FROM_POD, FRIENDS, Some(GRE), None);
    assert_eq!(world.enter(&incoming), DENIED);
    assert_eq!(world.leave(&outgoing), ALLOWED);
    assert_eq!(world.enter(&incoming), PASSED);
    world.bed.age(DATAGRAM_SECONDS + 2);
    assert_eq!(world.enter(&incoming), DENIED);
    let flows: Vec<PolicyFlow> = match family {
        Family::V4 => world.bed.flows::<proxy_common::Addr4>().into_iter().map(|(_, flow)| flow).collect(),
        Family::V6 => world.bed.flows::<proxy_common::Addr6>().into_iter().map(|(_, flow)| flow).collect(),
    };
    assert_eq!(flows.len(), 1);
    assert_eq!(
        (flows[0].opened, flows[0].is_allowed, flows[0].generation),
        (OPENED_BY_POD, 1, world.generation)
    );
}
