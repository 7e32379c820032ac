//! Sources: a pod has its own addresses and no others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_lab::frame::{Frame, Icmp, Layer, flag};
use millrace_lab::program::DEVICE;
use proxy_common::policy::PolicyDirection;
use proxy_common::way::FOU_PORT;

use super::{ALLOWED, ASKED, CLIENT, DENIED, FOREIGN, FROM_POD, NOT_ISOLATED, PASSED, SERVED, TO_POD, World};
use crate::case::{Family, each_family};

each_family! {
    a_pod_does_not_use_the_address_of_another
    a_fragment_does_not_use_the_address_of_another
    a_pod_without_an_address_of_the_family_has_no_source
    a_pod_reaches_itself
    nobody_else_reaches_the_pod_from_its_own_address
    an_entry_of_another_pod_is_no_use
    a_pod_sends_no_tunnels_to_nodes
    what_comes_back_to_the_device_that_it_came_from_is_the_pods_own
    what_is_for_another_address_makes_no_entry
    the_name_of_the_node_is_worth_nothing_elsewhere
}

fn a_pod_does_not_use_the_address_of_another(family: Family) {
    for mut world in [World::new(family), World::open(family)] {
        let (friend, stranger) = (world.friend(), world.stranger());
        for source in [friend, world.node(), family.pick("0.0.0.0", "::"), family.pick("127.0.0.1", "::1")] {
            assert_eq!(world.leave(&Frame::ip(source, stranger).udp(1, 2)), FOREIGN, "{source}");
            assert_eq!(world.leave(&Frame::ip(source, stranger).tcp(1, 2, flag::ACK)), FOREIGN);
        }
    }
    // The answer to a forged packet would come to the one whose address it is.
    let mut world = World::with_profiles(family, TO_POD, NOT_ISOLATED);
    assert_eq!(world.leave(&Frame::ip(world.node(), world.stranger()).udp(1, 2)), FOREIGN);
}

fn a_fragment_does_not_use_the_address_of_another(family: Family) {
    let mut world = World::open(family);
    let frame = Frame::ip(world.friend(), world.stranger()).udp(1, 2).payload(vec![0; 1000]);
    for piece in frame.fragments(5, 512) {
        assert_eq!(world.leave(&piece), FOREIGN);
    }
}

fn a_pod_without_an_address_of_the_family_has_no_source(family: Family) {
    let other = if family == Family::V4 { Family::V6 } else { Family::V4 };
    let theirs = World::open(family);
    let (own, peer) = (theirs.pod(), theirs.friend());
    drop(theirs);
    let mut world = World::open(other);
    assert_eq!(world.leave(&Frame::ip(own, peer).udp(1, 2)), FOREIGN);
    assert_eq!(world.leave(&Frame::ip(family.pick("0.0.0.0", "::"), peer).udp(1, 2)), FOREIGN);
}

fn a_pod_reaches_itself(family: Family) {
    let mut world = World::with_profiles(family, TO_POD, FROM_POD);
    let pod = world.pod();
    for frame in [
        Frame::ip(pod, pod).udp(CLIENT, SERVED),
        Frame::ip(pod, pod).tcp(CLIENT, SERVED, flag::SYN),
        world.echo(Frame::ip(pod, pod), false, 7),
    ] {
        assert_eq!(world.leave(&frame), PASSED);
        assert_eq!(world.enter(&frame), PASSED);
    }
}

#[test]
fn a_link_local_address_of_another_is_not_the_pod_itself() {
    let mut world = World::with_profiles(Family::V6, TO_POD, FROM_POD);
    let other: IpAddr = "fe80::99".parse().unwrap();
    assert_eq!(world.leave(&Frame::ip(other, other).udp(CLIENT, SERVED)), DENIED);
    // A pod without an address has none that is its own.
    let mut world = World::with_profiles(Family::V4, TO_POD, FROM_POD);
    let none = Ipv6Addr::UNSPECIFIED.into();
    assert_eq!(world.leave(&Frame::ip(other, none).udp(CLIENT, SERVED)), DENIED);
}

fn nobody_else_reaches_the_pod_from_its_own_address(family: Family) {
    let mut world = World::with_profiles(family, TO_POD, FROM_POD);
    let pod = world.pod();
    for frame in [
        Frame::ip(pod, pod).udp(CLIENT, SERVED),
        Frame::ip(pod, pod).tcp(CLIENT, SERVED, flag::SYN),
        Frame::ip(pod, pod).tcp(CLIENT, SERVED, flag::ACK),
    ] {
        assert_eq!(world.enter(&frame), DENIED);
    }
}

fn an_entry_of_another_pod_is_no_use(family: Family) {
    let mut world = World::new(family);
    world.pod_connects();
    // Another address of the device, as one that the pod had before.
    let other = Frame::ip(world.friend(), world.stranger()).tcp(ASKED, CLIENT, flag::ACK);
    assert_eq!(world.enter(&other), DENIED);
}

