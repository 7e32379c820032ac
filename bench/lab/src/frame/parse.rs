//! Parsing: from bytes to the description, the inverse of building.

use bytes::Bytes;
use proxy_common::way::FOU_PORT;

use super::Frame;
use super::build::implied;
use super::layer::{
    Extension, Icmp, Ipv4, Ipv6, Layer, Sctp, SctpChecksum, Tcp, Udp, UdpChecksum, Vlan, protocol,
};

/// The reason why bytes are no frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}: {bytes_left} bytes are left")]
pub struct ParseError {
    /// The expected part.
    pub what: &'static str,
    /// Offset of its first byte.
    pub at: usize,
    /// Bytes from there to the end.
    pub bytes_left: usize,
}

impl Frame {
    /// Reads a frame.
    ///
    /// Headers of unknown kinds and the data of later fragments become the payload. Checksums are
    /// not verified, and lengths only as far as finding the headers needs it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader { bytes, at: 0, end: bytes.len() };
        let mut frame = Self::ethernet();
        frame.destination_mac = reader.array("destination MAC")?;
        frame.source_mac = reader.array("source MAC")?;
        let mut ethertype = reader.u16("Ethernet type")?;
        while matches!(ethertype, 0x8100 | 0x88a8) {
            let control = reader.u16("VLAN tag")?;
            frame.layers.push(Vlan { tag_protocol: ethertype, control }.into());
            ethertype = reader.u16("Ethernet type")?;
        }
        match ethertype {
            0x0800 => ip(&mut reader, &mut frame.layers, protocol::IPIP)?,
            0x86dd => ip(&mut reader, &mut frame.layers, protocol::IPV6)?,
            other => frame.ethertype = Some(other),
        }
        frame.payload = Bytes::copy_from_slice(&bytes[reader.at..reader.end]);
        frame.trailer = Bytes::copy_from_slice(&bytes[reader.end..]);
        Ok(frame)
    }
}

/// Reads headers, and notes in each one the protocol numbers that its follower does not imply.
fn ip(reader: &mut Reader<'_>, layers: &mut Vec<Layer>, first: u8) -> Result<(), ParseError> {
    let mut next = Some(first);
    while let Some(number) = next {
        let (layer, after) = match number {
            protocol::IPIP => ipv4(reader)?,
            protocol::IPV6 => ipv6(reader)?,
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                extension(reader, number)?
            }
            protocol::FRAGMENT => fragment(reader)?,
            protocol::TCP => (tcp(reader)?, None),
            protocol::UDP => udp(reader)?,
            protocol::SCTP => (sctp(reader)?, None),
            protocol::ICMP | protocol::ICMP6 => (icmp(reader)?, None),
            _ => return Ok(()),
        };
        let icmp =
            if matches!(layers.last(), Some(Layer::Ipv4(_))) { protocol::ICMP } else { protocol::ICMP6 };
        if implied(&layer, icmp) == Some(number) {
            forget_protocol(layers);
        }
        layers.push(layer);
        next = after;
    }
    Ok(())
}

fn forget_protocol(layers: &mut [Layer]) {
    match layers.last_mut() {
        Some(Layer::Ipv4(header)) => header.protocol = None,
        Some(Layer::Ipv6(header)) => header.protocol = None,
        Some(Layer::Extension(header)) => header.protocol = None,
        _ => {}
    }
}

fn ipv4(reader: &mut Reader<'_>) -> Result<(Layer, Option<u8>), ParseError> {
    let start = reader.at;
    let [version, tos] = reader.array("IPv4 version and TOS")?;
    let length = usize::from(reader.u16("IPv4 length")?);
    let id = reader.u16("IPv4 id")?;
    let fragment = reader.u16("IPv4 fragment field")?;
    let [ttl, number] = reader.array("IPv4 TTL and protocol")?;
    let _checksum = reader.u16("IPv4 checksum")?;
    let header = Ipv4 {
        source: reader.array::<4>("IPv4 source")?.into(),
        destination: reader.array::<4>("IPv4 destination")?.into(),
        tos,
        id,
        dont_fragment: fragment & 1 << 14 != 0,
        more_fragments: fragment & 1 << 13 != 0,
        fragment_offset: fragment & 0x1fff,
        ttl,
        options: reader.take("IPv4 options", (usize::from(version & 0xf) * 4).saturating_sub(20))?,
        protocol: Some(number),
    };
    reader.limit(start + length);
    let after = (header.fragment_offset == 0).then_some(number);
    Ok((header.into(), after))
}

