//! The addresses and ports of the measured frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first addresses of one kind.
#[derive(Clone, Copy)]
pub struct Net {
    v4: u32,
    v6: u64,
}

/// Clients outside the cluster.
pub const CLIENT: Net = Net { v4: 0xc612_0000, v6: 0x2001_0db8_0051_0000 };
/// Frontends.
pub const VIP: Net = Net { v4: 0x0a60_0000, v6: 0xfd00_0096_0000_0000 };
/// Backends.
pub const POD: Net = Net { v4: 0x0a01_0000, v6: 0xfd00_0010_0000_0000 };
/// Nodes. Node 1 is the node of the programs.
pub const NODE: Net = Net { v4: 0xc0a8_0000, v6: 0xfd00_0192_0000_0000 };
/// Routers on the way to clients.
pub const ROUTER: Net = Net { v4: 0xcb00_7100, v6: 0x2001_0db8_0018_0000 };

/// Port of load balancer addresses.
pub const PORT: u16 = 80;
/// Port of NodePorts.
pub const NODE_PORT: u16 = 30080;

impl Net {
    /// Returns an address of the net.
    pub fn address(self, is_v6: bool, number: u32) -> IpAddr {
        if is_v6 {
            IpAddr::V6(Ipv6Addr::from(u128::from(self.v6) << 64 | u128::from(number)))
        } else {
            IpAddr::V4(Ipv4Addr::from(self.v4 + number))
        }
    }
}