#[test]
fn a_pod_has_link_local_addresses_and_none_while_it_looks_for_owners() {
    let multicast: IpAddr = "ff02::16".parse().unwrap();
    for last in ["fe80::7", "febf::1"] {
        let mut world = World::open(Family::V6);
        assert_eq!(world.leave(&Frame::ip(last.parse().unwrap(), multicast).udp(1, 2)), PASSED);
    }
    let mut world = World::open(Family::V6);
    assert_eq!(world.leave(&Frame::ip("fec0::1".parse().unwrap(), multicast).udp(1, 2)), FOREIGN);
    let nobody = Ipv6Addr::UNSPECIFIED.into();
    let report = Frame::ip(nobody, multicast).layer(Icmp { kind: 143, code: 0, rest: [0; 4] });
    assert_eq!(world.leave(&report.with_hop_limit(1)), PASSED);
    assert_eq!(world.leave(&Frame::ip(nobody, multicast).tcp(1, 2, flag::SYN)), FOREIGN);
}

#[test]
fn an_unreadable_packet_with_the_address_of_another_is_foreign() {
    let mut world = World::open(Family::V4);
    let mut frame = Frame::ip(Ipv4Addr::new(10, 2, 0, 1).into(), world.stranger()).udp(1, 2);
    if let millrace_lab::frame::Layer::Ipv4(ip) = frame.outermost_mut() {
        ip.options = vec![1; 4].into();
    }
    assert_eq!(world.leave(&frame), FOREIGN);
}

fn a_pod_sends_no_tunnels_to_nodes(family: Family) {
    const PORTS: [u16; 4] = [8472, 4789, 6081, FOU_PORT];
    let with_protocol = |mut frame: Frame, number: u8| {
        match frame.innermost_mut() {
            Layer::Ipv4(ip) => ip.protocol = Some(number),
            Layer::Ipv6(ip) => ip.protocol = Some(number),
            other => panic!("{other:?}"),
        }
        frame.payload(vec![0x45; 40])
    };
    for mut world in [World::open(family), World::with_profiles(family, TO_POD, FROM_POD)] {
        world.bed.allow(FROM_POD, super::NODES, None, None);
        world.bed.allow(FROM_POD, super::FRIENDS, None, None);
        for node in [world.node(), world.other_node()] {
            for port in PORTS {
                assert_eq!(world.leave(&world.outgoing(node).udp(port, port)), FOREIGN, "{port} to {node}");
            }
            for number in [4, 41, 47] {
                let tunnel = with_protocol(world.outgoing(node), number);
                assert_eq!(world.leave(&tunnel), FOREIGN, "protocol {number} to {node}");
            }
            assert_ne!(world.leave(&world.outgoing(node).udp(8472, 53)), FOREIGN);
        }
        let friend = world.friend();
        assert_ne!(world.leave(&world.outgoing(friend).udp(8472, 8472)), FOREIGN);
        assert_ne!(world.leave(&with_protocol(world.outgoing(friend), 4)), FOREIGN);
    }
}

fn what_comes_back_to_the_device_that_it_came_from_is_the_pods_own(family: Family) {
    let mut world = World::with_profiles(family, TO_POD, FROM_POD);
    // A Service's address, of which the firewall knows nothing.
    let frame = Frame::ip(world.stranger(), world.pod()).tcp(CLIENT, SERVED, flag::SYN);
    assert_eq!(world.enter(&frame), DENIED);
    assert_eq!(world.bed.send_from(DEVICE, PolicyDirection::Ingress, DEVICE, &frame), PASSED);
}

fn what_is_for_another_address_makes_no_entry(family: Family) {
    let mut world = World::new(family);
    let frame = Frame::ip(world.friend(), world.stranger()).tcp(CLIENT, SERVED, flag::SYN);
    assert_eq!(world.enter(&frame), ALLOWED);
    assert_eq!(world.flows(), 0);
    assert_eq!(world.leave(&frame.reply()), FOREIGN);
}

fn the_name_of_the_node_is_worth_nothing_elsewhere(family: Family) {
    let mut world = World::with_profiles(family, TO_POD, FROM_POD);
    let frame = Frame::ip(world.node(), world.pod()).tcp(CLIENT, SERVED, flag::SYN);
    // Masquerading gives the packets of others the node's address.
    assert_eq!(world.bed.send(PolicyDirection::Ingress, DEVICE, &frame), DENIED);
    assert_eq!(world.bed.send_from(0, PolicyDirection::Ingress, DEVICE, &frame), ALLOWED);
    // By another set of tables, the connection of the node is one still.
    world.bed.set_generation(1);
    assert_eq!(world.leave(&frame.reply().with_flags(flag::SYN | flag::ACK)), PASSED);
}
