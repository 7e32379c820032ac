//! Frames of ARP (RFC 826) and neighbour discovery (RFC 4861): questions, announcements, and what others say.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::PacketBuilder;

use super::claim::{Heard, Mac};

const ETHERNET: usize = 14;
const IPV6: usize = 40;
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6_TYPE: [u8; 2] = [0x86, 0xdd];
/// Ethernet, IPv4, six and four bytes.
const ARP_START: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const BROADCAST: Mac = [0xff; 6];
const UNKNOWN: Mac = [0; 6];

const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The hop limit of neighbour discovery: no router has passed the packet on.
const HOP_LIMIT: u8 = 255;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// This node on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    pub mac: Mac,
    /// Its IPv6 address for questions, if it has any: the link-local one.
    pub address: Option<Ipv6Addr>,
}

/// Returns the question who has an address, to one host or to all.
///
/// Over IPv4 it is a probe (RFC 5227): it changes nobody's table of neighbours.
pub fn question(host: Host, address: IpAddr, to: Option<Mac>) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => {
            let ends = [(host.mac, Ipv4Addr::UNSPECIFIED), (UNKNOWN, address)];
            arp(REQUEST, host.mac, to.unwrap_or(BROADCAST), ends)
        }
        IpAddr::V6(address) => {
            let group = solicited_node(address);
            let option = host.address.map(|_| (SOURCE_LINK_ADDRESS, host.mac));
            let source = host.address.unwrap_or(Ipv6Addr::UNSPECIFIED);
            let link = (host.mac, to.unwrap_or_else(|| group_mac(group)));
            neighbour(SOLICITATION, 0, link, (source, group), address, option)
        }
    }
}

/// Returns frames that tell one host, or all on the link, that this node has an address. Some devices heed only ARP
/// requests, others only replies.
pub fn announcements(host: Host, address: IpAddr, to: Option<Mac>) -> Vec<Vec<u8>> {
    match address {
        IpAddr::V4(address) => {
            let frame = |operation, target| {
                arp(operation, host.mac, to.unwrap_or(BROADCAST), [(host.mac, address), (target, address)])
            };
            vec![frame(REQUEST, UNKNOWN), frame(REPLY, host.mac)]
        }
        IpAddr::V6(address) => {
            let source = host.address.unwrap_or(address);
            let link = (host.mac, to.unwrap_or_else(|| group_mac(ALL_NODES)));
            let option = Some((TARGET_LINK_ADDRESS, host.mac));
            vec![neighbour(ADVERTISEMENT, OVERRIDE, link, (source, ALL_NODES), address, option)]
        }
    }
}

/// Returns the multicast group in which hosts ask for an address.
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Reads what another host says about its address. `None` for all other frames.
pub fn read(frame: &[u8], own: Mac) -> Option<(IpAddr, Heard)> {
    let (address, mac, is_answer) = match frame.get(12..ETHERNET)? {
        kind if kind == ARP => read_arp(frame, own)?,
        kind if kind == IPV6_TYPE => read_advertisement(frame, own)?,
        _ => return None,
    };
    let is_station = mac[0] & 1 == 0 && mac != UNKNOWN && mac != own;
    is_station.then_some((address, if is_answer { Heard::Answer(mac) } else { Heard::Announcement(mac) }))
}

fn read_arp(frame: &[u8], own: Mac) -> Option<(IpAddr, Mac, bool)> {
    let arp = frame.get(ETHERNET..ETHERNET + 28)?;
    let (start, [0, operation], mac, sender) =
        (arp.get(..6)?, array(arp, 6)?, array(arp, 8)?, array::<4>(arp, 14)?)
    else {
        return None;
    };
    let target = array::<4>(arp, 24)?;
    let is_announcement = sender == target && [REQUEST, REPLY].contains(&operation);
    let is_answer = sender != target && operation == REPLY && array::<6>(frame, 0)? == own;
    let is_told = start == ARP_START && (is_announcement || is_answer);
    is_told.then(|| (IpAddr::from(sender), mac, is_answer))
}

fn read_advertisement(frame: &[u8], own: Mac) -> Option<(IpAddr, Mac, bool)> {
    let header = frame.get(ETHERNET..ETHERNET + IPV6)?;
    let message = frame.get(ETHERNET + IPV6..)?;
    let ([next_header, hop_limit], [kind, code]) = (array(header, 6)?, array(message, 0)?);
    if (next_header, hop_limit, kind, code) != (ICMPV6, HOP_LIMIT, ADVERTISEMENT, 0) {
        return None;
    }
    let ([flags], target) = (array(message, 4)?, array::<16>(message, 8)?);
    let mac = match array::<8>(message, 24) {
        Some([TARGET_LINK_ADDRESS, 1, mac @ ..]) => mac,
        _ => array(frame, 6)?,
    };
    let is_answer = flags & SOLICITED != 0 && array::<6>(frame, 0)? == own;
    Some((IpAddr::from(target), mac, is_answer))
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

/// `ends` are the sender and the target.
fn arp(operation: u8, from: Mac, to: Mac, ends: [(Mac, Ipv4Addr); 2]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &ARP, &ARP_START, &[0, operation]].concat();
    for (mac, address) in ends {
        frame.extend(mac);
        frame.extend(address.octets());
    }
    frame
}

