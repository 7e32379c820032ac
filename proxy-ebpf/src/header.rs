//! The headers that the programs read and write, laid out as on the wire.
//!
//! Multi-byte fields hold network byte order. Numbers and sizes are from `network-types`, but the structs are
//! our own. Its fields are arrays of bytes, which BPF reads one at a time, because it has no unaligned loads.

use network_types::eth::{EthHdr, EtherType};
use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};
use network_types::tcp::TcpHdr;
use network_types::udp::UdpHdr;

/// An Ethernet header. The two addresses are words, because both are always written together.
#[repr(C, packed(2))]
#[derive(Clone, Copy)]
pub struct Ethernet {
    /// Destination and source MAC address, as they lie in memory.
    pub addresses: [u32; 3],
    /// EtherType.
    pub ether_type: u16,
}

/// An IPv4 header without options.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ipv4 {
    pub version_and_length: u8,
    pub tos: u8,
    pub total_length: u16,
    pub identification: u16,
    pub fragment: u16,
    pub ttl: u8,
    pub protocol: u8,
    pub checksum: u16,
    pub source: [u32; 1],
    pub destination: [u32; 1],
}

/// An IPv6 header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ipv6 {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub first_word: u32,
    pub payload_length: u16,
    pub next_header: u8,
    pub hop_limit: u8,
    pub source: [u32; 4],
    pub destination: [u32; 4],
}

/// The first bytes of an IPv6 extension header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extension {
    pub next_header: u8,
    /// Length in units of eight bytes, without the first.
    pub length: u8,
}

/// The first bytes of a routing header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RoutingHeader {
    pub next_header: u8,
    pub length: u8,
    pub kind: u8,
    pub segments_left: u8,
}

/// A fragment header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FragmentHeader {
    pub next_header: u8,
    pub reserved: u8,
    /// The offset (13 bits), two reserved bits, and whether more fragments follow.
    pub offset: u16,
    pub identification: u32,
}

/// The ports that TCP, UDP and SCTP begin with.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Ports {
    pub source: u16,
    pub destination: u16,
}

impl Ports {
    /// Both ports, as they lie in memory.
    #[inline(always)]
    pub const fn as_word(self) -> u32 {
        let ([first, second], [third, fourth]) = (self.source.to_ne_bytes(), self.destination.to_ne_bytes());
        u32::from_ne_bytes([first, second, third, fourth])
    }
}

/// A TCP header without options.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tcp {
    pub ports: Ports,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub data_offset: u8,
    pub flags: u8,
    pub window: u16,
    pub checksum: u16,
    pub urgent: u16,
}

/// A UDP header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Udp {
    pub ports: Ports,
    pub length: u16,
    pub checksum: u16,
}

/// An SCTP header. A chunk header follows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sctp {
    pub ports: Ports,
    pub tag: u32,
    pub checksum: u32,
}

/// An SCTP header and the first chunk's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SctpStart {
    pub header: Sctp,
    pub chunk: u8,
    pub chunk_flags: u8,
    pub chunk_length: u16,
}

/// An ICMP or `ICMPv6` header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IcmpHeader {
    pub kind: u8,
    pub code: u8,
    pub checksum: u16,
    pub rest: u32,
}

/// A MAC address as it lies in memory, in words: BPF has no wide copies of bytes.
pub type Mac = [u16; 3];

/// An ARP packet for IPv4 addresses on Ethernet (RFC 826).
#[repr(C, packed(2))]
#[derive(Clone, Copy)]
pub struct Arp {
    /// Kinds and lengths of the addresses; [`Arp::IPV4_ON_ETHERNET`] as this struct has them.
    pub form: [u16; 3],
    pub operation: u16,
    pub sender_mac: Mac,
    pub sender: u32,
    pub target_mac: Mac,
    pub target: u32,
}

impl Arp {
    pub const IPV4_ON_ETHERNET: [u16; 3] = [1_u16.to_be(), ether_type::IPV4, u16::from_ne_bytes([6, 4])];
    pub const REQUEST: u16 = 1_u16.to_be();
    pub const REPLY: u16 = 2_u16.to_be();
}

/// A Neighbour Solicitation or Advertisement, whose options follow (RFC 4861, sections 4.3 and 4.4).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NeighbourMessage {
    pub kind: u8,
    pub code: u8,
    pub checksum: u16,
    pub flags: u32,
    pub target: [u32; 4],
}