fn ipv6(reader: &mut Reader<'_>) -> Result<(Layer, Option<u8>), ParseError> {
    let word = u32::from_be_bytes(reader.array("IPv6 version and flow label")?);
    let length = usize::from(reader.u16("IPv6 length")?);
    let [number, hop_limit] = reader.array("IPv6 next header and hop limit")?;
    let header = Ipv6 {
        source: reader.array::<16>("IPv6 source")?.into(),
        destination: reader.array::<16>("IPv6 destination")?.into(),
        traffic_class: (word >> 20) as u8,
        flow_label: word & 0xf_ffff,
        hop_limit,
        protocol: Some(number),
    };
    reader.limit(reader.at + length);
    Ok((header.into(), Some(number)))
}

fn extension(reader: &mut Reader<'_>, kind: u8) -> Result<(Layer, Option<u8>), ParseError> {
    let [number, units] = reader.array("extension header")?;
    let body = reader.take("extension header's body", usize::from(units) * 8 + 6)?;
    Ok((Extension { kind, body, protocol: Some(number) }.into(), Some(number)))
}

fn fragment(reader: &mut Reader<'_>) -> Result<(Layer, Option<u8>), ParseError> {
    let [number, _reserved] = reader.array("fragment header")?;
    let body = reader.take("fragment header's body", 6)?;
    let offset = u16::from_be_bytes([body[0], body[1]]) >> 3;
    let header = Extension { kind: protocol::FRAGMENT, body, protocol: Some(number) };
    Ok((header.into(), (offset == 0).then_some(number)))
}

fn tcp(reader: &mut Reader<'_>) -> Result<Layer, ParseError> {
    let mut header = Tcp::new(reader.u16("TCP source port")?, reader.u16("TCP destination port")?, 0);
    header.sequence = u32::from_be_bytes(reader.array("TCP sequence number")?);
    header.acknowledgement = u32::from_be_bytes(reader.array("TCP acknowledgement number")?);
    let [offset, flags] = reader.array("TCP offset and flags")?;
    header.flags = flags;
    header.window = reader.u16("TCP window")?;
    let _checksum = reader.u16("TCP checksum")?;
    header.urgent = reader.u16("TCP urgent pointer")?;
    header.options = reader.take("TCP options", (usize::from(offset >> 4) * 4).saturating_sub(20))?;
    Ok(header.into())
}

/// A datagram to the port of FoU may carry an IP packet.
fn udp(reader: &mut Reader<'_>) -> Result<(Layer, Option<u8>), ParseError> {
    let (source, destination) = (reader.u16("UDP source port")?, reader.u16("UDP destination port")?);
    let _length = reader.u16("UDP length")?;
    let checksum = match reader.u16("UDP checksum")? {
        0 => UdpChecksum::None,
        _ => UdpChecksum::Computed,
    };
    let after = match reader.bytes.get(reader.at..reader.end) {
        Some([version, rest @ ..]) if destination == FOU_PORT => match version >> 4 {
            4 if rest.len() >= 19 => Some(protocol::IPIP),
            6 if rest.len() >= 39 => Some(protocol::IPV6),
            _ => None,
        },
        _ => None,
    };
    Ok((Udp { source, destination, checksum }.into(), after))
}

fn sctp(reader: &mut Reader<'_>) -> Result<Layer, ParseError> {
    let (source, destination) = (reader.u16("SCTP source port")?, reader.u16("SCTP destination port")?);
    let tag = u32::from_be_bytes(reader.array("SCTP tag")?);
    let checksum = match reader.array("SCTP checksum")? {
        [0, 0, 0, 0] => SctpChecksum::None,
        _ => SctpChecksum::Computed,
    };
    let [chunk, _flags, _, _] = reader.array("SCTP chunk")?;
    Ok(Sctp { source, destination, tag, chunk, checksum }.into())
}

