//! Questions for the MAC address of an announced address: ARP, Neighbour Discovery. The answers are built by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_lab::frame::{DEVICE_MAC, Frame, Icmp, Mac, NEIGHBOUR_MAC, internet_checksum};
use millrace_lab::program::{Bed, DEVICE, Hook, Sizes, Verdict};
use proxy_common::part::Part;
use proxy_common::verdict::Reason;
use proxy_common::vip::VIP_EXTERNAL;

use crate::case::each_hook;

each_hook! {
    an_arp_request_is_answered
    an_address_conflict_probe_is_answered
    padding_behind_an_arp_request_stays
    other_arp_packets_are_left_to_the_stack
    a_truncated_arp_request_is_left_to_the_stack
    a_solicitation_to_the_group_is_answered
    a_solicitation_to_the_address_itself_is_answered
    a_solicitation_with_other_options_is_answered
    duplicate_address_detection_is_answered_to_all_nodes
    other_solicitations_are_left_to_the_stack
    a_truncated_solicitation_is_left_to_the_stack
    tagged_questions_are_left_to_the_stack
    without_the_part_every_question_is_left_to_the_stack
}

/// The announced MAC address. The device's own may differ: a macvlan device.
const ANNOUNCED_MAC: Mac = [0x02, 0, 0, 0, 0x5e, 0x77];
const ANOTHER_MAC: Mac = [0x02, 0, 0, 0, 0, 0x99];
const BROADCAST: Mac = [0xff; 6];
const UNSPECIFIED4: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const ASKER4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 200);
const TARGET4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const ASKER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 0xc8);
const TARGET6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0xab12, 0x3456);
/// The solicited-node group of [`TARGET6`], and its MAC address.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff12, 0x3456);
const GROUP_MAC: Mac = [0x33, 0x33, 0xff, 0x12, 0x34, 0x56];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

/// Another index than [`DEVICE`].
const ANOTHER_DEVICE: u32 = DEVICE + 1;

fn announce(bed: &Bed) {
    for address in [IpAddr::from(TARGET4), TARGET6.into()] {
        bed.announce(address, DEVICE, ANNOUNCED_MAC);
        bed.announce(address, ANOTHER_DEVICE, ANOTHER_MAC);
    }
}

fn bed() -> Bed {
    let bed = Bed::new();
    announce(&bed);
    bed
}

fn is_answered(bed: &Bed, hook: Hook, question: &[u8], answer: &[u8]) {
    let outcome = bed.run(hook, question);
    outcome.assert_counted(Reason::Announced);
    assert_eq!(&outcome.run.frame[..], answer, "{outcome}");
    let sent = if hook == Hook::XdpIngress { Verdict::Transmit } else { Verdict::Redirect };
    assert_eq!(outcome.verdict, sent, "{outcome}");
}

#[track_caller]
fn is_left(bed: &Bed, hook: Hook, frame: &[u8]) {
    if hook.takes(frame) {
        bed.run(hook, frame).assert_untouched().assert_counted(Reason::NotOurs);
    }
}

/// The fields of an ARP packet and of its Ethernet header.
#[derive(Clone, Copy)]
struct Arp {
    to: Mac,
    from: Mac,
    /// Kinds and lengths of the addresses.
    form: [u8; 6],
    operation: u8,
    sender_mac: Mac,
    sender: Ipv4Addr,
    target_mac: Mac,
    target: Ipv4Addr,
}

const QUESTION: Arp = Arp {
    to: BROADCAST,
    from: NEIGHBOUR_MAC,
    form: [0, 1, 8, 0, 6, 4],
    operation: 1,
    sender_mac: NEIGHBOUR_MAC,
    sender: ASKER4,
    target_mac: [0; 6],
    target: TARGET4,
};

