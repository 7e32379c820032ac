//! Overlay devices between two machines, as CNI plugins make them. The machines' kernels must
//! support them.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use ipnet::IpNet;
use rtnetlink::packet_route::link::InfoKind;
use rtnetlink::{LinkIp6Tnl, LinkIpIp, LinkMessageBuilder, LinkUnspec, LinkVlan, LinkVxlan};

use super::netlink::index_of;
use super::{Namespace, Netlink, wireguard};
use crate::topology::{Dual, Family};

/// Kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlay {
    /// Ethernet frames in UDP.
    Vxlan,
    /// Tagged frames (802.1Q).
    Vlan,
    /// IPv4 in IPv4.
    IpIp,
    /// Both families in IPv6.
    Ip6Tnl,
    /// Encrypted packets in UDP.
    WireGuard,
}

/// A machine at one end of an overlay.
#[derive(Debug)]
pub struct End<'a> {
    /// Its namespace.
    pub namespace: &'a Namespace,
    /// Its addresses in the network below.
    pub below: Dual,
    /// Its addresses in the overlay.
    pub addresses: Vec<IpNet>,
}

/// Number of the network, and ports of tunnels in UDP.
const NETWORK: u16 = 7;
const VXLAN_PORT: u16 = 4789;
const WIREGUARD_PORT: u16 = 51820;
/// The default of `ip` (RFC 2473, section 4.1.1).
const ENCAPSULATION_LIMIT: u8 = 4;

impl Overlay {
    /// All.
    pub const ALL: [Self; 5] = [Self::Vxlan, Self::Vlan, Self::IpIp, Self::Ip6Tnl, Self::WireGuard];

    /// Returns the name of its devices.
    #[must_use]
    pub const fn device(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan7",
            Self::Vlan => "vlan7",
            Self::IpIp => "ipip7",
            Self::Ip6Tnl => "ip6tnl7",
            Self::WireGuard => "wg7",
        }
    }

    /// Returns the families it carries.
    #[must_use]
    pub const fn families(self) -> &'static [Family] {
        match self {
            Self::IpIp => &[Family::V4],
            Self::Vxlan | Self::Vlan | Self::Ip6Tnl | Self::WireGuard => &Family::ALL,
        }
    }

    /// Returns whether its devices have Ethernet frames.
    #[must_use]
    pub const fn has_frames(self) -> bool {
        matches!(self, Self::Vxlan | Self::Vlan)
    }

    /// Joins two machines over the network of their device `below`.
    pub fn join(self, below: &str, ends: [End<'_>; 2]) -> Result<()> {
        let places = ends.each_ref().map(|end| end.below);
        for (index, end) in ends.into_iter().enumerate() {
            let (own, other) = if index == 0 { (places[0], places[1]) } else { (places[1], places[0]) };
            let below = below.to_owned();
            end.namespace.run(async move || {
                let netlink = Netlink::open()?;
                self.add(&netlink, &below, own, other).await?;
                if self == Self::WireGuard {
                    let peer = SocketAddr::new(other.v4.into(), WIREGUARD_PORT);
                    wireguard::configure(self.device(), index, WIREGUARD_PORT, peer)?;
                }
                netlink.set_up(self.device()).await?;
                for address in end.addresses {
                    netlink.add_address(self.device(), address).await?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    async fn add(self, netlink: &Netlink, below: &str, own: Dual, other: Dual) -> Result<()> {
        let name = self.device();
        let message = match self {
            Self::Vxlan => LinkVxlan::new(name, NETWORK.into())
                .local(own.v4)
                .remote(other.v4)
                .port(VXLAN_PORT)
                .dev(index_of(below)?)
                .build(),
            Self::Vlan => LinkVlan::new(name, index_of(below)?, NETWORK).build(),
            Self::IpIp => LinkIpIp::new(name).local(own.v4).remote(other.v4).build(),
            Self::Ip6Tnl => {
                LinkIp6Tnl::new(name).local(own.v6).remote(other.v6).encap_limit(ENCAPSULATION_LIMIT).build()
            }
            Self::WireGuard => {
                LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Wireguard).name(name).build()
            }
        };
        let added = netlink.handle.link().add(message).execute().await;
        added.with_context(|| format!("can't add the device {name}"))
    }
}
