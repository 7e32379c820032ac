//! Neighbour Solicitations (RFC 4861).

use proxy_common::checksum::fold;
use proxy_common::verdict::Reason;

use super::announced_mac;
use crate::header::{ETHERNET, Ipv6, Mac, MacOption, NeighbourMessage, ether_type, protocol};
use crate::icmp::{Icmp, solicited_node};
use crate::maps::v6::V6;
use crate::packet::{Packet, ethernet};
use crate::verdict::{NO_ROOM, UNTOUCHED, Verdict};

/// The hop limit of all these messages: none came through a router.
const HOP_LIMIT: u8 = 255;
/// Type of a Neighbour Advertisement.
const ADVERTISEMENT: u8 = 136;
/// Flag of an advertisement: it answers a solicitation.
const SOLICITED: u32 = 0x4000_0000_u32.to_be();
/// Flag of an advertisement: its MAC address replaces one that the receiver knows.
const OVERRIDE: u32 = 0x2000_0000_u32.to_be();
/// Type of the option with the sender's MAC address.
const SOURCE_MAC: u8 = 1;
/// Type of the option with the target's MAC address.
const TARGET_MAC: u8 = 2;

/// The group of all nodes of the link.
const ALL_NODES: [u32; 4] = [0xff02_0000_u32.to_be(), 0, 0, 1_u32.to_be()];
const UNSPECIFIED: [u32; 4] = [0; 4];

const MESSAGE: usize = ETHERNET + size_of::<Ipv6>();
const OPTIONS: usize = MESSAGE + size_of::<NeighbourMessage>();
const SHORTEST: usize = size_of::<NeighbourMessage>();
/// Bytes of an answer behind its IPv6 header.
const ANSWER: usize = SHORTEST + size_of::<MacOption>();
/// Words of the longest message that is read. Only messages with signatures (RFC 3971) are longer.
const MOST_WORDS: usize = 32;
const LONGEST: usize = MOST_WORDS * size_of::<u32>();

/// A solicitation for an announced address.
struct Question {
    /// Source of the packet; unspecified if it asks whether the address is in use (RFC 4862, section 5.4).
    asker: [u32; 4],
    asker_mac: Mac,
    target: [u32; 4],
    /// The announced MAC address.
    mac: Mac,
}

/// Answers a solicitation for an announced address.
#[inline(always)]
pub fn receive<P: Packet>(packet: P) -> Verdict {
    match read(&packet) {
        Some(question) => answer(packet, &question).map_or(NO_ROOM, |()| Verdict::Bounce(Reason::Announced)),
        None => UNTOUCHED,
    }
}

/// Reads a solicitation, and checks it as section 7.1.1 demands.
#[inline(always)]
fn read<P: Packet>(packet: &P) -> Option<Question> {
    packet.pull(MESSAGE + LONGEST);
    let header = packet.read::<Ipv6>(ETHERNET)?;
    let length = usize::from(u16::from_be(header.payload_length));
    let is_ours = u32::from_be(header.first_word) >> 28 == 6
        && header.next_header == protocol::ICMP6
        && header.hop_limit == HOP_LIMIT;
    // Options come in units of eight bytes.
    if !is_ours || !(SHORTEST..=LONGEST).contains(&length) || !length.is_multiple_of(8) {
        return None;
    }
    let NeighbourMessage { kind, code, target, .. } = packet.read(MESSAGE)?;
    if V6::SOLICITATION != Some(kind) || code != 0 || is_group(&target) {
        return None;
    }
    let mac = announced_mac(packet, target)?;
    let (asker, destination, group) = (header.source, header.destination, solicited_node(&target));
    let is_for_us = destination == group || destination == target && asker != UNSPECIFIED;
    if !is_for_us || is_group(&asker) || asker == target {
        return None;
    }
    let (to, from) = ethernet::read_macs(packet)?;
    // A switch may flood frames for other nodes.
    if to != mac && to != group_mac(&group) {
        return None;
    }
    let asker_mac = match stated_mac(packet, length) {
        Some(_) if asker == UNSPECIFIED => return None,
        stated => stated.unwrap_or(from),
    };
    let is_right = !ethernet::is_group(asker_mac) && has_right_checksum(packet, &header, length)?;
    is_right.then_some(Question { asker, asker_mac, target, mac })
}

