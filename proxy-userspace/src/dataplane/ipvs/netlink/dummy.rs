//! The dummy device that has the services' addresses, so that packets to them are delivered here.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::Channel;

/// The device of this name; it need not be there yet.
#[derive(Debug)]
pub struct Dummy {
    channel: Channel,
    name: &'static str,
    /// Its index, once it is there.
    index: Option<u32>,
}

impl Dummy {
    /// Looks for the device.
    pub fn open(name: &'static str) -> io::Result<Self> {
        let mut dummy = Self { channel: Channel::open(NETLINK_ROUTE)?, name, index: None };
        dummy.index = dummy.find()?;
        Ok(dummy)
    }

    /// Makes the device if it is not there, and sets it up.
    pub fn ensure(&mut self) -> io::Result<()> {
        self.index = self.find()?;
        if self.index.is_none() {
            let mut link = self.named();
            link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Dummy)]));
            self.channel.act(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)?;
            self.index = self.find()?;
        }
        let mut up = LinkMessage::default();
        up.header.index = self.index()?;
        up.header.flags = LinkFlags::Up;
        up.header.change_mask = LinkFlags::Up;
        self.channel.act(RouteNetlinkMessage::SetLink(up), 0)
    }

    /// Whether the device is there, as the kernel says now.
    pub fn exists(&mut self) -> io::Result<bool> {
        Ok(self.find()?.is_some())
    }

    /// Removes the device with its addresses; tells whether it was there.
    pub fn remove(&mut self) -> io::Result<bool> {
        let Some(index) = self.find()? else { return Ok(false) };
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.channel.act(RouteNetlinkMessage::DelLink(link), 0)?;
        self.index = None;
        Ok(true)
    }

    /// Its addresses; link-local ones, which the kernel gives it, left out.
    pub fn addresses(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        let Some(index) = self.index else { return Ok(BTreeSet::new()) };
        let answers = self.channel.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let addresses = answers.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewAddress(message) if message.header.index == index => address_of(message),
            _ => None,
        });
        Ok(addresses.filter(|address| !is_link_local(*address)).collect())
    }

    /// Gives it addresses, each alone in its prefix, and each for itself.
    pub fn add(&mut self, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
        let Some(index) = self.index else {
            return addresses.iter().map(|_| self.index().map(drop)).collect();
        };
        let added = addresses.iter().map(|address| RouteNetlinkMessage::NewAddress(message(index, *address)));
        self.channel.act_all(added.collect(), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Takes an address away, if it has it.
    pub fn take(&mut self, address: IpAddr) -> io::Result<()> {
        let message = RouteNetlinkMessage::DelAddress(message(self.index()?, address));
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
        link.attributes.push(LinkAttribute::IfName(self.name.to_owned()));
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

fn message(index: u32, address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.scope = AddressScope::Universe;
    (message.header.family, message.header.prefix_len) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    // Nobody else may have it on this device; and the local table's route to it is all that is wanted.
    message.header.flags = AddressHeaderFlags::Nodad;
    message.attributes.push(AddressAttribute::Local(address));
    message.attributes.push(AddressAttribute::Address(address));
    let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
    message.attributes.push(AddressAttribute::Flags(flags));
    message
}

/// With IPv6 there is no local address beside the address.
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
