//! The addresses in a captured frame, which may be cut off.

use std::net::{IpAddr, SocketAddr};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};

use crate::dataplane::ebpf::read::protocol_text;

/// What the headers tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// The sender; port 0 without ports.
    pub source: Option<SocketAddr>,
    /// The receiver; port 0 without ports.
    pub destination: Option<SocketAddr>,
    /// The protocol number.
    pub protocol: Option<u8>,
}

/// Reads the headers of a frame, which begins with an IP header if it `is_bare`. In a tunnel packet those of the
/// packet inside count.
pub fn headers(frame: &[u8], is_bare: bool) -> Headers {
    let packet = if is_bare {
        LaxSlicedPacket::from_ip(frame).ok()
    } else {
        LaxSlicedPacket::from_ethernet(frame).ok()
    };
    let Some(packet) = packet else { return Headers::default() };
    let (source, destination, payload): (IpAddr, IpAddr, _) = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into(), ip.payload())
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into(), ip.payload())
        }
        _ => return Headers::default(),
    };
    let protocol = payload.ip_number.0;
    if is_tunnel(protocol) {
        return headers(payload.payload, true);
    }
    let (from, to) = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        // SCTP has its ports where TCP has them.
        _ if protocol == SCTP => ports(payload.payload),
        _ => (0, 0),
    };
    Headers {
        source: Some(SocketAddr::new(source, from)),
        destination: Some(SocketAddr::new(destination, to)),
        protocol: Some(protocol),
    }
}

const SCTP: u8 = 132;

/// IPv4 or IPv6 in IP.
const fn is_tunnel(protocol: u8) -> bool {
    matches!(protocol, 4 | 41)
}

fn ports(header: &[u8]) -> (u16, u16) {
    match header {
        [s0, s1, d0, d1, ..] => (u16::from_be_bytes([*s0, *s1]), u16::from_be_bytes([*d0, *d1])),
        _ => (0, 0),
    }
}

/// Returns a protocol's name, or its number.
pub fn protocol_name(number: u8) -> String {
    match number {
        1 => "ICMP".to_owned(),
        58 => "ICMPv6".to_owned(),
        number => protocol_text(number),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    #[test]
    fn a_frame_that_is_cut_off_tells_what_is_left_of_it() {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv6([1; 16], [2; 16], 64)
            .udp(5353, 53)
            .write(&mut frame, &[7; 400])
            .unwrap();
        let whole = headers(&frame[..128], false);
        assert_eq!(whole.destination.unwrap().port(), 53);
        assert_eq!((whole.source.unwrap().port(), whole.protocol), (5353, Some(17)));
        let ports_gone = headers(&frame[..14 + 40 + 2], false);
        assert_eq!((ports_gone.destination.unwrap().port(), ports_gone.protocol), (0, Some(17)));
        assert_eq!(headers(&frame[..20], false), Headers::default());
        assert_eq!(headers(&frame[14..128], true), whole, "a bare frame begins with its IP header");
    }

    #[test]
    fn a_tunnel_packet_tells_the_packet_inside() {
        let mut inner = Vec::new();
        PacketBuilder::ipv4([198, 51, 100, 7], [192, 0, 2, 10], 64)
            .tcp(40000, 80, 1, 1)
            .write(&mut inner, &[])
            .unwrap();
        let mut outer = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.write(&mut outer, etherparse::IpNumber::IPV4, &inner).unwrap();
        assert_eq!(headers(&outer, false).source, Some("198.51.100.7:40000".parse().unwrap()));
    }

    #[test]
    fn sctp_has_ports_too() {
        let mut frame = Vec::new();
        let header = [0x9c, 0x40, 0x0b, 0x59, 0, 0, 0, 0, 0, 0, 0, 0];
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([198, 51, 100, 7], [192, 0, 2, 10], 64);
        builder.write(&mut frame, etherparse::IpNumber(SCTP), &header).unwrap();
        assert_eq!(headers(&frame, false).destination, Some("192.0.2.10:2905".parse().unwrap()));
        assert_eq!((protocol_name(SCTP), protocol_name(47)), ("SCTP".to_owned(), "47".to_owned()));
    }
}