const ANSWER: Arp = Arp {
    to: NEIGHBOUR_MAC,
    from: ANNOUNCED_MAC,
    operation: 2,
    sender_mac: ANNOUNCED_MAC,
    sender: TARGET4,
    target_mac: NEIGHBOUR_MAC,
    target: ASKER4,
    ..QUESTION
};

impl Arp {
    fn build(self) -> Vec<u8> {
        let Self { to, from, form, operation, sender_mac, sender, target_mac, target } = self;
        let (sender, target) = (sender.octets(), target.octets());
        let parts: [&[u8]; 9] =
            [&to, &from, &[8, 6], &form, &[0, operation], &sender_mac, &sender, &target_mac, &target];
        parts.concat()
    }
}

fn an_arp_request_is_answered(hook: Hook) {
    let bed = bed();
    for to in [BROADCAST, ANNOUNCED_MAC] {
        is_answered(&bed, hook, &Arp { to, ..QUESTION }.build(), &ANSWER.build());
    }
    // The frame came by way of a bridge.
    is_answered(&bed, hook, &Arp { from: ANOTHER_MAC, ..QUESTION }.build(), &ANSWER.build());
}

fn an_address_conflict_probe_is_answered(hook: Hook) {
    let (probe, answer) = (Arp { sender: UNSPECIFIED4, ..QUESTION }, Arp { target: UNSPECIFIED4, ..ANSWER });
    is_answered(&bed(), hook, &probe.build(), &answer.build());
}

fn padding_behind_an_arp_request_stays(hook: Hook) {
    let padded = |arp: Arp| [arp.build(), vec![0; 18]].concat();
    is_answered(&bed(), hook, &padded(QUESTION), &padded(ANSWER));
}

fn other_arp_packets_are_left_to_the_stack(hook: Hook) {
    let bed = bed();
    let group = [0x01, 0, 0x5e, 0, 0, 1];
    let others = [
        Arp { target: Ipv4Addr::new(203, 0, 113, 2), ..QUESTION },
        Arp { to: DEVICE_MAC, ..QUESTION },
        Arp { to: ANOTHER_MAC, ..QUESTION },
        Arp { to: group, ..QUESTION },
        Arp { operation: 2, ..QUESTION },
        Arp { operation: 3, ..QUESTION },
        Arp { sender: TARGET4, ..QUESTION },
        Arp { form: [0, 6, 8, 0, 6, 4], ..QUESTION },
        Arp { form: [0, 1, 0x86, 0xdd, 6, 4], ..QUESTION },
        Arp { form: [0, 1, 8, 0, 8, 4], ..QUESTION },
        Arp { form: [0, 1, 8, 0, 6, 16], ..QUESTION },
        Arp { sender_mac: BROADCAST, ..QUESTION },
        Arp { sender_mac: group, ..QUESTION },
    ];
    for arp in others {
        is_left(&bed, hook, &arp.build());
    }
    // Announced on another device only.
    let bed = Bed::new();
    bed.announce(TARGET4.into(), ANOTHER_DEVICE, ANNOUNCED_MAC);
    is_left(&bed, hook, &QUESTION.build());
}

fn a_truncated_arp_request_is_left_to_the_stack(hook: Hook) {
    let (bed, whole) = (bed(), QUESTION.build());
    assert_eq!(whole.len(), 42);
    (0..whole.len()).for_each(|length| is_left(&bed, hook, &whole[..length]));
}

/// The fields of a Neighbour Solicitation.
#[derive(Clone)]
struct Solicitation {
    to: Mac,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    target: Ipv6Addr,
    code: u8,
    hop_limit: u8,
    options: Vec<u8>,
}

impl Default for Solicitation {
    fn default() -> Self {
        Self {
            to: GROUP_MAC,
            source: ASKER6,
            destination: GROUP,
            target: TARGET6,
            code: 0,
            hop_limit: 255,
            options: source_mac(NEIGHBOUR_MAC),
        }
    }
}

fn source_mac(mac: Mac) -> Vec<u8> {
    [&[1, 1], &mac[..]].concat()
}

