//! Building: from the description to bytes, with lengths, next-protocol fields and checksums.

use bytes::{BufMut, Bytes, BytesMut};
use crc::{CRC_32_ISCSI, Crc};
use etherparse::checksum::Sum16BitWords;

use super::Frame;
use super::layer::{Extension, Icmp, Ipv4, Ipv6, Layer, Sctp, SctpChecksum, Tcp, Udp, UdpChecksum, protocol};

impl Frame {
    /// Returns the frame's bytes.
    #[must_use]
    pub fn build(&self) -> Bytes {
        let mut body = BytesMut::from(&self.payload[..]);
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let around = self.layers[..index].iter().rfind(|layer| layer.is_ip());
            let next = self.layers.get(index + 1);
            body = match layer {
                Layer::Vlan(vlan) => {
                    concat(&[&vlan.control.to_be_bytes(), &self.inner_ethertype(next)], &body)
                }
                Layer::Ipv4(header) => header.wrap(next, &body),
                Layer::Ipv6(header) => header.wrap(next, &body),
                Layer::Extension(header) => header.wrap(next, &body),
                Layer::Tcp(header) => header.wrap(around, &body),
                Layer::Udp(header) => header.wrap(around, &body),
                Layer::Sctp(header) => header.wrap(&body),
                Layer::Icmp(header) => header.wrap(around, &body),
            };
        }
        let ethertype = match self.layers.first() {
            Some(Layer::Vlan(vlan)) => vlan.tag_protocol.to_be_bytes(),
            first => self.inner_ethertype(first),
        };
        let mut frame = concat(&[&self.destination_mac, &self.source_mac, &ethertype], &body);
        frame.put_slice(&self.trailer);
        frame.freeze()
    }

    fn inner_ethertype(&self, layer: Option<&Layer>) -> [u8; 2] {
        let ethertype = match layer {
            Some(Layer::Vlan(vlan)) => vlan.tag_protocol,
            Some(Layer::Ipv4(_)) => self.ethertype.unwrap_or(0x0800),
            Some(Layer::Ipv6(_)) => self.ethertype.unwrap_or(0x86dd),
            _ => self.ethertype.unwrap_or(0x88b5),
        };
        ethertype.to_be_bytes()
    }
}

/// Returns the checksum of RFC 1071 over consecutive parts. All but the last have an even length.
#[must_use]
pub fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let sum = parts.iter().fold(Sum16BitWords::new(), |sum, part| sum.add_slice(part));
    // The words were summed as they lie in memory.
    u16::from_be(sum.ones_complement())
}

/// The Castagnoli CRC, which SCTP has in its header (RFC 9260, appendix A).
const CASTAGNOLI: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Returns CRC32c over consecutive parts.
#[must_use]
pub fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = CASTAGNOLI.digest();
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}

fn concat(head: &[&[u8]], body: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::new();
    for part in head {
        bytes.put_slice(part);
    }
    bytes.put_slice(body);
    bytes
}

/// Returns the number with which a header announces the next one: `own` if it is set.
fn number(own: Option<u8>, next: Option<&Layer>, icmp: u8) -> u8 {
    own.or_else(|| next.and_then(|next| implied(next, icmp))).unwrap_or(protocol::EXPERIMENT)
}

/// Returns the protocol number that belongs to a layer; `icmp` is the family's number for ICMP.
pub(super) const fn implied(layer: &Layer, icmp: u8) -> Option<u8> {
    match layer {
        Layer::Ipv4(_) => Some(protocol::IPIP),
        Layer::Ipv6(_) => Some(protocol::IPV6),
        Layer::Extension(header) => Some(header.kind),
        Layer::Tcp(_) => Some(protocol::TCP),
        Layer::Udp(_) => Some(protocol::UDP),
        Layer::Sctp(_) => Some(protocol::SCTP),
        Layer::Icmp(_) => Some(icmp),
        Layer::Vlan(_) => None,
    }
}

/// Returns the pseudo-header (RFC 793, RFC 8200 section 8.1) of a transport inside `ip`.
fn pseudo_header(ip: Option<&Layer>, protocol: u8, length: usize) -> Vec<u8> {
    match ip {
        Some(Layer::Ipv4(ip)) => [
            &ip.source.octets()[..],
            &ip.destination.octets(),
            &[0, protocol],
            &(length as u16).to_be_bytes(),
        ]
        .concat(),
        Some(Layer::Ipv6(ip)) => [
            &ip.source.octets()[..],
            &ip.destination.octets(),
            &(length as u32).to_be_bytes(),
            &[0, 0, 0, protocol],
        ]
        .concat(),
        _ => Vec::new(),
    }
}

