//! The headers of frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;

/// A MAC address.
pub type Mac = [u8; 6];

/// TCP flags.
pub mod flag {
    /// The sender has no more data.
    pub const FIN: u8 = 1;
    /// Opens a connection.
    pub const SYN: u8 = 1 << 1;
    /// Ends a connection at once.
    pub const RST: u8 = 1 << 2;
    /// The receiver is to hand the data to the application.
    pub const PSH: u8 = 1 << 3;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 1 << 4;
}

/// Types of SCTP's chunks.
pub mod chunk {
    /// Data.
    pub const DATA: u8 = 0;
    /// Opens an association.
    pub const INIT: u8 = 1;
    /// Answers it.
    pub const INIT_ACK: u8 = 2;
    /// Acknowledges data.
    pub const SACK: u8 = 3;
    /// Ends an association at once.
    pub const ABORT: u8 = 6;
    /// Its sender has no more data.
    pub const SHUTDOWN: u8 = 7;
    /// Answers it.
    pub const SHUTDOWN_ACK: u8 = 8;
    /// The client's answer to INIT ACK.
    pub const COOKIE_ECHO: u8 = 10;
    /// The answer to SHUTDOWN ACK.
    pub const SHUTDOWN_COMPLETE: u8 = 14;
}

/// IP protocol numbers.
pub mod protocol {
    /// Hop-by-hop options (IPv6).
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IPv4 inside IP.
    pub const IPIP: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 inside IP.
    pub const IPV6: u8 = 41;
    /// Routing header (IPv6).
    pub const ROUTING: u8 = 43;
    /// Fragment header (IPv6).
    pub const FRAGMENT: u8 = 44;
    /// `ICMPv6`.
    pub const ICMP6: u8 = 58;
    /// Nothing follows (IPv6).
    pub const NOTHING: u8 = 59;
    /// Destination options (IPv6).
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// Reserved for experiments (RFC 3692).
    pub const EXPERIMENT: u8 = 253;
}

/// One header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// IEEE 802.1Q or 802.1ad.
    Vlan(Vlan),
    /// IPv4.
    Ipv4(Ipv4),
    /// IPv6.
    Ipv6(Ipv6),
    /// An IPv6 extension header.
    Extension(Extension),
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp(Udp),
    /// SCTP, and the first chunk's header.
    Sctp(Sctp),
    /// ICMP or `ICMPv6`, by the IP header around it.
    Icmp(Icmp),
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// 0x8100, or 0x88a8 for a service tag.
    pub tag_protocol: u16,
    /// Priority and VLAN id.
    pub control: u16,
}

/// An IPv4 header without its length and checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// DSCP and ECN.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// The DF flag.
    pub dont_fragment: bool,
    /// The MF flag.
    pub more_fragments: bool,
    /// Fragment offset in units of eight bytes.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Options; a multiple of four bytes.
    pub options: Bytes,
    /// Protocol number, if the next layer does not imply it.
    pub protocol: Option<u8>,
}

/// An IPv6 header without its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Next header, if the next layer does not imply it.
    pub protocol: Option<u8>,
}

/// An IPv6 extension header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its protocol number.
    pub kind: u8,
    /// The bytes after the first two. With those two, a multiple of eight bytes.
    pub body: Bytes,
    /// Next header, if the next layer does not imply it.
    pub protocol: Option<u8>,
}

/// A TCP header without its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// [`flag`] bits.
    pub flags: u8,
    /// Window.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options; a multiple of four bytes.
    pub options: Bytes,
}

/// Whether an SCTP header carries a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SctpChecksum {
    /// Yes.
    Computed,
    /// The field is zero: not filled in yet, or none (RFC 9653).
    None,
}

/// An SCTP header and the header of its first chunk, which holds the whole payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sctp {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Verification tag.
    pub tag: u32,
    /// The [`chunk`]'s type.
    pub chunk: u8,
    /// Whether the checksum field is used.
    pub checksum: SctpChecksum,
}

/// Whether a UDP header carries a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpChecksum {
    /// Yes. A sum of zero is sent as 0xffff (RFC 768).
    Computed,
    /// The field is zero, which means "none".
    None,
}

/// A UDP header without its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Whether the checksum field is used.
    pub checksum: UdpChecksum,
}

/// An ICMP or `ICMPv6` header without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// The four bytes after the checksum.
    pub rest: [u8; 4],
}