fn neighbour(
    kind: u8,
    flags: u8,
    (from, to): (Mac, Mac),
    (source, destination): (Ipv6Addr, Ipv6Addr),
    target: Ipv6Addr,
    option: Option<(u8, Mac)>,
) -> Vec<u8> {
    let mut payload = target.octets().to_vec();
    if let Some((kind, mac)) = option {
        payload.extend([kind, 1]);
        payload.extend(mac);
    }
    let builder = PacketBuilder::ethernet2(from, to)
        .ipv6(source.octets(), destination.octets(), HOP_LIMIT)
        .icmpv6_raw(kind, 0, [flags, 0, 0, 0]);
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    // A vector takes all bytes, and the payload is short.
    let _ = builder.write(&mut frame, &payload);
    frame
}

/// Returns the MAC address of a multicast group (RFC 2464 section 7).
fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Mac = [2, 0, 0, 0, 0, 1];
    const THERE: Mac = [2, 0, 0, 0, 0, 2];

    fn host(mac: Mac) -> Host {
        Host { mac, address: Some("fe80::1".parse().unwrap()) }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// An answer of another host to a question, as the programs write it.
    fn answer(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(address) => arp(REPLY, THERE, HERE, [(THERE, address), (HERE, Ipv4Addr::UNSPECIFIED)]),
            IpAddr::V6(address) => neighbour(
                ADVERTISEMENT,
                SOLICITED | OVERRIDE,
                (THERE, HERE),
                (address, "fe80::1".parse().unwrap()),
                address,
                Some((TARGET_LINK_ADDRESS, THERE)),
            ),
        }
    }

    #[test]
    fn questions_have_the_bytes_of_the_standards() {
        let hex =
            |frame: Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        let arp = "0806000108000604000102000000000100000000000000000000cb007107";
        assert_eq!(
            hex(question(host(HERE), ip("203.0.113.7"), None)),
            format!("ffffffffffff020000000001{arp}")
        );
        let to_one = question(host(HERE), ip("203.0.113.7"), Some(THERE));
        assert_eq!(hex(to_one), format!("020000000002020000000001{arp}"));
        let solicitation = hex(question(host(HERE), ip("2001:db8::12:3456"), None));
        assert_eq!(
            solicitation,
            "3333ff12345602000000000186dd6000000000203aff\
             fe800000000000000000000000000001ff0200000000000000000001ff123456\
             8700CHECKSUM0000000020010db8000000000000000000123456\
             0101020000000001"
                .replace("CHECKSUM", &solicitation[112..116])
        );
    }

    /// The sum of all words of an IPv6 packet's payload and pseudo-header (RFC 8200 section 8.1).
    fn checksum(frame: &[u8]) -> u16 {
        let payload = &frame[54..];
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let words = [&frame[22..54], &length, &[0, ICMPV6], payload].concat();
        let sum: u32 = words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
    }

    #[test]
    fn checksums_are_right() {
        let address = ip("2001:db8::12:3456");
        let nobody = Host { mac: HERE, address: None };
        for host in [host(HERE), nobody] {
            let frames =
                announcements(host, address, None).into_iter().chain([question(host, address, Some(THERE))]);
            for frame in frames {
                assert_eq!(checksum(&frame), 0xffff, "{frame:x?}");
                assert_eq!(usize::from(u16::from_be_bytes([frame[18], frame[19]])), frame.len() - 54);
            }
        }
    }

    #[test]
    fn what_another_host_says_is_understood_and_ones_own_frames_are_not_heard() {
        for address in [ip("203.0.113.7"), ip("2001:db8::7")] {
            assert_eq!(read(&answer(address), HERE), Some((address, Heard::Answer(THERE))));
            for to in [None, Some(HERE)] {
                for frame in announcements(host(THERE), address, to) {
                    assert_eq!(read(&frame, HERE), Some((address, Heard::Announcement(THERE))));
                    assert_eq!(read(&frame, THERE), None, "its own");
                }
            }
            for to in [None, Some(HERE)] {
                assert_eq!(read(&question(host(THERE), address, to), HERE), None, "a question");
            }
        }
    }

    #[test]
    fn an_answer_to_another_host_is_no_answer_to_this_one() {
        assert_eq!(read(&answer(ip("203.0.113.7")), [2, 0, 0, 0, 0, 9]), None);
        let to_all = read(&answer(ip("2001:db8::7")), [2, 0, 0, 0, 0, 9]);
        assert_eq!(to_all, Some((ip("2001:db8::7"), Heard::Announcement(THERE))));
    }

    #[test]
    fn frames_that_are_cut_or_changed_are_not_misread() {
        for address in [ip("203.0.113.7"), ip("2001:db8::7")] {
            let frame = answer(address);
            let least = if address.is_ipv4() { 42 } else { 78 };
            for length in 0..least {
                assert_eq!(read(&frame[..length], HERE), None, "{length} bytes");
            }
            for byte in 12..20 {
                let mut other = frame.clone();
                other[byte] ^= 0x80;
                let said = read(&other, HERE);
                assert!(said.is_none() || address.is_ipv6(), "byte {byte}: {said:?}");
            }
        }
        // A group address can't be a host's.
        let mut group = answer(ip("203.0.113.7"));
        group[22] |= 1;
        assert_eq!(read(&group, HERE), None);
        // A router has passed it on.
        let mut far = answer(ip("2001:db8::7"));
        far[21] = 254;
        assert_eq!(read(&far, HERE), None);
    }
}