/// The MAC address that a solicitation states as its sender's. Without one, the frame's source must do: other senders
/// begin with another option, such as the nonce of RFC 7527.
#[inline(always)]
fn stated_mac<P: Packet>(packet: &P, length: usize) -> Option<Mac> {
    if length < SHORTEST + size_of::<MacOption>() {
        return None;
    }
    let option = packet.read::<MacOption>(OPTIONS)?;
    (option.kind == SOURCE_MAC && option.length == 1).then_some(option.mac)
}

/// Whether the checksum of a message of `length` bytes is right; `None` if the frame has fewer.
#[inline(always)]
fn has_right_checksum<P: Packet>(packet: &P, header: &Ipv6, length: usize) -> Option<bool> {
    let mut sum = pseudo_header(&header.source, &header.destination, length);
    for word in 0..MOST_WORDS {
        let offset = word * size_of::<u32>();
        if offset < length {
            sum += u64::from(packet.read::<u32>(MESSAGE + offset)?);
        }
    }
    Some(fold(sum) == u16::MAX)
}

/// Writes the answer (sections 4.4 and 7.2.4) in place of the solicitation.
///
/// An asker without an address gets it by way of all nodes.
#[inline(always)]
fn answer<P: Packet>(mut packet: P, question: &Question) -> Option<()> {
    let Question { asker, asker_mac, target, mac } = *question;
    let (destination, to, flags) = if asker == UNSPECIFIED {
        (ALL_NODES, group_mac(&ALL_NODES), OVERRIDE)
    } else {
        (asker, asker_mac, SOLICITED | OVERRIDE)
    };
    packet.set_length(MESSAGE + ANSWER).ok()?;
    packet.pull(MESSAGE + ANSWER);
    ethernet::write_header(&packet, to, mac, ether_type::IPV6)?;
    let header = Ipv6 {
        first_word: (6_u32 << 28).to_be(),
        payload_length: (ANSWER as u16).to_be(),
        next_header: protocol::ICMP6,
        hop_limit: HOP_LIMIT,
        source: target,
        destination,
    };
    packet.write(ETHERNET, header)?;
    let [mac0, mac1, mac2] = mac.map(u64::from);
    let sum = pseudo_header(&target, &destination, ANSWER)
        + u64::from(u16::from_ne_bytes([ADVERTISEMENT, 0]))
        + u64::from(flags)
        + sum_of(&target)
        + u64::from(u16::from_ne_bytes([TARGET_MAC, 1]))
        + mac0
        + mac1
        + mac2;
    let message = NeighbourMessage { kind: ADVERTISEMENT, code: 0, checksum: !fold(sum), flags, target };
    packet.write(MESSAGE, message)?;
    packet.write(OPTIONS, MacOption { kind: TARGET_MAC, length: 1, mac })
}

/// The MAC address of an IPv6 group (RFC 2464, section 7).
#[inline(always)]
const fn group_mac(group: &[u32; 4]) -> Mac {
    let [.., last] = *group;
    let [a, b, c, d] = last.to_ne_bytes();
    [0x3333, u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
}

#[inline(always)]
const fn is_group(address: &[u32; 4]) -> bool {
    let [first, ..] = *address;
    let [top, ..] = first.to_ne_bytes();
    top == 0xff
}

/// The sum of the pseudo-header (RFC 8200, section 8.1).
#[inline(always)]
fn pseudo_header(source: &[u32; 4], destination: &[u32; 4], length: usize) -> u64 {
    let rest = u64::from((length as u32).to_be()) + u64::from(u32::from(protocol::ICMP6).to_be());
    sum_of(source) + sum_of(destination) + rest
}

#[inline(always)]
fn sum_of(address: &[u32; 4]) -> u64 {
    address.iter().fold(0, |sum, word| sum + u64::from(*word))
}
