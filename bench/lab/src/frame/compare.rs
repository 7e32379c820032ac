//! Comparison of whole frames, byte for byte. Only the two zeros of the Internet checksum are
//! equal.

use super::layer::Layer;
use super::{Frame, describe};

/// Returns the first difference of two frames, with both decoded, or `None` if they are equal.
///
/// An IPv4, TCP or ICMP checksum of 0 equals one of 0xffff. An incremental update (RFC 1624) may
/// yield either where a fresh sum yields one. A UDP checksum of 0 means "none" and equals only 0.
#[must_use]
pub fn difference(expected: &[u8], actual: &[u8]) -> Option<String> {
    let (left, right) = (normalised(expected), normalised(actual));
    if left == right {
        return None;
    }
    let at = left
        .iter()
        .zip(&right)
        .position(|(left, right)| left != right)
        .unwrap_or(left.len().min(right.len()));
    Some(format!(
        "frames differ from byte {at} ({at:#06x}) on\nexpected, {} bytes:\n{}actual, {} bytes:\n{}",
        expected.len(),
        describe(expected),
        actual.len(),
        describe(actual),
    ))
}

/// Panics with both frames decoded unless they are equal; see [`difference`].
#[track_caller]
pub fn assert_frames_equal(expected: &[u8], actual: &[u8]) {
    if let Some(difference) = difference(expected, actual) {
        panic!("{difference}");
    }
}

fn normalised(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for at in checksum_offsets(&bytes) {
        if bytes.get(at..at + 2) == Some(&[0xff, 0xff]) {
            bytes[at..at + 2].fill(0);
        }
    }
    bytes
}

/// Returns the offsets of the checksum fields with two equal zeros.
fn checksum_offsets(bytes: &[u8]) -> Vec<usize> {
    let Ok(frame) = Frame::parse(bytes) else { return Vec::new() };
    let mut at = 14;
    let mut offsets = Vec::new();
    for layer in &frame.layers {
        let checksum = match layer {
            Layer::Ipv4(_) => Some(10),
            Layer::Tcp(_) => Some(16),
            Layer::Icmp(_) => Some(2),
            Layer::Vlan(_) | Layer::Ipv6(_) | Layer::Extension(_) | Layer::Udp(_) | Layer::Sctp(_) => None,
        };
        offsets.extend(checksum.map(|checksum| at + checksum));
        at += layer.length();
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::super::flag;
    use super::*;

    #[test]
    fn both_zeroes_of_a_checksum_are_equal_but_udps() {
        let ip = || Frame::ip("192.0.2.1".parse().unwrap(), "203.0.113.1".parse().unwrap());
        for (frame, field, same) in
            [(ip().tcp(1, 2, flag::ACK), 14 + 20 + 16, true), (ip().udp(1, 2), 14 + 20 + 6, false)]
        {
            let mut zero = frame.build().to_vec();
            zero[field..field + 2].fill(0);
            let mut ones = zero.clone();
            ones[field..field + 2].fill(0xff);
            assert_eq!(difference(&zero, &ones).is_none(), same);
        }
    }

    #[test]
    fn a_difference_names_the_first_byte_and_shows_both_frames() {
        let frame = Frame::ip("192.0.2.1".parse().unwrap(), "203.0.113.1".parse().unwrap()).udp(1, 2);
        let other = frame.clone().with_destination("203.0.113.9:2".parse().unwrap());
        let text = difference(&frame.build(), &other.build()).unwrap();
        assert!(
            text.contains("from byte 25 ") && text.contains("203.0.113.1 ") && text.contains("203.0.113.9 ")
        );
    }
}
