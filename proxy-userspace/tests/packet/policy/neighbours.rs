//! ARP, and `ICMPv6` between neighbours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_lab::frame::{Extension, Frame, Icmp, flag};
use proxy_common::policy::PEER_NODE;

use super::{ALLOWED, DENIED, FOREIGN, FROM_POD, PASSED, TO_POD, UNREADABLE, World, with_hops};
use crate::case::Family;

const ARP: u16 = 0x0806;

/// An ARP packet with a sender's address.
fn arp(operation: u8, sender: IpAddr) -> Frame {
    let IpAddr::V4(sender) = sender else { panic!("{sender}") };
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 1];
    body.extend(sender.octets());
    body.extend([0; 6]);
    body.extend([10, 1, 0, 1]);
    Frame { ethertype: Some(ARP), ..Frame::ethernet() }.payload(body)
}

fn link_local(last: u16) -> IpAddr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last).into()
}

fn multicast() -> IpAddr {
    "ff02::1".parse().unwrap()
}

/// A message between neighbours, with a target.
fn message(source: IpAddr, destination: IpAddr, kind: u8, target: IpAddr) -> Frame {
    let IpAddr::V6(target) = target else { panic!("{target}") };
    let frame = Frame::ip(source, destination).layer(Icmp { kind, code: 0, rest: [0; 4] });
    with_hops(frame.payload(target.octets().to_vec()), 255)
}

#[test]
fn arp_names_the_pods_own_address_only() {
    for mut world in [World::new(Family::V4), World::open(Family::V4)] {
        for operation in [1, 2] {
            assert_eq!(world.leave(&arp(operation, world.pod())), PASSED);
            assert_eq!(world.leave(&arp(operation, Ipv4Addr::UNSPECIFIED.into())), PASSED);
            assert_eq!(world.leave(&arp(operation, world.friend())), FOREIGN);
            assert_eq!(world.enter(&arp(operation, world.friend())), PASSED);
        }
        // One of another form could say anything.
        let mut other = arp(2, world.pod());
        other.payload = [&[0, 6], &other.payload[2..]].concat().into();
        assert_eq!(world.leave(&other), FOREIGN);
        let short = Frame { ethertype: Some(ARP), ..Frame::ethernet() }.payload(&[0, 1, 8, 0][..]);
        assert_eq!(world.leave(&short), FOREIGN);
    }
    // A pod without an address of the family may only ask.
    let mut world = World::open(Family::V6);
    assert_eq!(world.leave(&arp(1, Family::V4.node(1))), FOREIGN);
    assert_eq!(world.leave(&arp(1, Ipv4Addr::UNSPECIFIED.into())), PASSED);
}

#[test]
fn an_advertisement_names_the_pods_own_addresses_only() {
    for mut world in [World::new(Family::V6), World::open(Family::V6)] {
        let (pod, friend) = (world.pod(), world.friend());
        assert_eq!(world.leave(&message(pod, multicast(), 136, pod)), PASSED);
        assert_eq!(world.leave(&message(pod, multicast(), 136, link_local(7))), PASSED);
        assert_eq!(world.leave(&message(pod, multicast(), 136, friend)), FOREIGN);
        assert_eq!(world.leave(&message(link_local(7), multicast(), 136, world.node())), FOREIGN);
        assert_eq!(world.enter(&message(friend, pod, 136, friend)), PASSED);
        // Behind another header it is the same message.
        let mut hidden = message(pod, multicast(), 136, friend);
        hidden.layers.insert(1, Extension::destination_options(1).into());
        assert_eq!(world.leave(&hidden), FOREIGN);
        for _ in 0..6 {
            hidden.layers.insert(1, Extension::destination_options(1).into());
        }
        assert_eq!(world.leave(&hidden), UNREADABLE);
        let mut short = message(pod, multicast(), 136, pod);
        short.payload = short.payload.slice(..8);
        assert_eq!(world.leave(&short), FOREIGN);
    }
}

