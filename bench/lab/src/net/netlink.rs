//! Links, addresses and routes of the namespace whose thread opened the socket.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMetric};
use rtnetlink::{LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use crate::frame::Mac;

/// An rtnetlink socket. It belongs to the namespace in which it was opened.
#[derive(Clone, Debug)]
pub struct Netlink {
    pub(super) handle: rtnetlink::Handle,
}

impl Netlink {
    /// Opens a socket in the current thread's namespace.
    pub fn open() -> Result<Self> {
        let (connection, handle, _) =
            rtnetlink::new_connection().context("can't open an rtnetlink socket")?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// Adds a pair of virtual Ethernet devices: `name` here, `peer` in `peer_namespace`.
    pub async fn add_veth(&self, name: &str, peer: &str, peer_namespace: &File) -> Result<()> {
        let peer = LinkUnspec::new_with_name(peer).setns_by_fd(peer_namespace.as_raw_fd()).build();
        let pair = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        self.handle
            .link()
            .add(pair)
            .execute()
            .await
            .with_context(|| format!("can't add the veth pair {name}"))
    }

    /// Adds a bridge that is up and learns. Spanning tree and multicast snooping are off, because
    /// both would hold back the first frames.
    pub async fn add_bridge(&self, name: &str) -> Result<()> {
        let bridge = LinkBridge::new(name).mcast_snooping(false).up().build();
        self.handle.link().add(bridge).execute().await.with_context(|| format!("can't add the bridge {name}"))
    }

    /// Sets the MTU of a device.
    pub async fn set_mtu(&self, name: &str, bytes: u32) -> Result<()> {
        let link = LinkUnspec::new_with_name(name).mtu(bytes).build();
        self.handle.link().set(link).execute().await.with_context(|| format!("can't set the MTU of {name}"))
    }

    /// Makes a device a port of a bridge.
    pub async fn add_port(&self, bridge: &str, port: &str) -> Result<()> {
        let message = LinkUnspec::new_with_index(index_of(port)?).controller(index_of(bridge)?).build();
        self.handle
            .link()
            .set(message)
            .execute()
            .await
            .with_context(|| format!("can't add {port} to {bridge}"))
    }

    /// Sets a device up.
    pub async fn set_up(&self, device: &str) -> Result<()> {
        let message = LinkUnspec::new_with_index(index_of(device)?).up().build();
        self.handle.link().set(message).execute().await.with_context(|| format!("can't set {device} up"))
    }

    /// Sets a device down. For one of a virtual pair, that is a pulled plug.
    pub async fn set_down(&self, device: &str) -> Result<()> {
        let message = LinkUnspec::new_with_index(index_of(device)?).down().build();
        self.handle.link().set(message).execute().await.with_context(|| format!("can't set {device} down"))
    }

    /// Returns the MAC address of an Ethernet device.
    pub async fn mac_of(&self, device: &str) -> Result<[u8; 6]> {
        let link = self.handle.link().get().match_name(device.to_owned()).execute().try_next().await?;
        let attributes = link.map(|link| link.attributes).unwrap_or_default();
        let address = attributes.into_iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(bytes) => <[u8; 6]>::try_from(bytes).ok(),
            _ => None,
        });
        address.with_context(|| format!("{device} has no MAC address"))
    }

    /// Returns the index of the device with a MAC address.
    pub async fn index_of_mac(&self, mac: Mac) -> Result<Option<u32>> {
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            let mut addresses = link.attributes.iter().filter_map(|attribute| match attribute {
                LinkAttribute::Address(bytes) => Some(bytes),
                _ => None,
            });
            if addresses.any(|bytes| bytes[..] == mac) {
                return Ok(Some(link.header.index));
            }
        }
        Ok(None)
    }

    /// Moves a device into another namespace. It is down afterwards.
    pub async fn move_link(&self, index: u32, namespace: &File) -> Result<()> {
        let link = LinkUnspec::new_with_index(index).setns_by_fd(namespace.as_raw_fd()).build();
        self.handle.link().set(link).execute().await.with_context(|| format!("can't move device {index}"))
    }

    /// Renames a device that is down.
    pub async fn rename(&self, index: u32, name: &str) -> Result<()> {
        let link = LinkUnspec::new_with_index(index).name(name).build();
        self.handle
            .link()
            .set(link)
            .execute()
            .await
            .with_context(|| format!("can't name device {index} {name}"))
    }

    /// Gives a device a MAC address that stays. A bridge without one takes the least of its ports'.
    pub async fn set_mac(&self, device: &str, mac: Mac) -> Result<()> {
        let message = LinkUnspec::new_with_index(index_of(device)?).address(mac.to_vec()).build();
        let set = self.handle.link().set(message).execute().await;
        set.with_context(|| format!("can't set the MAC address of {device}"))
    }

    /// Deletes a device, and with it its peer.
    pub async fn delete_link(&self, device: &str) -> Result<()> {
        let index = index_of(device)?;
        self.handle.link().del(index).execute().await.with_context(|| format!("can't delete {device}"))
    }

    /// Gives a device an address without duplicate address detection, so it is usable at once.
    ///
    /// Even a detection that is switched off would end in a work queue some time later.
    pub async fn add_address(&self, device: &str, address: IpNet) -> Result<()> {
        let index = index_of(device)?;
        let mut request = self.handle.address().add(index, address.addr(), address.prefix_len());
        request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        request.execute().await.with_context(|| format!("can't add {address} to {device}"))
    }

    /// Gives a neighbour a MAC address that stays.
    pub async fn add_neighbour(&self, device: &str, address: IpAddr, mac: Mac) -> Result<()> {
        let request = self.handle.neighbours().add(index_of(device)?, address).link_layer_address(&mac);
        request.execute().await.with_context(|| format!("can't add the neighbour {address} to {device}"))
    }

    /// Routes a prefix through a gateway. Replaces an existing route.
    pub async fn set_route(&self, destination: IpNet, gateway: IpAddr) -> Result<()> {
        self.replace_route(destination, gateway, Vec::new()).await
    }

    /// Routes packets of at most `bytes` bytes through a gateway. Larger ones are refused or
    /// fragmented, as on a link with that MTU.
    pub async fn set_narrow_route(&self, destination: IpNet, gateway: IpAddr, bytes: u32) -> Result<()> {
        /// A locked metric (the bit of `RTAX_MTU`, 2) is also valid for forwarded packets.
        const LOCKED_MTU: u32 = 1 << 2;
        let metrics = vec![RouteMetric::Lock(LOCKED_MTU), RouteMetric::Mtu(bytes)];
        self.replace_route(destination, gateway, vec![RouteAttribute::Metrics(metrics)]).await
    }

    async fn replace_route(
        &self,
        destination: IpNet,
        gateway: IpAddr,
        attributes: Vec<RouteAttribute>,
    ) -> Result<()> {
        let mut route = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.network(), destination.prefix_len())?
            .gateway(gateway)?
            .build();
        route.attributes.extend(attributes);
        let request = self.handle.route().add(route).replace();
        request.execute().await.with_context(|| format!("can't route {destination} through {gateway}"))
    }

    /// Routes a prefix out of a device that needs no next hop, from an address of this namespace.
    /// Replaces an existing route.
    pub async fn set_device_route(&self, destination: IpNet, device: &str, source: IpAddr) -> Result<()> {
        let route = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.network(), destination.prefix_len())?
            .output_interface(index_of(device)?)
            .pref_source(source)?
            .build();
        let request = self.handle.route().add(route).replace();
        request.execute().await.with_context(|| format!("can't route {destination} out of {device}"))
    }
}

/// Returns the interface index of a device of this namespace.
pub(super) fn index_of(device: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(device).with_context(|| format!("there is no device {device}"))
}