/// Writes the checksum of `head` and `body` into `head` at `at`.
fn seal(mut head: Vec<u8>, at: usize, pseudo: &[u8], body: &[u8], zero: u16) -> BytesMut {
    let checksum = match internet_checksum(&[pseudo, &head, body]) {
        0 => zero,
        checksum => checksum,
    };
    head[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    concat(&[&head], body)
}

impl Ipv4 {
    fn wrap(&self, next: Option<&Layer>, body: &[u8]) -> BytesMut {
        let words = 5 + self.options.len() / 4;
        let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13;
        let mut head = vec![0x40 | words as u8, self.tos];
        head.put_u16((words * 4 + body.len()) as u16);
        head.put_u16(self.id);
        head.put_u16(flags | self.fragment_offset);
        head.put_slice(&[self.ttl, number(self.protocol, next, protocol::ICMP), 0, 0]);
        head.put_slice(&self.source.octets());
        head.put_slice(&self.destination.octets());
        head.put_slice(&self.options);
        let header = seal(head, 10, &[], &[], 0);
        concat(&[&header], body)
    }
}

impl Ipv6 {
    fn wrap(&self, next: Option<&Layer>, body: &[u8]) -> BytesMut {
        let mut head = Vec::with_capacity(40);
        head.put_u32(6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff);
        head.put_u16(body.len() as u16);
        head.put_slice(&[number(self.protocol, next, protocol::ICMP6), self.hop_limit]);
        head.put_slice(&self.source.octets());
        head.put_slice(&self.destination.octets());
        concat(&[&head], body)
    }
}

impl Extension {
    fn wrap(&self, next: Option<&Layer>, body: &[u8]) -> BytesMut {
        let next = number(self.protocol, next, protocol::ICMP6);
        // A fragment header's second byte is reserved; the others count eight-byte units beyond the
        // first.
        let units = if self.kind == protocol::FRAGMENT { 0 } else { (self.body.len() + 2) / 8 - 1 };
        concat(&[&[next, units as u8], &self.body], body)
    }
}

impl Tcp {
    fn wrap(&self, around: Option<&Layer>, body: &[u8]) -> BytesMut {
        let mut head = Vec::with_capacity(20 + self.options.len());
        head.put_u16(self.source);
        head.put_u16(self.destination);
        head.put_u32(self.sequence);
        head.put_u32(self.acknowledgement);
        head.put_slice(&[(5 + self.options.len() as u8 / 4) << 4, self.flags]);
        head.put_u16(self.window);
        head.put_u16(0);
        head.put_u16(self.urgent);
        head.put_slice(&self.options);
        let pseudo = pseudo_header(around, protocol::TCP, head.len() + body.len());
        seal(head, 16, &pseudo, body, 0)
    }
}

impl Udp {
    fn wrap(self, around: Option<&Layer>, body: &[u8]) -> BytesMut {
        let length = 8 + body.len();
        let mut head = Vec::with_capacity(8);
        head.put_u16(self.source);
        head.put_u16(self.destination);
        head.put_u16(length as u16);
        head.put_u16(0);
        match self.checksum {
            UdpChecksum::None => concat(&[&head], body),
            UdpChecksum::Computed => {
                seal(head, 6, &pseudo_header(around, protocol::UDP, length), body, 0xffff)
            }
        }
    }
}

impl Sctp {
    fn wrap(self, body: &[u8]) -> BytesMut {
        let mut head = Vec::with_capacity(16);
        head.put_u16(self.source);
        head.put_u16(self.destination);
        head.put_u32(self.tag);
        head.put_u32(0);
        head.put_slice(&[self.chunk, 0]);
        head.put_u16((4 + body.len()) as u16);
        if self.checksum == SctpChecksum::Computed {
            // The least significant byte comes first, unlike in all other headers.
            let checksum = crc32c(&[&head, body]).to_le_bytes();
            head[8..12].copy_from_slice(&checksum);
        }
        concat(&[&head], body)
    }
}

impl Icmp {
    fn wrap(self, around: Option<&Layer>, body: &[u8]) -> BytesMut {
        let head = [&[self.kind, self.code, 0, 0][..], &self.rest].concat();
        let pseudo = match around {
            Some(Layer::Ipv6(_)) => pseudo_header(around, protocol::ICMP6, head.len() + body.len()),
            _ => Vec::new(),
        };
        seal(head, 2, &pseudo, body, 0)
    }
}