#[test]
fn a_pod_does_not_speak_for_the_link_local_address_of_the_node() {
    for mut world in [World::new(Family::V6), World::open(Family::V6)] {
        let gateway = link_local(1);
        let forged = message(world.pod(), multicast(), 136, gateway);
        assert_eq!(world.leave(&forged), PASSED, "nobody said whose it is");
        world.bed.set_peer(gateway, 128, PEER_NODE);
        assert_eq!(world.leave(&forged), FOREIGN);
        assert_eq!(world.leave(&message(gateway, multicast(), 135, world.pod())), FOREIGN);
        assert_eq!(world.enter(&message(gateway, world.pod(), 136, gateway)), PASSED);
    }
}

#[test]
fn a_pod_is_no_router() {
    for mut world in [World::new(Family::V6), World::open(Family::V6)] {
        for kind in [134, 137] {
            let forged = message(link_local(7), multicast(), kind, world.pod());
            assert_eq!(world.leave(&forged), FOREIGN);
            assert_eq!(world.leave(&with_hops(forged, 64)), FOREIGN);
            assert_eq!(world.enter(&message(link_local(1), world.pod(), kind, world.pod())), PASSED);
        }
    }
    let mut world = World::new(Family::V6);
    assert_eq!(world.enter(&with_hops(message(link_local(1), world.pod(), 134, world.pod()), 254)), DENIED);
}

#[test]
fn messages_between_neighbours_pass_and_forwarded_ones_are_judged() {
    let mut world = World::with_profiles(Family::V6, TO_POD, FROM_POD);
    let (pod, node) = (world.pod(), world.node());
    let neighbour: IpAddr = "fd00:10:1::99".parse().unwrap();
    for kind in [133, 135, 136] {
        for destination in [multicast(), link_local(1), node, neighbour] {
            let sent = message(pod, destination, kind, pod);
            assert_eq!(world.leave(&sent), PASSED, "{kind} to {destination}");
            assert_eq!(world.leave(&with_hops(sent, 254)), DENIED);
        }
        let received = message(world.stranger(), pod, kind, pod);
        assert_eq!(world.enter(&received), PASSED);
        assert_eq!(world.enter(&with_hops(received, 254)), DENIED);
    }
    let detection = message(Ipv6Addr::UNSPECIFIED.into(), multicast(), 135, pod);
    assert_eq!(world.leave(&detection), PASSED);
}

#[test]
fn messages_between_neighbours_do_not_leave_the_node() {
    let mut world = World::with_profiles(Family::V6, TO_POD, FROM_POD);
    for kind in [133, 135, 136] {
        assert_eq!(world.leave(&message(world.pod(), world.stranger(), kind, world.pod())), DENIED);
    }
    for kind in [130, 131, 132, 143] {
        let report = message(world.pod(), world.stranger(), kind, world.pod());
        assert_eq!(world.leave(&report), DENIED);
        assert_eq!(world.leave(&with_hops(report, 64)), DENIED);
    }
}

#[test]
fn reports_of_multicast_listeners_pass_behind_their_options() {
    let mut world = World::with_profiles(Family::V6, TO_POD, FROM_POD);
    for kind in [130, 131, 132, 143] {
        let mut report = with_hops(message(link_local(7), multicast(), kind, multicast()), 1);
        assert_eq!(world.leave(&report), PASSED);
        assert_eq!(world.enter(&report), PASSED);
        report.layers.insert(1, Extension::hop_by_hop(1).into());
        assert_eq!(world.leave(&report), PASSED);
        assert_eq!(world.enter(&report), PASSED);
    }
}

#[test]
fn fragments_are_no_messages_between_neighbours() {
    let mut world = World::with_profiles(Family::V6, TO_POD, FROM_POD);
    let mut solicitation = message(world.stranger(), world.pod(), 135, world.pod());
    solicitation.payload = vec![0; 600].into();
    let all = solicitation.fragments(5, 512);
    assert_eq!(world.enter(&all[0]), DENIED);
    assert_eq!(world.enter(&all[1]), UNREADABLE);
}

#[test]
fn link_local_addresses_are_judged_as_peers() {
    let mut world = World::new(Family::V6);
    let ours = Frame::ip(link_local(7), link_local(1)).tcp(1, 2, flag::SYN);
    assert_eq!(world.leave(&ours), DENIED);
    let mut world = World::with_profiles(Family::V6, TO_POD, 0);
    assert_eq!(world.leave(&ours), ALLOWED);
}
