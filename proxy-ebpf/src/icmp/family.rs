//! The differences between ICMP and `ICMPv6`.

use core::mem::offset_of;

use proxy_common::checksum::Difference;
use proxy_common::icmp::SourcePrefix;
use proxy_common::verdict::Reason;
use proxy_common::way::WAY_IPV4;
use proxy_common::{Addr4, Addr6, Address};

use super::quoted::Behind;
use crate::header::{DONT_FRAGMENT, ETHERNET, IcmpHeader, Ipv4, Ipv6, OFFSET_MASK, is_extension, protocol};
use crate::maps::v4::V4;
use crate::maps::v6::V6;
use crate::packet::ip::Header;
use crate::packet::{Packet, Parsed};

/// Type, code and the four bytes behind the checksum, which are in network byte order.
#[derive(Clone, Copy)]
pub struct Message {
    pub kind: u8,
    pub code: u8,
    pub rest: u32,
}

/// Offset of the next header field in the fixed IPv6 header.
const NEXT_HEADER: u32 = offset_of!(Ipv6, next_header) as u32;

/// Hop limit of our own messages.
const OWN_HOP_LIMIT: u8 = 64;

/// The MTU that every IPv6 link supports (RFC 8200, section 5).
pub(super) const LEAST_LINK: u32 = 1280;

/// The IP header that an error quotes.
#[derive(Clone, Copy)]
pub struct Quote<A> {
    pub source: A,
    pub destination: A,
    pub protocol: u8,
    /// Offset behind the header, and IPv6's extensions.
    pub transport: u32,
}

/// A family's ICMP.
pub trait Icmp: Header {
    /// Protocol number.
    const PROTOCOL: u8;
    /// Type of a message that asks for an echo.
    const ECHO_REQUEST: u8;
    /// Type of the echo.
    const ECHO_REPLY: u8;
    /// Type of a message that asks for a MAC address.
    const SOLICITATION: Option<u8>;
    /// Whether the checksum covers a pseudo-header.
    const HAS_PSEUDO_HEADER: bool;
    /// Flag of a way whose addresses are of this family, or zero.
    const WAY_FLAG: u16;

    /// The message for the sender of a packet dropped for `reason`; `size` is the size that would have
    /// fitted.
    fn error(reason: Reason, size: u32) -> Option<Message>;
    /// Whether a router may have fragmented this packet, so that its sender expects no message about its
    /// size.
    fn may_be_fragmented<P: Packet>(packet: &P, network: usize) -> bool;
    /// The lowest MTU that the program believes from a router.
    const LEAST_MTU: u32;
    /// The lowest MTU that a sender accepts in an error about a packet's size.
    const LEAST_TOLD: u32;

    /// The MTU in a message that says that a packet did not fit.
    fn next_mtu(header: IcmpHeader) -> Option<u32>;
    /// Whether an address can be a single host's: not unspecified, loopback, multicast or broadcast.
    fn is_host(address: &Self::Address) -> bool;
    /// Whether a type is that of an error that may be about one connection.
    fn is_error(kind: u8) -> bool;
    /// Whether a packet may be a question for a MAC address to the group of those that may have the address.
    fn may_be_solicitation<P: Packet>(packet: &P) -> bool;
    /// Reads the IP header that an error quotes at `offset`. Reads whole packets and first fragments only.
    fn read_quote<P: Packet>(packet: &P, offset: usize) -> Option<Quote<Self::Address>>;
    /// Gives a received packet the hop limit of a sent one.
    fn renew_hop_limit<P: Packet>(packet: &P) -> Option<()>;
    /// The prefix whose messages share a limit.
    fn prefix(address: &Self::Address) -> SourcePrefix;
}

