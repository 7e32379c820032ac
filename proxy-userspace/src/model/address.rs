//! Parses addresses and ports of manifests.

use std::net::IpAddr;

use super::{Family, Protocol};

/// Parses an address as kube-proxy does (`ParseIPSloppy` in k8s.io/utils/net).
///
/// Leading zeros of a decimal number have no meaning. An IPv4-mapped IPv6 address is the IPv4
/// address. The API server still stores such objects from the time when it accepted them.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().or_else(|_| without_zeros(text).parse()).ok()?;
    Some(address.to_canonical())
}

/// Returns `010.0.0.01` as `10.0.0.1`, also behind the last colon of an IPv6 address.
fn without_zeros(text: &str) -> String {
    let (head, tail) = text.rfind(':').map_or(("", text), |colon| text.split_at(colon + 1));
    if !tail.contains('.') {
        return text.to_owned();
    }
    let octet = |octet: &str| match octet.trim_start_matches('0') {
        "" if !octet.is_empty() => "0".to_owned(),
        digits => digits.to_owned(),
    };
    let octets: Vec<String> = tail.split('.').map(octet).collect();
    format!("{head}{}", octets.join("."))
}

/// Parses an address that other hosts can reach. The error says what is accepted.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    let address =
        parse_address(text).ok_or_else(|| format!("{text:?} is not an IP address; takes IPv4 or IPv6"))?;
    // RFC 1122 and 4291 keep these addresses for a host or link, so other hosts can't reach them.
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() || link_local {
        return Err(format!(
            "{address} is not accepted; takes a unicast address that is not loopback or link-local"
        ));
    }
    Ok(address)
}

/// Parses an address of one family. The error says what is accepted.
pub(super) fn address_of(family: Family, text: &str) -> Result<IpAddr, String> {
    let address = address(text)?;
    if Family::of(address) == family {
        return Ok(address);
    }
    Err(format!("{address} is not an {family} address"))
}

/// Checks a port number. The error says what is accepted.
pub(crate) fn port(number: i32) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    port.ok_or_else(|| format!("{number} is not a port; takes 1 to 65535"))
}

/// Parses a protocol; unset is TCP. The error says what is accepted.
pub(crate) fn protocol(text: Option<&str>) -> Result<Protocol, String> {
    match text {
        None | Some("TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => Err(format!("{other:?} is not a protocol; takes TCP, UDP or SCTP")),
    }
}
