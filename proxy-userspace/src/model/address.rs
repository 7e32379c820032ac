//! Addresses and ports as they stand in manifests.

use std::net::IpAddr;

use super::{Family, Protocol};

/// An address, or what is wrong with it.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr =
        text.parse().map_err(|_| format!("{text:?} is not an IP address; takes IPv4 or IPv6"))?;
    if let IpAddr::V6(mapped) = address
        && let Some(inner) = mapped.to_ipv4_mapped()
    {
        return Err(format!("{address} is IPv4 in IPv6 clothes; takes {inner}"));
    }
    // What RFC 1122 and 4291 keep for a host or link itself can't be reached from another one.
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

/// An address of one family, or what is wrong with it.
pub(super) fn address_of(family: Family, text: &str) -> Result<IpAddr, String> {
    let address = address(text)?;
    if Family::of(address) == family {
        return Ok(address);
    }
    Err(format!("{address} is not an {family} address"))
}

/// A port, or what is wrong with it.
pub(super) fn port(number: i32) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    port.ok_or_else(|| format!("{number} is not a port; takes 1 to 65535"))
}

/// A protocol, or what is wrong with it. Unset is TCP.
pub(super) fn protocol(text: Option<&str>) -> Result<Protocol, String> {
    match text {
        None | Some("TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => Err(format!("{other:?} is not a protocol; takes TCP, UDP or SCTP")),
    }
}