/// Linux sends a nonce with its probes (RFC 7527).
fn nonce() -> Vec<u8> {
    vec![14, 1, 0xd1, 0xce, 0x00, 0xff, 0x12, 0x34]
}

impl Solicitation {
    fn build(&self) -> Vec<u8> {
        let message = Icmp { kind: 135, code: self.code, rest: [0; 4] };
        let payload = [&self.target.octets()[..], &self.options].concat();
        let ip = Frame::ip(self.source.into(), self.destination.into()).with_hop_limit(self.hop_limit);
        ip.layer(message).payload(payload).with_macs(NEIGHBOUR_MAC, self.to).build().to_vec()
    }
}

/// Returns the bytes of a Neighbour Advertisement, with a checksum of the test's own.
fn advertisement(to: Mac, destination: Ipv6Addr, flags: u8) -> Vec<u8> {
    let (target, destination) = (TARGET6.octets(), destination.octets());
    let pseudo = [&target[..], &destination, &[0, 0, 0, 32, 0, 0, 0, 58]].concat();
    let message = |checksum: u16| {
        let checksum = checksum.to_be_bytes();
        [&[136, 0], &checksum[..], &[flags, 0, 0, 0], &target, &[2, 1], &ANNOUNCED_MAC].concat()
    };
    let checksum = internet_checksum(&[&pseudo, &message(0)]);
    let ip = [0x60, 0, 0, 0, 0, 32, 58, 255];
    [&to[..], &ANNOUNCED_MAC, &[0x86, 0xdd], &ip, &target, &destination, &message(checksum)].concat()
}

/// The answer to [`Solicitation::default`]: solicited, override.
fn usual_answer() -> Vec<u8> {
    advertisement(NEIGHBOUR_MAC, ASKER6, 0x60)
}

fn a_solicitation_to_the_group_is_answered(hook: Hook) {
    let bed = bed();
    for to in [GROUP_MAC, ANNOUNCED_MAC] {
        is_answered(&bed, hook, &Solicitation { to, ..Solicitation::default() }.build(), &usual_answer());
    }
    // The stated MAC address counts, not the frame's.
    let elsewhere = Solicitation { options: source_mac(ANOTHER_MAC), ..Solicitation::default() };
    is_answered(&bed, hook, &elsewhere.build(), &advertisement(ANOTHER_MAC, ASKER6, 0x60));
    let padded = [Solicitation::default().build(), vec![0; 10]].concat();
    is_answered(&bed, hook, &padded, &usual_answer());
}

/// Packets to a Service's address pass the first look, and come by way of another part.
fn a_solicitation_to_the_address_itself_is_answered(hook: Hook) {
    let bed = bed();
    bed.vip(TARGET6.into(), VIP_EXTERNAL);
    for options in [Vec::new(), source_mac(NEIGHBOUR_MAC)] {
        let question =
            Solicitation { to: ANNOUNCED_MAC, destination: TARGET6, options, ..Solicitation::default() };
        is_answered(&bed, hook, &question.build(), &usual_answer());
    }
    let to_group = Solicitation::default();
    is_answered(&bed, hook, &to_group.build(), &usual_answer());
    // The group shares its place in the filter with a Service's address.
    bed.vip(GROUP.into(), VIP_EXTERNAL);
    is_answered(&bed, hook, &to_group.build(), &usual_answer());
}

fn a_solicitation_with_other_options_is_answered(hook: Hook) {
    let bed = bed();
    let unknown = |units: u8| [vec![200, units], vec![0x5a; usize::from(units) * 8 - 2]].concat();
    let both = [source_mac(NEIGHBOUR_MAC), nonce()].concat();
    let longest = [source_mac(NEIGHBOUR_MAC), unknown(12)].concat();
    for options in [Vec::new(), nonce(), both, unknown(1), unknown(3), longest] {
        let question = Solicitation { options, ..Solicitation::default() };
        is_answered(&bed, hook, &question.build(), &usual_answer());
    }
}