impl Layer {
    /// Returns an IP header of the addresses' family.
    ///
    /// # Panics
    /// If the families differ.
    #[must_use]
    pub fn ip(source: IpAddr, destination: IpAddr) -> Self {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4::new(source, destination).into(),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6::new(source, destination).into(),
            _ => panic!("{source} and {destination} are of two families"),
        }
    }

    /// Returns the bytes of the header.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Vlan(_) => 4,
            Self::Ipv4(header) => 20 + header.options.len(),
            Self::Ipv6(_) => 40,
            Self::Extension(header) => 2 + header.body.len(),
            Self::Tcp(header) => 20 + header.options.len(),
            Self::Sctp(_) => 16,
            Self::Udp(_) | Self::Icmp(_) => 8,
        }
    }

    /// Returns whether this is an IPv4 or IPv6 header.
    #[must_use]
    pub const fn is_ip(&self) -> bool {
        matches!(self, Self::Ipv4(_) | Self::Ipv6(_))
    }
}

impl Vlan {
    /// Returns a customer tag (IEEE 802.1Q).
    #[must_use]
    pub const fn customer(id: u16) -> Self {
        Self { tag_protocol: 0x8100, control: id }
    }
    /// Returns a service tag (IEEE 802.1ad), the outer of two.
    #[must_use]
    pub const fn service(id: u16) -> Self {
        Self { tag_protocol: 0x88a8, control: id }
    }
}

impl Ipv4 {
    /// Returns a plain header: TTL 64, DF clear, id 0x1234.
    #[must_use]
    pub const fn new(source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        Self {
            source,
            destination,
            tos: 0,
            id: 0x1234,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            options: Bytes::new(),
            protocol: None,
        }
    }
}

impl Ipv6 {
    /// Returns a plain header: hop limit 64.
    #[must_use]
    pub const fn new(source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        Self { source, destination, traffic_class: 0, flow_label: 0, hop_limit: 64, protocol: None }
    }
}

impl Extension {
    /// Hop-by-hop options: `units` times eight bytes of padding options.
    #[must_use]
    pub fn hop_by_hop(units: usize) -> Self {
        Self::padding(protocol::HOP_BY_HOP, units)
    }
    /// Destination options: `units` times eight bytes of padding options.
    #[must_use]
    pub fn destination_options(units: usize) -> Self {
        Self::padding(protocol::DESTINATION_OPTIONS, units)
    }
    /// Returns a routing header of type 4 without segments left, so that the destination is final.
    #[must_use]
    pub fn routing() -> Self {
        let body = [&[4, 0, 0, 0, 0, 0][..], &[0x20; 16]].concat();
        Self { kind: protocol::ROUTING, body: body.into(), protocol: None }
    }
    /// Returns a fragment header; `offset` in units of eight bytes.
    #[must_use]
    pub fn fragment(offset: u16, more: bool, id: u32) -> Self {
        let field = offset << 3 | u16::from(more);
        let body = [&field.to_be_bytes()[..], &id.to_be_bytes()].concat();
        Self { kind: protocol::FRAGMENT, body: body.into(), protocol: None }
    }

    /// `PadN` (RFC 8200, section 4.2) may carry at most 255 zero bytes; eight at a time are enough
    /// here.
    fn padding(kind: u8, units: usize) -> Self {
        let pad = |bytes: u8| [&[1, bytes][..], &vec![0; usize::from(bytes)]].concat();
        let body = (1..units).fold(pad(4), |body, _| [body, pad(6)].concat());
        Self { kind, body: body.into(), protocol: None }
    }
}

/// The sequence number of every TCP packet of the tests. A packet with an ACK so shows that its
/// sender has seen the other side's SYN.
pub const FIRST_NUMBER: u32 = 0x0102_0304;

impl Tcp {
    /// Returns a header without options.
    #[must_use]
    pub const fn new(source: u16, destination: u16, flags: u8) -> Self {
        Self {
            source,
            destination,
            sequence: FIRST_NUMBER,
            acknowledgement: if flags & flag::ACK == 0 { 0 } else { FIRST_NUMBER + 1 },
            flags,
            window: 0xfaf0,
            urgent: 0,
            options: Bytes::new(),
        }
    }
}

impl Udp {
    /// Returns a header with a checksum.
    #[must_use]
    pub const fn new(source: u16, destination: u16) -> Self {
        Self { source, destination, checksum: UdpChecksum::Computed }
    }
}

impl Sctp {
    /// Returns a packet that begins with a chunk.
    #[must_use]
    pub const fn new(source: u16, destination: u16, chunk: u8) -> Self {
        Self { source, destination, tag: 0x0a0b_0c0d, chunk, checksum: SctpChecksum::Computed }
    }
}

macro_rules! into_layer {
    ($($name:ident)+) => {$(
        impl From<$name> for Layer {
            fn from(header: $name) -> Self {
                Self::$name(header)
            }
        }
    )+};
}
into_layer!(Vlan Ipv4 Ipv6 Extension Tcp Udp Sctp Icmp);
