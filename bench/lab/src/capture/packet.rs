//! The parts of a frame that prove its way: addresses and ports, through one tunnel header.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy_common::way::FOU_PORT;

const IPIP: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6: u8 = 41;

/// An IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The outer header, if the packet is encapsulated. All other fields are of the inner packet.
    pub tunnel: Option<Tunnel>,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol above IP, if it is TCP or UDP.
    pub transport: Option<Transport>,
    /// Bytes of the packet, outer header included.
    pub length: usize,
}

/// The outer header of an encapsulated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The source port of the UDP header in between, if there is one.
    pub udp: Option<u16>,
}

/// The TCP or UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// 6 or 17.
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// TCP flags; 0 for UDP.
    pub flags: u8,
    /// Bytes behind the header.
    pub payload: usize,
}

impl Transport {
    /// TCP.
    #[must_use]
    pub const fn is_tcp(&self) -> bool {
        self.protocol == TCP
    }
}

impl Packet {
    /// Parses an Ethernet frame. Returns `None` for anything but a whole IP packet.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(14..)?;
        let outer = match half(frame, 12)? {
            0x0800 => Header::parse_v4(ip)?,
            0x86dd => Header::parse_v6(ip)?,
            _ => return None,
        };
        let inner = match outer.protocol {
            IPIP => Some(Header::parse_v4(outer.payload)?),
            IPV6 => Some(Header::parse_v6(outer.payload)?),
            UDP if half(outer.payload, 2)? == FOU_PORT => match outer.payload.get(8)? >> 4 {
                4 => Some(Header::parse_v4(outer.payload.get(8..)?)?),
                6 => Some(Header::parse_v6(outer.payload.get(8..)?)?),
                _ => None,
            },
            _ => None,
        };
        let udp = if outer.protocol == UDP { half(outer.payload, 0) } else { None };
        let tunnel = inner.map(|_| Tunnel { source: outer.source, destination: outer.destination, udp });
        let Header { source, destination, .. } = inner.unwrap_or(outer);
        let transport = inner.unwrap_or(outer).transport();
        Some(Self { tunnel, source, destination, transport, length: ip.len() })
    }

    /// Returns the source address and port; `None` without ports.
    #[must_use]
    pub fn from(&self) -> Option<SocketAddr> {
        self.transport.map(|transport| SocketAddr::new(self.source, transport.source_port))
    }

    /// Returns the destination address and port; `None` without ports.
    #[must_use]
    pub fn to(&self) -> Option<SocketAddr> {
        self.transport.map(|transport| SocketAddr::new(self.destination, transport.destination_port))
    }

    /// Returns whether the (inner) packet goes from one socket to the other.
    #[must_use]
    pub fn is_between(&self, from: SocketAddr, to: SocketAddr) -> bool {
        self.from() == Some(from) && self.to() == Some(to)
    }
}

/// The common fields of both IP headers.
#[derive(Clone, Copy)]
struct Header<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: &'a [u8],
}

impl<'a> Header<'a> {
    fn parse_v4(bytes: &'a [u8]) -> Option<Self> {
        let header = usize::from(bytes.first()? & 15) * 4;
        let length = usize::from(half(bytes, 2)?);
        Some(Self {
            source: IpAddr::V4(Ipv4Addr::from(array(bytes, 12)?)),
            destination: IpAddr::V4(Ipv4Addr::from(array(bytes, 16)?)),
            protocol: *bytes.get(9)?,
            payload: bytes.get(header..length)?,
        })
    }

    fn parse_v6(bytes: &'a [u8]) -> Option<Self> {
        let length = usize::from(half(bytes, 4)?);
        Some(Self {
            source: IpAddr::V6(Ipv6Addr::from(array(bytes, 8)?)),
            destination: IpAddr::V6(Ipv6Addr::from(array(bytes, 24)?)),
            protocol: *bytes.get(6)?,
            payload: bytes.get(40..40 + length)?,
        })
    }

    fn transport(&self) -> Option<Transport> {
        let (header, flags) = match self.protocol {
            TCP => (usize::from(self.payload.get(12)? >> 4) * 4, *self.payload.get(13)?),
            UDP => (8, 0),
            _ => return None,
        };
        Some(Transport {
            protocol: self.protocol,
            source_port: half(self.payload, 0)?,
            destination_port: half(self.payload, 2)?,
            flags,
            payload: self.payload.len().checked_sub(header)?,
        })
    }
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

fn half(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_be_bytes)
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tunnel) = &self.tunnel {
            write!(f, "[{} > {}] ", tunnel.source, tunnel.destination)?;
        }
        match (self.transport, self.from(), self.to()) {
            (Some(transport), Some(from), Some(to)) => {
                let name = if transport.is_tcp() { "TCP" } else { "UDP" };
                write!(f, "{name} {from} > {to}, {} bytes", transport.payload)
            }
            _ => write!(f, "IP {} > {}, {} bytes", self.source, self.destination, self.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP 198.51.100.10:1000 > 203.0.113.7:80 with two bytes.
    fn datagram() -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 30, 0, 0, 0x40, 0, 64, UDP, 0, 0, 198, 51, 100, 10, 203, 0, 113, 7];
        bytes.extend([3, 232, 0, 80, 0, 10, 0, 0, 1, 2]);
        bytes
    }

    fn frame(kind: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend(kind.to_be_bytes());
        frame.extend(packet);
        frame
    }

    #[test]
    fn a_plain_packet_shows_both_sockets() {
        let packet = Packet::parse(&frame(0x0800, &datagram())).unwrap();
        assert!(packet.is_between("198.51.100.10:1000".parse().unwrap(), "203.0.113.7:80".parse().unwrap()));
        assert_eq!(packet.tunnel, None);
        assert_eq!(packet.transport.unwrap().payload, 2);
    }

    #[test]
    fn an_encapsulated_packet_shows_the_inner_sockets_and_the_outer_hosts() {
        let mut outer = vec![0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, IPIP, 0, 0, 172, 30, 0, 11, 172, 30, 0, 12];
        outer.extend(datagram());
        let packet = Packet::parse(&frame(0x0800, &outer)).unwrap();
        let tunnel = packet.tunnel.unwrap();
        assert_eq!(tunnel.destination.to_string(), "172.30.0.12");
        assert_eq!(packet.to().unwrap().to_string(), "203.0.113.7:80");
        assert_eq!(
            packet.to_string(),
            "[172.30.0.11 > 172.30.0.12] UDP 198.51.100.10:1000 > 203.0.113.7:80, 2 bytes"
        );
    }

    #[test]
    fn what_is_cut_short_or_not_ip_is_no_packet() {
        let whole = frame(0x0800, &datagram());
        for length in 0..whole.len() {
            assert_eq!(Packet::parse(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(Packet::parse(&frame(0x0806, &[0; 28])), None);
    }
}
