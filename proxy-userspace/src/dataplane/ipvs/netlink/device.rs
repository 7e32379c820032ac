//! Our devices: the dummy device with the addresses of Services, and the decapsulating devices.
//!
//! The kernel delivers packets to an address on the dummy device locally, so IPVS sees them.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope, CacheInfo,
};
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::dataplane::ipvs::DEVICE;
use crate::dataplane::netlink::Channel;
use crate::model::Family;
use crate::node::TUNNELS;

/// A device. It need not exist yet.
#[derive(Debug)]
pub struct Device {
    channel: Channel,
    kind: Kind,
    /// Its index, once it exists.
    index: Option<u32>,
}

/// The purpose of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Holds the addresses of Services.
    Dummy,
    /// Decapsulates packets to its own address. The outer header is of this family.
    Tunnel(Family),
}

impl Device {
    /// Opens a socket and looks for the device.
    pub fn open(kind: Kind) -> io::Result<Self> {
        let mut device = Self { channel: Channel::open(NETLINK_ROUTE)?, kind, index: None };
        device.index = device.find()?;
        Ok(device)
    }

    /// Makes the device if it does not exist, and brings it up.
    pub fn ensure(&mut self) -> io::Result<()> {
        self.index = self.find()?;
        if self.index.is_none() {
            let mut link = self.named();
            link.attributes.push(LinkAttribute::LinkInfo(self.kind.info()));
            self.channel.act(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)?;
            self.index = self.find()?;
        }
        let mut up = LinkMessage::default();
        up.header.index = self.index()?;
        up.header.flags = LinkFlags::Up;
        up.header.change_mask = LinkFlags::Up;
        self.channel.act(RouteNetlinkMessage::SetLink(up), 0)
    }

    /// Whether the kernel has the device now.
    pub fn exists(&mut self) -> io::Result<bool> {
        Ok(self.find()?.is_some())
    }

    /// Removes the device with its addresses; returns whether it existed.
    pub fn remove(&mut self) -> io::Result<bool> {
        let Some(index) = self.find()? else { return Ok(false) };
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.channel.act(RouteNetlinkMessage::DelLink(link), 0)?;
        self.index = None;
        Ok(true)
    }

    /// Returns its addresses without link-local ones, which come from the kernel.
    pub fn addresses(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        if self.index.is_none() {
            return Ok(BTreeSet::new());
        }
        let own = self.all_addresses()?.into_iter().filter(|(index, _)| Some(*index) == self.index);
        Ok(own.map(|(_, address)| address).filter(|address| !is_link_local(*address)).collect())
    }

    /// Returns the index of another device with an address.
    pub fn other_with(&mut self, address: IpAddr) -> io::Result<Option<u32>> {
        let mut all = self.all_addresses()?.into_iter();
        let other = all.find(|(index, found)| *found == address && Some(*index) != self.index);
        Ok(other.map(|(index, _)| index))
    }

    /// Returns the addresses of all devices, each with the device's index.
    fn all_addresses(&mut self) -> io::Result<Vec<(u32, IpAddr)>> {
        let answers = self.channel.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let addresses = answers.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewAddress(message) => Some((message.header.index, address_of(message)?)),
            _ => None,
        });
        Ok(addresses.collect())
    }

    /// Adds addresses, each as a prefix of one address. Each succeeds or fails independently.
    pub fn add(&mut self, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
        let Some(index) = self.index else {
            return addresses.iter().map(|_| self.index().map(drop)).collect();
        };
        let message = |address: &IpAddr| RouteNetlinkMessage::NewAddress(self.kind.message(index, *address));
        let added = addresses.iter().map(message);
        self.channel.act_all(added.collect(), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes an address. A missing address is no error.
    pub fn take(&mut self, address: IpAddr) -> io::Result<()> {
        let message = RouteNetlinkMessage::DelAddress(self.kind.message(self.index()?, address));
        match self.channel.act(message, 0) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(()),
            done => done,
        }
    }

    fn index(&self) -> io::Result<u32> {
        self.index.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    fn named(&self) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(self.kind.name().to_owned()));
        link
    }

    fn find(&mut self) -> io::Result<Option<u32>> {
        let request = RouteNetlinkMessage::GetLink(self.named());
        match self.channel.get(request) {
            Ok(Some(RouteNetlinkMessage::NewLink(link))) => Ok(Some(link.header.index)),
            Ok(_) => Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Kind {
    /// Returns the name of the device.
    pub const fn name(self) -> &'static str {
        let [tunnel4, tunnel6] = TUNNELS;
        match self {
            Self::Dummy => DEVICE,
            Self::Tunnel(Family::V4) => tunnel4,
            Self::Tunnel(Family::V6) => tunnel6,
        }
    }

    /// Returns the kernel module for such devices.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Dummy => "dummy",
            Self::Tunnel(Family::V4) => "ipip",
            Self::Tunnel(Family::V6) => "ip6_tunnel",
        }
    }

    fn info(self) -> Vec<LinkInfo> {
        let kind = match self {
            Self::Dummy => return vec![LinkInfo::Kind(InfoKind::Dummy)],
            Self::Tunnel(Family::V4) => InfoKind::IpIp,
            Self::Tunnel(Family::V6) => InfoKind::Ip6Tnl,
        };
        // With its own local address, it takes no packets of tunl0 and ip6tnl0, which CNI plugins use.
        let local = self.own_address().map(InfoIpTunnel::Local);
        vec![LinkInfo::Kind(kind), LinkInfo::Data(InfoData::IpTunnel(local.into_iter().collect()))]
    }

    /// Returns the address of a decapsulating device.
    pub const fn own_address(self) -> Option<IpAddr> {
        match self {
            Self::Dummy => None,
            Self::Tunnel(family) => Some(tunnel_address(family)),
        }
    }

    fn message(self, index: u32, address: IpAddr) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.scope = match self {
            Self::Dummy => AddressScope::Universe,
            Self::Tunnel(_) => AddressScope::Host,
        };
        (message.header.family, message.header.prefix_len) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        // Nodad: no other host can have the address on this device. Noprefixroute: the route in the local
        // table is enough.
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
        message.attributes.push(AddressAttribute::Flags(flags));
        if matches!(self, Self::Tunnel(Family::V6)) {
            // A preferred lifetime of 0 makes it deprecated, so the kernel never chooses it as a source. IPv6
            // has no host scope to say so.
            let mut lifetimes = CacheInfo::default();
            lifetimes.ifa_valid = u32::MAX;
            message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
        }
        message
    }
}

/// Returns the address to which encapsulated packets for a backend are redirected.
///
/// No network has these addresses. The IPv4 one is for use within a host (RFC 7600). The IPv6 one is in the
/// discard prefix (RFC 6666), so routers drop the packets if the device is missing.
pub const fn tunnel_address(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8)),
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0x78)),
    }
}

/// Returns the local address. IPv6 messages have only the other attribute.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    local.or(address)
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