impl Icmp for V4 {
    const PROTOCOL: u8 = protocol::ICMP;
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;
    const SOLICITATION: Option<u8> = None;
    const HAS_PSEUDO_HEADER: bool = false;
    const WAY_FLAG: u16 = WAY_IPV4;
    /// The size that every host accepts (RFC 791, section 3.1). A lower MTU is more likely forged than a
    /// link's.
    const LEAST_MTU: u32 = 576;
    const LEAST_TOLD: u32 = 68;

    #[inline(always)]
    fn next_mtu(header: IcmpHeader) -> Option<u32> {
        // RFC 1191, section 4. Older routers name none.
        (header.kind == 3 && header.code == 4).then(|| u32::from_be(header.rest) & 0xffff)
    }
    #[inline(always)]
    fn error(reason: Reason, size: u32) -> Option<Message> {
        match reason {
            Reason::NoEndpoint | Reason::UnknownPort => Some(Message { kind: 3, code: 3, rest: 0 }),
            Reason::UnknownProtocol => Some(Message { kind: 3, code: 2, rest: 0 }),
            Reason::TooBig => Some(Message { kind: 3, code: 4, rest: (size & 0xffff).to_be() }),
            Reason::HopLimit => Some(Message { kind: 11, code: 0, rest: 0 }),
            _ => None,
        }
    }
    #[inline(always)]
    fn may_be_fragmented<P: Packet>(packet: &P, network: usize) -> bool {
        // SAFETY: `at` checked the bound.
        packet.at::<Ipv4>(network).is_none_or(|header| unsafe { (*header).fragment } & DONT_FRAGMENT == 0)
    }
    #[inline(always)]
    fn is_host(address: &Addr4) -> bool {
        let [word] = address.0;
        let [first, ..] = word.to_ne_bytes();
        first != 0 && first != 127 && first < 224
    }
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 3 | 11 | 12)
    }
    #[inline(always)]
    fn may_be_solicitation<P: Packet>(_packet: &P) -> bool {
        false
    }
    #[inline(always)]
    fn read_quote<P: Packet>(packet: &P, offset: usize) -> Option<Quote<Addr4>> {
        let header = packet.read::<Ipv4>(offset)?;
        let length = u32::from(header.version_and_length & 0x0f) << 2;
        if header.version_and_length >> 4 != 4 || length < 20 || header.fragment & OFFSET_MASK != 0 {
            return None;
        }
        Some(Quote {
            source: Addr4(header.source),
            destination: Addr4(header.destination),
            protocol: header.protocol,
            transport: offset as u32 + length,
        })
    }
    #[inline(always)]
    fn renew_hop_limit<P: Packet>(packet: &P) -> Option<()> {
        packet.update::<Ipv4>(ETHERNET, |header| {
            let old = u16::from_ne_bytes([header.ttl, header.protocol]);
            let new = u16::from_ne_bytes([OWN_HOP_LIMIT, header.protocol]);
            header.ttl = OWN_HOP_LIMIT;
            header.checksum = Difference::default().half(old, new).apply(header.checksum);
        })
    }
    #[inline(always)]
    fn prefix(address: &Addr4) -> SourcePrefix {
        let [word] = address.0;
        SourcePrefix::new([0, word & 0xffff_ff00_u32.to_be()])
    }
}

impl Icmp for V6 {
    const PROTOCOL: u8 = protocol::ICMP6;
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;
    const SOLICITATION: Option<u8> = Some(135);
    const HAS_PSEUDO_HEADER: bool = true;
    const WAY_FLAG: u16 = 0;
    const LEAST_MTU: u32 = LEAST_LINK;
    const LEAST_TOLD: u32 = LEAST_LINK;

