//! The address plan. Public addresses are from the ranges for documentation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An address of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dual {
    /// IPv4.
    pub v4: Ipv4Addr,
    /// IPv6.
    pub v6: Ipv6Addr,
}

impl Dual {
    /// Returns the address of a family.
    #[must_use]
    pub const fn of(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => IpAddr::V4(self.v4),
            Family::V6 => IpAddr::V6(self.v6),
        }
    }

    /// Returns both as prefixes of the lengths of the bed's networks.
    pub(super) fn networks(self) -> [IpNet; 2] {
        [IpNet::V4(Ipv4Net::new_assert(self.v4, 24)), IpNet::V6(Ipv6Net::new_assert(self.v6, 64))]
    }

    /// Returns the address of both families.
    #[must_use]
    pub const fn both(self) -> [IpAddr; 2] {
        [IpAddr::V4(self.v4), IpAddr::V6(self.v6)]
    }
}

/// Returns the `number`th load balancer or external address. The router sends all of them to node
/// 1.
#[must_use]
pub const fn vip(number: u8) -> Dual {
    Dual {
        v4: Ipv4Addr::new(203, 0, 113, number),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0xe, 0, 0, 0, 0, number as u16),
    }
}

/// Returns the cluster IPs of the `number`th service.
#[must_use]
pub const fn cluster_ip(number: u8) -> Dual {
    Dual {
        v4: Ipv4Addr::new(10, 96, 0, number),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0x5, 0, 0, 0, 0, number as u16),
    }
}

/// The client.
pub(super) const CLIENT: Dual = client_side(10);
/// The router towards the client.
pub(super) const CLIENT_GATEWAY: Dual = client_side(1);
/// The router towards the nodes.
pub(super) const LAN_GATEWAY: Dual = lan(1);
/// The router towards the nodes' second uplinks.
pub(super) const SECOND_GATEWAY: Dual = second_lan(1);
/// A member of the networks of load balancer and external addresses.
pub(super) const VIPS: Dual =
    Dual { v4: Ipv4Addr::new(203, 0, 113, 0), v6: Ipv6Addr::new(0x2001, 0xdb8, 0xe, 0, 0, 0, 0, 0) };

/// Returns the addresses of node `number`.
pub(super) const fn node(number: u8) -> Dual {
    lan(number + 10)
}

/// Returns the second uplink of node `number`.
pub(super) const fn second_uplink(number: u8) -> Dual {
    second_lan(number + 10)
}

/// Returns the addresses of host `number`, which is no node.
pub(super) const fn host(number: u8) -> Dual {
    lan(number)
}

/// Returns the address of pod `index` of node `number`. Index `None` is the node's own address in
/// its pod network.
pub(super) const fn pod(number: u8, index: Option<u8>) -> Dual {
    let host = match index {
        Some(index) => 10 + index,
        None => 1,
    };
    Dual {
        v4: Ipv4Addr::new(10, 244, number, host),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0xf, number as u16, 0, 0, 0, as_hex(host)),
    }
}

const fn client_side(host: u8) -> Dual {
    Dual {
        v4: Ipv4Addr::new(198, 51, 100, host),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, as_hex(host)),
    }
}

const fn lan(host: u8) -> Dual {
    Dual {
        v4: Ipv4Addr::new(172, 30, 0, host),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, as_hex(host)),
    }
}

const fn second_lan(host: u8) -> Dual {
    Dual {
        v4: Ipv4Addr::new(172, 31, 0, host),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, as_hex(host)),
    }
}

/// Returns the number with the decimal digits of `number` (below 100) as its hexadecimal ones. The
/// addresses of both families so read alike.
const fn as_hex(number: u8) -> u16 {
    (number / 10 * 16 + number % 10) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_read_alike() {
        assert_eq!(node(2).v4.to_string(), "172.30.0.12");
        assert_eq!(node(2).v6.to_string(), "2001:db8:a::12");
        assert_eq!(pod(3, Some(1)).v4.to_string(), "10.244.3.11");
        assert_eq!(pod(3, Some(1)).v6.to_string(), "2001:db8:f:3::11");
        assert_eq!(pod(3, None).v6.to_string(), "2001:db8:f:3::1");
    }
}
