//! Cutting of frames into fragments, as by a router or the sender.

use super::Frame;
use super::build::implied;
use super::layer::{Extension, Layer, protocol};

impl Frame {
    /// Returns the fragments of the innermost packet.
    ///
    /// Each one has at most `bytes` bytes, a multiple of eight, behind its IP header. With IPv6
    /// they are behind its hop-by-hop options and routing header. The content is payload: a
    /// checksum in the first fragment is that of the whole packet.
    #[must_use]
    pub fn fragments(&self, id: u32, bytes: usize) -> Vec<Self> {
        let ip = self.layers.iter().rposition(Layer::is_ip).expect("a frame with an IP header");
        let kept = ip + 1 + self.layers[ip + 1..].iter().take_while(|layer| is_unfragmentable(layer)).count();
        let (headers, inside) = self.layers.split_at(kept);
        let icmp = if matches!(headers[ip], Layer::Ipv4(_)) { protocol::ICMP } else { protocol::ICMP6 };
        let said = match &headers[kept - 1] {
            Layer::Ipv4(header) => header.protocol,
            Layer::Ipv6(header) => header.protocol,
            Layer::Extension(header) => header.protocol,
            _ => None,
        };
        let number = said.or_else(|| inside.first().and_then(|layer| implied(layer, icmp)));
        let number = number.unwrap_or(protocol::EXPERIMENT);
        let whole = self.build();
        let start = 14 + headers.iter().map(Layer::length).sum::<usize>();
        let body = whole.slice(start..whole.len() - self.trailer.len());
        let count = body.len().div_ceil(bytes);
        let piece = |index: usize| {
            let payload = body.slice(index * bytes..body.len().min((index + 1) * bytes));
            let mut frame = Self { layers: headers.to_vec(), payload, ..self.clone() };
            frame.become_fragment((index * bytes / 8) as u16, index + 1 < count, id, number);
            frame
        };
        (0..count).map(piece).collect()
    }

    fn become_fragment(&mut self, offset: u16, more: bool, id: u32, number: u8) {
        match self.layers.last_mut() {
            Some(Layer::Ipv4(ip)) => {
                (ip.id, ip.fragment_offset, ip.more_fragments) = (id as u16, offset, more);
                ip.protocol = Some(number);
            }
            last => {
                match last {
                    Some(Layer::Ipv6(ip)) => ip.protocol = None,
                    Some(Layer::Extension(header)) => header.protocol = None,
                    _ => {}
                }
                let header = Extension { protocol: Some(number), ..Extension::fragment(offset, more, id) };
                self.layers.push(header.into());
            }
        }
    }
}

/// Returns whether every fragment has this header in front of its fragment header (RFC 8200,
/// section 4.5).
const fn is_unfragmentable(layer: &Layer) -> bool {
    matches!(layer, Layer::Extension(header) if matches!(header.kind, protocol::HOP_BY_HOP | protocol::ROUTING))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_put_together_are_the_packet() {
        let v4 = || Frame::ip("192.0.2.1".parse().unwrap(), "203.0.113.1".parse().unwrap());
        let v6 = || Frame::ip("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let data = vec![7; 1000];
        for (frame, headers) in [
            (v4().udp(1, 2).payload(data.clone()), 34),
            (v6().udp(1, 2).payload(data.clone()), 62),
            (v6().layer(Extension::hop_by_hop(1)).udp(1, 2).payload(data), 70),
        ] {
            let pieces = frame.fragments(77, 256);
            assert_eq!(pieces.len(), 4);
            let joined: Vec<u8> = pieces.iter().flat_map(|piece| piece.build()[headers..].to_vec()).collect();
            assert_eq!(frame.build()[frame.build().len() - 1008..], joined);
            let field = Frame::parse(&pieces[1].build()).unwrap();
            match field.layers.last().unwrap() {
                Layer::Ipv4(ip) => {
                    assert_eq!((ip.id, ip.fragment_offset, ip.more_fragments), (77, 32, true));
                }
                other => assert_eq!(*other, pieces[1].layers.last().unwrap().clone()),
            }
        }
    }
}
