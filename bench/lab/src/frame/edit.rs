//! Frames made from frames: by a translation, a reply or a tunnel.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

use super::Frame;
use super::layer::{Icmp, Ipv4, Ipv6, Layer, Sctp, Tcp, Udp, UdpChecksum};

impl Frame {
    /// Returns the source of the innermost IP header.
    #[must_use]
    pub fn source(&self) -> SocketAddr {
        let address = match self.innermost() {
            Layer::Ipv4(ip) => IpAddr::from(ip.source),
            Layer::Ipv6(ip) => ip.source.into(),
            other => panic!("{other:?} is no IP header"),
        };
        SocketAddr::new(address, self.ports().0)
    }

    /// Returns the destination of the innermost IP header.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        let address = match self.innermost() {
            Layer::Ipv4(ip) => IpAddr::from(ip.destination),
            Layer::Ipv6(ip) => ip.destination.into(),
            other => panic!("{other:?} is no IP header"),
        };
        SocketAddr::new(address, self.ports().1)
    }

    /// Returns the source and destination port of the transport header; zeros where there is none.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        match self.layers.last() {
            Some(Layer::Tcp(header)) => (header.source, header.destination),
            Some(Layer::Udp(header)) => (header.source, header.destination),
            Some(Layer::Sctp(header)) => (header.source, header.destination),
            _ => (0, 0),
        }
    }

    /// Returns the same frame with another source in the innermost IP and transport header.
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

    /// Returns the same frame with another destination in the innermost IP and transport header.
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

    /// Returns the receiver's answer: MAC addresses, addresses and ports change sides.
    #[must_use]
    pub fn reply(self) -> Self {
        let (source, destination) = (self.source(), self.destination());
        let mut reply = self.with_source(destination).with_destination(source);
        std::mem::swap(&mut reply.source_mac, &mut reply.destination_mac);
        reply
    }

    /// Returns the ICMP error of a router or host at `source` about this frame.
    ///
    /// It quotes the outermost IP header with all options and extension headers, and eight bytes.
    #[must_use]
    pub fn icmp_error(&self, source: IpAddr, icmp: Icmp) -> Self {
        self.icmp_error_quoting(source, icmp, 8)
    }

    /// Returns an ICMP error as [`icmp_error`](Self::icmp_error) does, with up to `transport` bytes
    /// behind the IP headers.
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

    /// Returns the same frame with other TCP flags.
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

    /// Returns the same TCP frame with another sequence number.
    #[must_use]
    pub fn with_sequence(mut self, number: u32) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => header.sequence = number,
            other => panic!("{other:?} has no sequence number"),
        }
        self
    }

    /// Returns the same TCP frame with another acknowledgement number.
    #[must_use]
    pub fn with_acknowledgement(mut self, number: u32) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => header.acknowledgement = number,
            other => panic!("{other:?} acknowledges nothing"),
        }
        self
    }

    /// Returns the same frame with another SCTP chunk.
    #[must_use]
    pub fn with_chunk(mut self, chunk: u8) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Sctp(header)) => *header = Sctp { chunk, ..*header },
            other => panic!("{other:?} has no chunk"),
        }
        self
    }

    /// Returns the frame with TCP options, whose length must be a multiple of four.
    #[must_use]
    pub fn with_tcp_options(mut self, options: impl Into<Bytes>) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Tcp(header)) => header.options = options.into(),
            other => panic!("{other:?} has no TCP options"),
        }
        self
    }

    /// Returns the same frame with other MAC addresses.
    #[must_use]
    pub fn with_macs(mut self, source: super::Mac, destination: super::Mac) -> Self {
        self.source_mac = source;
        self.destination_mac = destination;
        self
    }

    /// Returns the same frame with another time to live or hop limit in the innermost IP header.
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

    /// Returns the same frame with another TOS or traffic class in the innermost IP header.
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

    /// Returns the same frame with `tags` between the Ethernet header and the rest.
    #[must_use]
    pub fn tagged(mut self, tags: &[super::Vlan]) -> Self {
        self.layers.splice(0..0, tags.iter().map(|tag| Layer::Vlan(*tag)));
        self
    }

    /// Returns the packet inside another IP header; the Ethernet header and VLAN tags stay
    /// outermost.
    #[must_use]
    pub fn encapsulated(mut self, outer: impl Into<Layer>) -> Self {
        let at = self.layers.iter().position(Layer::is_ip).expect("a frame with an IP header");
        self.layers.insert(at, outer.into());
        self
    }

    /// Returns the packet with a UDP header behind its outermost IP header, as in UDP tunnels. The
    /// header has no checksum.
    #[must_use]
    pub fn in_udp(mut self, source: u16, destination: u16) -> Self {
        let at = self.layers.iter().position(Layer::is_ip).expect("a frame with an IP header");
        self.layers.insert(at + 1, Udp { source, destination, checksum: UdpChecksum::None }.into());
        self
    }

    /// Returns the packet without its outermost IP header.
    #[must_use]
    pub fn decapsulated(mut self) -> Self {
        let at = self.layers.iter().position(Layer::is_ip).expect("a frame with an IP header");
        self.layers.remove(at);
        self
    }

    /// Returns the innermost IP header.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn innermost(&self) -> &Layer {
        self.layers.iter().rfind(|layer| layer.is_ip()).expect("a frame with an IP header")
    }

    /// Returns the innermost IP header.
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

    /// Returns the outermost IP header.
    ///
    /// # Panics
    /// If there is none.
    pub fn outermost_mut(&mut self) -> &mut Layer {
        self.layers.iter_mut().find(|layer| layer.is_ip()).expect("a frame with an IP header")
    }

    /// Returns the outermost IP header.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn outermost(&self) -> &Layer {
        self.layers.iter().find(|layer| layer.is_ip()).expect("a frame with an IP header")
    }
}
