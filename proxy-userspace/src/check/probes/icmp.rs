//! ICMP errors about packets of a tunnel.

use std::net::IpAddr;

use super::Answer;

/// `IPPROTO_IPIP` and `IPPROTO_IPV6`.
pub const IN_IPV4: u8 = 4;
pub const IN_IPV6: u8 = 41;

/// Returns what an ICMP message says about an encapsulated packet to `target`; `None` if it is about something else.
///
/// `message` is what a raw socket gives: with the IP header for IPv4, without for IPv6.
pub fn answer(message: &[u8], target: IpAddr) -> Option<Answer> {
    let (message, is_v4) = match target {
        IpAddr::V4(_) => (message.get(usize::from(message.first()? & 0xf) * 4..)?, true),
        IpAddr::V6(_) => (message, false),
    };
    let (kind, code) = (*message.first()?, *message.get(1)?);
    let quoted = message.get(8..)?;
    let is_ours = match target {
        IpAddr::V4(target) => quoted.get(9) == Some(&IN_IPV4) && quoted.get(16..20) == Some(&target.octets()),
        IpAddr::V6(target) => quoted.get(6) == Some(&IN_IPV6) && quoted.get(24..40) == Some(&target.octets()),
    };
    is_ours.then_some(())?;
    match (is_v4, kind, code) {
        // RFC 792: protocol unreachable, port unreachable. RFC 4443: port unreachable, unknown next header.
        (true, 3, 2 | 3) | (false, 1, 4) | (false, 4, 1) => Some(Answer::Arrived),
        // RFC 1191: fragmentation needed. RFC 4443: packet too big.
        (true, 3, 4) | (false, 2, _) => Some(Answer::TooBig),
        (true, 3 | 11, _) | (false, 1 | 3, _) => Some(Answer::Refused { kind, code }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ICMP error about a packet in IPv4.
    fn error4(kind: u8, code: u8, protocol: u8) -> Vec<u8> {
        let mut message = vec![0x45; 20];
        message.extend([kind, code, 0, 0, 0, 0, 0, 0]);
        let mut quoted = vec![0; 20];
        quoted[9] = protocol;
        quoted[16..20].copy_from_slice(&[10, 1, 0, 12]);
        message.extend(quoted);
        message
    }

    #[test]
    fn errors_about_the_tunnel_are_told_from_others() {
        let target = "10.1.0.12".parse().unwrap();
        let of = |kind, code, protocol| answer(&error4(kind, code, protocol), target);
        assert_eq!(of(3, 2, 4), Some(Answer::Arrived));
        assert_eq!(of(3, 3, 4), Some(Answer::Arrived));
        assert_eq!(of(3, 4, 4), Some(Answer::TooBig));
        assert_eq!(of(3, 13, 4), Some(Answer::Refused { kind: 3, code: 13 }));
        assert_eq!(of(3, 2, 17), None, "about another packet");
        assert_eq!(of(8, 0, 4), None, "no error");
        assert_eq!(answer(&error4(3, 2, 4), "10.1.0.13".parse().unwrap()), None);
        assert_eq!(answer(&[0x45, 0], target), None);
    }

    #[test]
    fn errors_of_ipv6_have_numbers_of_their_own() {
        let target: std::net::Ipv6Addr = "fd00::2".parse().unwrap();
        let of = |kind, code| {
            let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
            message.extend([0x60, 0, 0, 0, 0, 0, IN_IPV6, 64]);
            message.extend([0; 16]);
            message.extend(target.octets());
            answer(&message, target.into())
        };
        assert_eq!(of(4, 1), Some(Answer::Arrived));
        assert_eq!(of(1, 4), Some(Answer::Arrived));
        assert_eq!(of(2, 0), Some(Answer::TooBig));
        assert_eq!(of(1, 1), Some(Answer::Refused { kind: 1, code: 1 }));
        assert_eq!(of(129, 0), None);
    }
}