fn duplicate_address_detection_is_answered_to_all_nodes(hook: Hook) {
    let bed = bed();
    for options in [nonce(), Vec::new()] {
        let probe = Solicitation { source: Ipv6Addr::UNSPECIFIED, options, ..Solicitation::default() };
        is_answered(&bed, hook, &probe.build(), &advertisement(ALL_NODES_MAC, ALL_NODES, 0x20));
    }
}

fn other_solicitations_are_left_to_the_stack(hook: Hook) {
    let bed = bed();
    bed.vip(TARGET6.into(), VIP_EXTERNAL);
    let usual = Solicitation::default;
    let (unspecified, group) = (Ipv6Addr::UNSPECIFIED, [0x33, 0x33, 0, 0, 0, 1]);
    // The group's other addresses.
    let neighbour = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0xcd12, 0x3456);
    let others = [
        Solicitation { hop_limit: 254, ..usual() },
        Solicitation { code: 1, ..usual() },
        Solicitation { target: neighbour, ..usual() },
        Solicitation { target: GROUP, ..usual() },
        Solicitation { to: ANOTHER_MAC, ..usual() },
        Solicitation { to: group, ..usual() },
        Solicitation { destination: ALL_NODES, to: group, ..usual() },
        Solicitation { destination: neighbour, ..usual() },
        Solicitation { source: ALL_NODES, ..usual() },
        Solicitation { source: TARGET6, ..usual() },
        Solicitation { options: source_mac(BROADCAST), ..usual() },
        Solicitation { options: vec![1, 1, 2, 0], ..usual() },
        Solicitation { options: vec![0; 112], ..usual() },
        Solicitation { source: unspecified, ..usual() },
        Solicitation { source: unspecified, destination: TARGET6, options: Vec::new(), ..usual() },
    ];
    for solicitation in others {
        is_left(&bed, hook, &solicitation.build());
    }
    for (place, wrong) in [(14, 0x20), (20, 59), (54, 136), (56, 0x5a), (57, 0x5a), (80, 0x5a)] {
        let mut frame = usual().build();
        frame[place] ^= wrong;
        is_left(&bed, hook, &frame);
    }
    // Announced on another device only.
    let bed = Bed::new();
    bed.announce(TARGET6.into(), ANOTHER_DEVICE, ANNOUNCED_MAC);
    is_left(&bed, hook, &usual().build());
}

fn a_truncated_solicitation_is_left_to_the_stack(hook: Hook) {
    let (bed, whole) = (bed(), Solicitation::default().build());
    assert_eq!(whole.len(), 86);
    (0..whole.len()).for_each(|length| is_left(&bed, hook, &whole[..length]));
}

/// The VLAN device above answers for its own network.
fn tagged_questions_are_left_to_the_stack(hook: Hook) {
    let bed = bed();
    for mut frame in [QUESTION.build(), Solicitation::default().build()] {
        frame.splice(12..12, [0x81, 0, 0, 7]);
        let outcome = bed.run(hook, &frame);
        assert_eq!(outcome.verdict, Verdict::Pass, "{outcome}");
        outcome.assert_counted(Reason::NotOurs);
    }
}

/// The questions for the node's own addresses go the same way.
fn without_the_part_every_question_is_left_to_the_stack(hook: Hook) {
    let bed = Bed::builder().sizes(Sizes { services: 1 << 9, ..Sizes::default() }).load();
    announce(&bed);
    bed.vip(TARGET6.into(), VIP_EXTERNAL);
    is_answered(&bed, hook, &QUESTION.build(), &ANSWER.build());
    bed.remove_part(hook, Part::Announced);
    let unicast = Solicitation { to: ANNOUNCED_MAC, destination: TARGET6, ..Solicitation::default() };
    for frame in [QUESTION.build(), Solicitation::default().build(), unicast.build()] {
        is_left(&bed, hook, &frame);
    }
}