fn icmp(reader: &mut Reader<'_>) -> Result<Layer, ParseError> {
    let [kind, code, _, _] = reader.array("ICMP type and code")?;
    Ok(Icmp { kind, code, rest: reader.array("ICMP rest of header")? }.into())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl Reader<'_> {
    fn take(&mut self, what: &'static str, length: usize) -> Result<Bytes, ParseError> {
        let error = ParseError { what, at: self.at, bytes_left: self.end - self.at };
        let field = self.bytes[..self.end].get(self.at..self.at + length).ok_or(error)?;
        self.at += length;
        Ok(Bytes::copy_from_slice(field))
    }
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ParseError> {
        let field = self.take(what, N)?;
        Ok(std::array::from_fn(|index| field[index]))
    }
    fn u16(&mut self, what: &'static str) -> Result<u16, ParseError> {
        Ok(u16::from_be_bytes(self.array(what)?))
    }
    /// Ends the packet at `end`. A length beyond the frame is cut to it.
    fn limit(&mut self, end: usize) {
        self.end = self.end.min(end).max(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{UdpChecksum, chunk, flag};
    use super::*;

    fn addresses(inner: [&str; 2]) -> Frame {
        Frame::ip(inner[0].parse().unwrap(), inner[1].parse().unwrap())
    }

    #[test]
    fn a_parsed_frame_builds_to_the_same_bytes() {
        let v4 = || addresses(["192.0.2.1", "203.0.113.1"]);
        let v6 = || addresses(["2001:db8::1", "2001:db8::2"]);
        let mut options = Ipv4::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        options.options = Bytes::from_static(&[148, 4, 0, 0]);
        let mut padded = v4().udp(1, 2);
        padded.trailer = Bytes::from_static(&[0; 18]);
        let frames = [
            v4().tcp(40000, 80, flag::SYN).payload(&b"hello"[..]),
            v6().udp(40000, 53).payload(&b"odd"[..]),
            v4().layer(Udp { source: 1, destination: 2, checksum: UdpChecksum::None }),
            padded,
            Frame::ethernet().layer(Vlan::service(5)).layer(Vlan::customer(6)).layer(options).udp(1, 2),
            v4().sctp(5, 6, chunk::INIT).payload(&b"initial!"[..]),
            v6().layer(Sctp { checksum: SctpChecksum::None, ..Sctp::new(5, 6, chunk::DATA) }),
            v6().layer(Extension::hop_by_hop(2)).layer(Extension::routing()).tcp(1, 2, flag::ACK),
            v6().layer(Extension::fragment(3, true, 9)).payload(&b"later"[..]),
            v4().layer(Icmp { kind: 8, code: 0, rest: [0, 1, 0, 1] }).payload(&b"ping"[..]),
            v6().layer(Icmp { kind: 128, code: 0, rest: [0, 1, 0, 1] }).payload(&b"ping"[..]),
            v4().layer(v6().layers[0].clone()).tcp(1, 2, flag::RST),
            v6().tcp(1, 2, flag::RST).encapsulated(v4().layers[0].clone()).in_udp(3, FOU_PORT),
            v4().udp(1, FOU_PORT).payload(&b"Empty"[..]),
            Frame::ethernet().payload(&b"not IP at all"[..]),
        ];
        for frame in frames {
            let bytes = frame.build();
            assert_eq!(Frame::parse(&bytes).unwrap().build(), bytes, "{frame:?}");
        }
    }

    #[test]
    fn truncated_frames_name_what_is_missing() {
        let bytes = addresses(["192.0.2.1", "203.0.113.1"]).tcp(40000, 80, flag::SYN).build();
        let error = Frame::parse(&bytes[..20]).unwrap_err();
        assert_eq!(error.to_string(), "IPv4 fragment field at byte 20: 0 bytes are left");
    }

    #[test]
    fn checksums_are_those_of_frames_from_the_wire() {
        // RFC 1071's example, and an IPv4 header from a capture whose checksum is known.
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(super::super::internet_checksum(&[&header]), 0xb861);
        assert_eq!(super::super::crc32c(&[b"1234", b"56789"]), 0xe306_9283);
        assert_eq!(super::super::internet_checksum(&[&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
    }
}
