//! Frames made from frames: what a translation, a reply or a tunnel makes of one.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

use super::Frame;
use super::layer::{Icmp, Ipv4, Ipv6, Layer, Sctp, Tcp, Udp, UdpChecksum};

impl Frame {
    /// Source of the innermost IP header.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        let address = match self.innermost() {
            Layer::Ipv4(ip) => IpAddr::from(ip.source),
            Layer::Ipv6(ip) => ip.source.into(),
            other => panic!("{other:?} is no IP header"),
        };
        SocketAddr::new(address, self.ports().0)
    }

    /// Destination of the innermost IP header.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        let address = match self.innermost() {
            Layer::Ipv4(ip) => IpAddr::from(ip.destination),
            Layer::Ipv6(ip) => ip.destination.into(),
            other => panic!("{other:?} is no IP header"),
        };
        SocketAddr::new(address, self.ports().1)
    }

    /// Source and destination port of the transport header; zeros where there is none.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        match self.layers.last() {
            Some(Layer::Tcp(header)) => (header.source, header.destination),
            Some(Layer::Udp(header)) => (header.source, header.destination),
            Some(Layer::Sctp(header)) => (header.source, header.destination),
            _ => (0, 0),
        }
    }

    /// The same frame with another source in the innermost IP and transport header.
    #[must_use]
    pub fn with_source(mut self, source: SocketAddr) -> Self {
        match (self.innermost_mut(), source.ip()) {
            (Layer::Ipv4(ip), IpAddr::V4(address)) => ip.source = address,
            (Layer::Ipv6(ip), IpAddr::V6(address)) => ip.source = address,
            (layer, _) => panic!("{source} does not fit {layer:?}"),
        }
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => header.source = source.port(),
            Some(Layer::Udp(header)) => header.source = source.port(),
            Some(Layer::Sctp(header)) => header.source = source.port(),
            _ => {}
        }
        self
    }

    /// The same frame with another destination in the innermost IP and transport header.
    #[must_use]
    pub fn with_destination(mut self, destination: SocketAddr) -> Self {
        match (self.innermost_mut(), destination.ip()) {
            (Layer::Ipv4(ip), IpAddr::V4(address)) => ip.destination = address,
            (Layer::Ipv6(ip), IpAddr::V6(address)) => ip.destination = address,
            (layer, _) => panic!("{destination} does not fit {layer:?}"),
        }
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => header.destination = destination.port(),
            Some(Layer::Udp(header)) => header.destination = destination.port(),
            Some(Layer::Sctp(header)) => header.destination = destination.port(),
            _ => {}
        }
        self
    }

    /// What the receiver answers: MAC addresses, addresses and ports change sides.
    #[must_use]
    pub fn reply(self) -> Self {
        let (source, destination) = (self.source(), self.destination());
        let mut reply = self.with_source(destination).with_destination(source);
        std::mem::swap(&mut reply.source_mac, &mut reply.destination_mac);
        reply
    }

    /// The ICMP error a router or host at `source` answers this frame with: it quotes the outermost IP header, all its
    /// options and extension headers, and eight bytes.
    #[must_use]
    pub fn icmp_error(&self, source: IpAddr, icmp: Icmp) -> Self {
        self.icmp_error_quoting(source, icmp, 8)
    }

    /// As [`icmp_error`](Self::icmp_error), but with `transport` bytes of the transport header and what it carries, as far as
    /// there are so many.
    #[must_use]
    pub fn icmp_error_quoting(&self, source: IpAddr, icmp: Icmp, transport: usize) -> Self {
        let (bytes, headers) =
            (self.build(), self.layers.split_last().map_or(&[][..], |(_, headers)| headers));
        let quoted = 14 + headers.iter().map(Layer::length).sum::<usize>() + transport;
        let quoted = quoted.min(bytes.len() - self.trailer.len());
        let mut error = Self::ip(source, self.source().ip()).with_traffic_class(0xc0).layer(icmp);
        if let Layer::Ipv4(ip) = error.outermost_mut() {
            (ip.id, ip.dont_fragment) = (0, true);
        }
        error.payload(bytes.slice(14..quoted)).with_macs(self.destination_mac, self.source_mac)
    }

    /// The same frame with other TCP flags.
    #[must_use]
    pub fn with_flags(mut self, flags: u8) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => {
                let Tcp { acknowledgement, .. } = Tcp::new(header.source, header.destination, flags);
                *header = Tcp { acknowledgement, flags, ..header.clone() };
            }
            other => panic!("{other:?} has no TCP flags"),
        }
        self
    }

    /// The same TCP frame with another sequence number.
    #[must_use]
    pub fn with_sequence(mut self, number: u32) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => header.sequence = number,
            other => panic!("{other:?} has no sequence number"),
        }
        self
    }

    /// The same TCP frame with another acknowledgement number.
    #[must_use]
    pub fn with_acknowledgement(mut self, number: u32) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => header.acknowledgement = number,
            other => panic!("{other:?} acknowledges nothing"),
        }
        self
    }

    /// The same frame with another SCTP chunk.
    #[must_use]
    pub fn with_chunk(mut self, chunk: u8) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Sctp(header)) => *header = Sctp { chunk, ..*header },
            other => panic!("{other:?} has no chunk"),
        }
        self
    }

    /// With TCP options, whose length must be a multiple of four.
    #[must_use]
    pub fn with_tcp_options(mut self, options: impl Into<Bytes>) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => header.options = options.into(),
            other => panic!("{other:?} has no TCP options"),
        }
        self
    }

    /// The same frame with other MAC addresses.
    #[must_use]
    pub fn with_macs(mut self, source: super::Mac, destination: super::Mac) -> Self {
        self.source_mac = source;
        self.destination_mac = destination;
        self
    }

    /// The same frame with another time to live or hop limit in the innermost IP header.
    #[must_use]
    pub fn with_hop_limit(mut self, limit: u8) -> Self {
        match self.innermost_mut() {
            Layer::Ipv4(Ipv4 { ttl: field, .. }) | Layer::Ipv6(Ipv6 { hop_limit: field, .. }) => {
                *field = limit;
            }
            other => panic!("{other:?} is no IP header"),
        }
        self
    }

    /// The same frame with another TOS or traffic class in the innermost IP header.
    #[must_use]
    pub fn with_traffic_class(mut self, class: u8) -> Self {
        match self.innermost_mut() {
            Layer::Ipv4(Ipv4 { tos: field, .. }) | Layer::Ipv6(Ipv6 { traffic_class: field, .. }) => {
                *field = class;
            }
            other => panic!("{other:?} is no IP header"),
        }
        self
    }

    /// The same frame with `tags` between the Ethernet header and the rest.
    #[must_use]
    pub fn tagged(mut self, tags: &[super::Vlan]) -> Self {
        self.layers.splice(0..0, tags.iter().map(|tag| Layer::Vlan(*tag)));
        self
    }

    /// The packet inside another IP header; the Ethernet header and VLAN tags stay outermost.
    #[must_use]
    pub fn encapsulated(mut self, outer: impl Into<Layer>) -> Self {
        let at = self.layers.iter().position(Layer::is_ip).expect("a frame with an IP header");
        self.layers.insert(at, outer.into());
        self
    }

    /// The packet with a UDP header without a checksum behind its outermost IP header, as tunnels in UDP have it.
    #[must_use]
    pub fn in_udp(mut self, source: u16, destination: u16) -> Self {
        let at = self.layers.iter().position(Layer::is_ip).expect("a frame with an IP header");
        self.layers.insert(at + 1, Udp { source, destination, checksum: UdpChecksum::None }.into());
        self
    }

    /// The packet without its outermost IP header.
    #[must_use]
    pub fn decapsulated(mut self) -> Self {
        let at = self.layers.iter().position(Layer::is_ip).expect("a frame with an IP header");
        self.layers.remove(at);
        self
    }

    /// The innermost IP header.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn innermost(&self) -> &Layer {
        self.layers.iter().rfind(|layer| layer.is_ip()).expect("a frame with an IP header")
    }

    /// The innermost IP header.
    ///
    /// # Panics
    /// If there is none.
    pub fn innermost_mut(&mut self) -> &mut Layer {
        self.layers.iter_mut().rfind(|layer| layer.is_ip()).expect("a frame with an IP header")
    }

    /// Sets the TOS or traffic class of the outermost IP header.
    pub fn set_outer_traffic_class(&mut self, class: u8) {
        match self.outermost_mut() {
            Layer::Ipv4(Ipv4 { tos: field, .. }) | Layer::Ipv6(Ipv6 { traffic_class: field, .. }) => {
                *field = class;
            }
            other => panic!("{other:?} is no IP header"),
        }
    }

    /// The outermost IP header.
    ///
    /// # Panics
    /// If there is none.
    pub fn outermost_mut(&mut self) -> &mut Layer {
        self.layers.iter_mut().find(|layer| layer.is_ip()).expect("a frame with an IP header")
    }

    /// The outermost IP header.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn outermost(&self) -> &Layer {
        self.layers.iter().find(|layer| layer.is_ip()).expect("a frame with an IP header")
    }
}
