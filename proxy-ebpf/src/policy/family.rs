//! The two families: their maps and headers.

use aya_ebpf::btf_maps::lpm_trie::Key;
use proxy_common::addr::Address;
use proxy_common::policy::{PolicyFlowKey, PolicyPod};
use proxy_common::{Addr4, Addr6};

use crate::header::{ETHERNET, FRAGMENT_MASK, Ipv4, Ipv6, OFFSET_MASK, Wire, is_extension, protocol};
use crate::policy::extensions;
use crate::policy::maps::{self, FlowsMap, FragmentsMap};
use crate::policy::shape::{Packet, Piece, Unread};
use crate::policy::skb::Skb;

/// The key of a connection.
pub type KeyOf<F> = PolicyFlowKey<<F as Family>::Address>;

/// An address family.
pub trait Family: Copy {
    /// Its addresses.
    type Address: Address;
    /// Its header.
    type Header: Wire;
    /// The protocol number of its ICMP.
    const ICMP: u8;
    /// Type of an echo request.
    const ECHO_REQUEST: u8;
    /// Type of an echo reply.
    const ECHO_REPLY: u8;

    /// POLICY_FLOWS4/6.
    fn flows() -> &'static FlowsMap<Self::Address>;
    /// POLICY_FRAGMENTS4/6.
    fn fragments() -> &'static FragmentsMap<Self::Address>;
    /// The value of POLICY_PEERS4/6, 0 without an entry.
    fn peer(address: &Self::Address) -> u32;
    /// The pod's address; zeros = none.
    fn address_of(pod: &PolicyPod) -> Self::Address;
    /// The address in four words.
    fn map(address: &Self::Address) -> [u32; 4];
    /// The address of four words in a message; `None` for IPv4, whose messages have none.
    fn from_words(words: [u32; 4]) -> Option<Self::Address>;
    /// Whether an ICMP type is an error, which quotes a packet.
    fn is_error(kind: u8) -> bool;
    /// Source, destination and protocol of a header that a whole transport header follows.
    fn read_quoted(header: &Self::Header) -> Option<(Self::Address, Self::Address, u8)>;
    /// Source, destination, protocol and length of a whole packet with one header, and none with an option.
    fn read_plain(header: &Self::Header) -> Option<(Self::Address, Self::Address, u8, u32)>;
    /// Reads the headers of a frame's packet, the addresses first.
    fn read<const FROM_POD: bool>(skb: Skb, packet: &mut Packet<Self::Address>) -> Result<(), Unread>;
}

/// IPv4.
#[derive(Clone, Copy)]
pub struct V4;

/// IPv6.
#[derive(Clone, Copy)]
pub struct V6;

/// Version 4, and a header of five words.
const PLAIN4: u8 = 0x45;

impl Family for V4 {
    type Address = Addr4;
    type Header = Ipv4;
    const ICMP: u8 = protocol::ICMP;
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;

    #[inline(always)]
    fn flows() -> &'static FlowsMap<Addr4> {
        &maps::POLICY_FLOWS4
    }
    #[inline(always)]
    fn fragments() -> &'static FragmentsMap<Addr4> {
        &maps::POLICY_FRAGMENTS4
    }
    #[inline(always)]
    fn peer(address: &Addr4) -> u32 {
        maps::POLICY_PEERS4.get(&Key::new(u32::BITS, *address)).copied().unwrap_or(0)
    }
    #[inline(always)]
    fn address_of(pod: &PolicyPod) -> Addr4 {
        Addr4(pod.address4)
    }
    #[inline(always)]
    fn map(address: &Addr4) -> [u32; 4] {
        let [word] = address.0;
        [0, 0, 0xffff_u32.to_be(), word]
    }
    #[inline(always)]
    fn from_words(_words: [u32; 4]) -> Option<Addr4> {
        None
    }
    /// Unreachable, source quench, time exceeded, parameter problem (RFC 792).
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 3 | 4 | 11 | 12)
    }
    #[inline(always)]
    fn read_quoted(header: &Ipv4) -> Option<(Addr4, Addr4, u8)> {
        (header.version_and_length == PLAIN4 && header.fragment & OFFSET_MASK == 0).then_some((
            Addr4(header.source),
            Addr4(header.destination),
            header.protocol,
        ))
    }
    #[inline(always)]
    fn read_plain(header: &Ipv4) -> Option<(Addr4, Addr4, u8, u32)> {
        (header.version_and_length == PLAIN4 && header.fragment & FRAGMENT_MASK == 0).then_some((
            Addr4(header.source),
            Addr4(header.destination),
            header.protocol,
            u16::from_be(header.total_length).into(),
        ))
    }
    #[inline(always)]
    fn read<const FROM_POD: bool>(skb: Skb, packet: &mut Packet<Addr4>) -> Result<(), Unread> {
        const HEADER: u32 = size_of::<Ipv4>() as u32;
        skb.pull(ETHERNET as u32 + HEADER);
        let header = skb.at::<Ipv4>(ETHERNET).ok_or(Unread::Addresses)?;
        // SAFETY: `at` checked the bound; the kernel runs these programs only where words may lie anywhere.
        let header = unsafe { &*header };
        set_ends::<Addr4, FROM_POD>(&mut packet.key, Addr4(header.source), Addr4(header.destination));
        packet.key.protocol = header.protocol.into();
        (packet.id, packet.hops) = (header.identification.into(), header.ttl);
        packet.transport = ETHERNET as u32 + HEADER;
        packet.piece = if header.fragment & FRAGMENT_MASK == 0 {
            Piece::Whole
        } else if header.fragment & OFFSET_MASK == 0 {
            Piece::First
        } else {
            Piece::Later
        };
        let is_plain = header.version_and_length == PLAIN4;
        let overlaps = header.fragment & OFFSET_MASK == SECOND4;
        let length = length_of(skb, u16::from_be(header.total_length).into(), 0);
        packet.end = ETHERNET as u32 + length;
        if !is_plain || overlaps || length < HEADER || packet.end > skb.length() {
            return Err(Unread::Transport);
        }
        Ok(())
    }
}