/// The option of such a message with its sender's or its target's MAC address (RFC 4861, section 4.6.1).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MacOption {
    pub kind: u8,
    /// In units of eight bytes.
    pub length: u8,
    pub mac: Mac,
}

/// Types for which any bytes in a frame are a valid value.
///
/// # Safety
///
/// No byte pattern is invalid, and there is no padding.
pub unsafe trait Wire: Copy {}

macro_rules! wire {
    ($($type:ty),*) => { $(
        // SAFETY: integers, and structs of integers in the order of the wire.
        unsafe impl Wire for $type {}
    )* };
}
wire!(
    u8,
    u16,
    u32,
    Ethernet,
    Ipv4,
    Ipv6,
    Extension,
    RoutingHeader,
    FragmentHeader,
    Ports,
    Tcp,
    Udp,
    Sctp,
    SctpStart,
    IcmpHeader,
    Arp,
    NeighbourMessage,
    MacOption
);

/// IP protocol numbers that the programs know.
pub mod protocol {
    use super::IpProto;

    pub const HOP_BY_HOP: u8 = IpProto::HopOpt as u8;
    pub const ICMP: u8 = IpProto::Icmp as u8;
    pub const IPV4: u8 = IpProto::Ipv4 as u8;
    pub const TCP: u8 = IpProto::Tcp as u8;
    pub const UDP: u8 = IpProto::Udp as u8;
    pub const IPV6: u8 = IpProto::Ipv6 as u8;
    pub const ROUTING: u8 = IpProto::Ipv6Route as u8;
    pub const FRAGMENT: u8 = IpProto::Ipv6Frag as u8;
    pub const ICMP6: u8 = IpProto::Ipv6Icmp as u8;
    pub const DESTINATION_OPTIONS: u8 = IpProto::Ipv6Opts as u8;
    pub const SCTP: u8 = IpProto::Sctp as u8;
}

/// EtherTypes that the programs know, network byte order.
pub mod ether_type {
    use super::EtherType;

    pub const ARP: u16 = EtherType::Arp as u16;
    pub const IPV4: u16 = EtherType::Ipv4 as u16;
    pub const IPV6: u16 = EtherType::Ipv6 as u16;
}

/// TCP flags.
pub mod tcp_flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const ACK: u8 = 0x10;
}

/// The TCP header's length in units of four bytes, in [`Tcp::data_offset`].
pub const DATA_OFFSET_MASK: u8 = 0xf0;
/// Don't fragment, in [`Ipv4::fragment`].
pub const DONT_FRAGMENT: u16 = 0x4000_u16.to_be();
/// More fragments follow, in [`Ipv4::fragment`].
pub const MORE_FRAGMENTS: u16 = 0x2000_u16.to_be();
/// The fragment offset, in [`Ipv4::fragment`].
pub const OFFSET_MASK: u16 = 0x1fff_u16.to_be();
/// More fragments and the fragment offset, in [`Ipv4::fragment`].
pub const FRAGMENT_MASK: u16 = 0x3fff_u16.to_be();
/// The fragment offset, in [`FragmentHeader::offset`].
pub const OFFSET6_MASK: u16 = 0xfff8_u16.to_be();
/// More fragments and the fragment offset, in [`FragmentHeader::offset`].
pub const FRAGMENT6_MASK: u16 = 0xfff9_u16.to_be();

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = size_of::<Ethernet>();
const _: () = assert!(ETHERNET == EthHdr::LEN);
const _: () = assert!(size_of::<Ipv4>() == Ipv4Hdr::LEN && size_of::<Ipv6>() == Ipv6Hdr::LEN);
const _: () = assert!(size_of::<Tcp>() == TcpHdr::LEN && size_of::<Udp>() == UdpHdr::LEN);

/// Whether a protocol is TCP, UDP or SCTP.
#[inline(always)]
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Whether a protocol's packets show that they open a connection: TCP or SCTP.
#[inline(always)]
pub const fn has_connections(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::SCTP)
}

/// Whether a header may stand in front of the transport's and can be skipped.
#[inline(always)]
pub const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS | protocol::ROUTING | protocol::FRAGMENT
    )
}
