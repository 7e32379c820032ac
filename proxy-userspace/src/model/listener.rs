//! Sockets of this node that a load balancer's address must not take packets from.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Family, Protocol};

/// A socket of this node that takes packets from anybody: one that listens, or of UDP without a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its own address and port. An unspecified address is every address of the node: `::` of IPv4, too.
    pub address: SocketAddr,
}

/// Returns whether one of the sockets gets packets for an address of this node.
pub(super) fn takes(listeners: &BTreeSet<Listener>, protocol: Protocol, address: SocketAddr) -> bool {
    let of_family = match Family::of(address.ip()) {
        Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    // Whether a socket at :: is for IPv6 only is not known. It is the rare case.
    [address.ip(), of_family, IpAddr::from(Ipv6Addr::UNSPECIFIED)]
        .into_iter()
        .any(|ip| listeners.contains(&Listener { protocol, address: SocketAddr::new(ip, address.port()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_takes_its_address_or_all_of_its_family_and_one_at_the_unspecified_ipv6_address_all() {
        let listener = |text: &str| Listener { protocol: Protocol::Tcp, address: text.parse().unwrap() };
        let takes = |socket: &str, address: &str| {
            takes(&BTreeSet::from([listener(socket)]), Protocol::Tcp, address.parse().unwrap())
        };
        assert!(takes("10.0.0.1:22", "10.0.0.1:22"));
        assert!(!takes("10.0.0.2:22", "10.0.0.1:22") && !takes("10.0.0.1:23", "10.0.0.1:22"));
        assert!(takes("0.0.0.0:22", "10.0.0.1:22") && !takes("0.0.0.0:22", "[fd00::1]:22"));
        assert!(takes("[::]:22", "10.0.0.1:22") && takes("[::]:22", "[fd00::1]:22"));
        let udp = BTreeSet::from([Listener { protocol: Protocol::Udp, ..listener("0.0.0.0:53") }]);
        assert!(!super::takes(&udp, Protocol::Tcp, "10.0.0.1:53".parse().unwrap()));
    }
}
