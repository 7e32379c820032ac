//! Devices whose pod is not known yet.

use millrace_lab::frame::{Frame, Vlan, flag};
use proxy_common::policy::POLICY_OPEN_UNKNOWN;

use super::{ALLOWED, ASKED, CLIENT, CLOSED, PASSED, UNKNOWN, UNREADABLE, World};
use crate::case::{Family, each_family};

each_family! {
    an_unknown_pod_reaches_nothing_and_is_reached_by_its_node
    an_unknown_pod_is_open_in_a_cluster_without_policies
    what_an_unknown_pod_was_allowed_ends_when_it_is_known
    frames_of_an_unknown_pod_are_read_as_those_of_an_isolated_one
}

fn an_unknown_pod_reaches_nothing_and_is_reached_by_its_node(family: Family) {
    let mut world = World::without_pod(family);
    let (friend, node) = (world.friend(), world.node());
    assert_eq!(world.enter(&world.request(friend, flag::SYN)), UNKNOWN);
    assert_eq!(world.enter(&world.request(friend, flag::ACK)), UNKNOWN);
    assert_eq!(world.leave(&world.call(friend, flag::SYN)), UNKNOWN);
    assert_eq!(world.leave(&world.outgoing(friend).udp(CLIENT, ASKED)), UNKNOWN);
    assert_eq!(world.leave(&world.call(node, flag::SYN)), UNKNOWN);
    let probe = world.incoming(node).tcp(CLIENT, CLOSED, flag::SYN);
    assert_eq!(world.enter(&probe), ALLOWED);
    assert_eq!(world.leave(&probe.reply().with_flags(flag::SYN | flag::ACK)), PASSED);
}

fn an_unknown_pod_is_open_in_a_cluster_without_policies(family: Family) {
    let mut world = World::without_pod(family);
    world.bed.set_flags(POLICY_OPEN_UNKNOWN);
    let syn = world.request(world.stranger(), flag::SYN);
    assert_eq!(world.enter(&syn), PASSED);
    assert_eq!(world.leave(&syn.reply()), PASSED);
    assert_eq!(world.leave(&Frame::ip(world.friend(), world.stranger()).udp(1, 2)), PASSED);
    assert_eq!(world.flows(), 0);
    // Known pods are judged all the same.
    world.set_pod(1, super::TO_POD, super::FROM_POD);
    assert_eq!(world.enter(&world.request(world.stranger(), flag::SYN)), super::DENIED);
}

fn what_an_unknown_pod_was_allowed_ends_when_it_is_known(family: Family) {
    let mut world = World::without_pod(family);
    let probe = world.incoming(world.node()).udp(CLIENT, CLOSED);
    assert_eq!(world.enter(&probe), ALLOWED);
    world.set_pod(1, super::TO_POD, super::FROM_POD);
    assert_eq!(world.leave(&probe.reply()), super::DENIED);
}

fn frames_of_an_unknown_pod_are_read_as_those_of_an_isolated_one(family: Family) {
    let mut world = World::without_pod(family);
    let syn = world.request(world.node(), flag::SYN).tagged(&[Vlan::customer(5)]);
    assert_eq!(world.enter(&syn), UNREADABLE);
    let frame = Frame { ethertype: Some(0x8847), ..Frame::ethernet() }.payload(vec![0; 60]);
    assert_eq!(world.leave(&frame), UNREADABLE);
}