/// The offset of a fragment that begins in the transport header: it could change what the first one said
/// (RFC 3128). Honest fragments are larger.
const SECOND4: u16 = 1_u16.to_be();

impl Family for V6 {
    type Address = Addr6;
    type Header = Ipv6;
    const ICMP: u8 = protocol::ICMP6;
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;

    #[inline(always)]
    fn flows() -> &'static FlowsMap<Addr6> {
        &maps::POLICY_FLOWS6
    }
    #[inline(always)]
    fn fragments() -> &'static FragmentsMap<Addr6> {
        &maps::POLICY_FRAGMENTS6
    }
    #[inline(always)]
    fn peer(address: &Addr6) -> u32 {
        maps::POLICY_PEERS6.get(&Key::new(4 * u32::BITS, *address)).copied().unwrap_or(0)
    }
    #[inline(always)]
    fn address_of(pod: &PolicyPod) -> Addr6 {
        Addr6(pod.address6)
    }
    #[inline(always)]
    fn map(address: &Addr6) -> [u32; 4] {
        address.0
    }
    #[inline(always)]
    fn from_words(words: [u32; 4]) -> Option<Addr6> {
        Some(Addr6(words))
    }
    /// Unreachable, too big, time exceeded, parameter problem (RFC 4443).
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 1..=4)
    }
    #[inline(always)]
    fn read_quoted(header: &Ipv6) -> Option<(Addr6, Addr6, u8)> {
        (u32::from_be(header.first_word) >> 28 == 6 && !is_extension(header.next_header)).then_some((
            Addr6(header.source),
            Addr6(header.destination),
            header.next_header,
        ))
    }
    #[inline(always)]
    fn read_plain(header: &Ipv6) -> Option<(Addr6, Addr6, u8, u32)> {
        (u32::from_be(header.first_word) >> 28 == 6).then_some((
            Addr6(header.source),
            Addr6(header.destination),
            header.next_header,
            u32::from(u16::from_be(header.payload_length)) + size_of::<Ipv6>() as u32,
        ))
    }
    #[inline(always)]
    fn read<const FROM_POD: bool>(skb: Skb, packet: &mut Packet<Addr6>) -> Result<(), Unread> {
        const HEADER: u32 = size_of::<Ipv6>() as u32;
        skb.pull(ETHERNET as u32 + HEADER);
        let header = skb.at::<Ipv6>(ETHERNET).ok_or(Unread::Addresses)?;
        // SAFETY: as for IPv4.
        let header = unsafe { &*header };
        set_ends::<Addr6, FROM_POD>(&mut packet.key, Addr6(header.source), Addr6(header.destination));
        packet.key.protocol = header.next_header.into();
        (packet.id, packet.hops, packet.piece) = (0, header.hop_limit, Piece::Whole);
        packet.transport = ETHERNET as u32 + HEADER;
        let length = length_of(skb, u16::from_be(header.payload_length).into(), HEADER);
        packet.end = ETHERNET as u32 + HEADER + length;
        if u32::from_be(header.first_word) >> 28 != 6 || packet.end > skb.length() {
            return Err(Unread::Transport);
        }
        if is_extension(packet.key.protocol as u8) { extensions::step_over(skb, packet) } else { Ok(()) }
    }
}

#[inline(always)]
fn set_ends<A, const FROM_POD: bool>(key: &mut PolicyFlowKey<A>, source: A, destination: A) {
    (key.pod, key.peer) = if FROM_POD { (source, destination) } else { (destination, source) };
}

/// The length that a header claims, of what follows `header` bytes.
///
/// BIG TCP: a frame of more than 64 KiB, which is always a GSO frame, has zero in its length field.
#[inline(always)]
fn length_of(skb: Skb, claimed: u32, header: u32) -> u32 {
    if claimed == 0 && skb.has_segments() {
        skb.length().saturating_sub(ETHERNET as u32 + header)
    } else {
        claimed
    }
}