    #[inline(always)]
    fn next_mtu(header: IcmpHeader) -> Option<u32> {
        (header.kind == 2 && header.code == 0).then(|| u32::from_be(header.rest))
    }
    #[inline(always)]
    fn error(reason: Reason, size: u32) -> Option<Message> {
        match reason {
            Reason::NoEndpoint | Reason::UnknownPort => Some(Message { kind: 1, code: 4, rest: 0 }),
            Reason::UnknownProtocol => Some(Message { kind: 4, code: 1, rest: NEXT_HEADER.to_be() }),
            Reason::TooBig => Some(Message { kind: 2, code: 0, rest: size.max(Self::LEAST_TOLD).to_be() }),
            Reason::HopLimit => Some(Message { kind: 3, code: 0, rest: 0 }),
            _ => None,
        }
    }
    #[inline(always)]
    fn may_be_fragmented<P: Packet>(_packet: &P, _network: usize) -> bool {
        false
    }
    #[inline(always)]
    fn is_host(address: &Addr6) -> bool {
        let [first, second, third, _] = address.0;
        // ::1, :: and the other addresses below ::/96, which were never assigned.
        let is_special = first | second | third == 0;
        let [top, ..] = first.to_ne_bytes();
        !is_special && top != 0xff
    }
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 1..=4)
    }
    #[inline(always)]
    fn may_be_solicitation<P: Packet>(packet: &P) -> bool {
        Self::peek_destination(packet, ETHERNET, |destination, protocol| {
            protocol == Self::PROTOCOL && is_solicited_node(destination)
        }) == Some(true)
    }
    #[inline(always)]
    fn read_quote<P: Packet>(packet: &P, offset: usize) -> Option<Quote<Addr6>> {
        let header = packet.read::<Ipv6>(offset)?;
        let (first, protocol) = (header.first_word, header.next_header);
        if u32::from_be(first) >> 28 != 6 {
            return None;
        }
        let mut behind = Behind { protocol, transport: (offset + size_of::<Ipv6>()) as u32 };
        if is_extension(protocol) {
            behind = Behind::headers_at(packet, offset)?;
        }
        let (source, destination) = Self::read_addresses(packet, offset)?;
        let Behind { protocol, transport } = behind;
        Some(Quote { source, destination, protocol, transport })
    }
    #[inline(always)]
    fn renew_hop_limit<P: Packet>(packet: &P) -> Option<()> {
        let header = packet.at::<Ipv6>(ETHERNET)?;
        // SAFETY: `at` checked the bound.
        let (old, next_header) = unsafe { ((*header).hop_limit, (*header).next_header) };
        let word = |hop_limit| u16::from_ne_bytes([next_header, hop_limit]);
        packet.adjust_whole_checksum(Difference::default().half(word(old), word(OWN_HOP_LIMIT)));
        packet.update::<Ipv6>(ETHERNET, |header| header.hop_limit = OWN_HOP_LIMIT)
    }
    #[inline(always)]
    fn prefix(address: &Addr6) -> SourcePrefix {
        let [first, second, ..] = address.0;
        SourcePrefix::new([first, second])
    }
}

/// The group of the IPv6 addresses that end as an address does (RFC 4291, section 2.7.1): `ff02::1:ff` and the last
/// three bytes.
#[inline(always)]
pub const fn solicited_node(address: &[u32; 4]) -> [u32; 4] {
    let [.., last] = *address;
    [0xff02_0000_u32.to_be(), 0, 1_u32.to_be(), 0xff00_0000_u32.to_be() | last & 0x00ff_ffff_u32.to_be()]
}

#[inline(always)]
fn is_solicited_node(address: &Addr6) -> bool {
    address.difference(&Addr6(solicited_node(&address.0))) == 0
}

/// Whether a packet came from one host to one host, and may be answered.
#[inline(always)]
pub fn may_answer<P: Packet, F: Icmp>(packet: &P, parsed: &Parsed<F::Address>) -> bool {
    let Some(ethernet) = packet.ethernet() else {
        return false;
    };
    // SAFETY: `at` checked the bound.
    let [destination, ..] = unsafe { (*ethernet).addresses };
    let [first, ..] = destination.to_ne_bytes();
    first & 1 == 0 && F::is_host(&parsed.key.source) && F::is_host(&parsed.key.destination)
}
