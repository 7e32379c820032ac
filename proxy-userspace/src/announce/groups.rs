//! The multicast groups in which hosts ask for IPv6 addresses.
//!
//! A network card drops, and a switch does not forward, what is sent to a group that nobody has joined.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::frame::solicited_node;
use super::socket::set;

/// The groups of one device. The kernel leaves them when this is dropped.
#[derive(Debug, Default)]
pub struct Groups {
    device: u32,
    socket: Option<OwnedFd>,
    /// The number of addresses that share a group.
    members: BTreeMap<Ipv6Addr, usize>,
}

impl Groups {
    /// Returns the groups of a device.
    pub fn of(device: u32) -> Self {
        Self { device, ..Self::default() }
    }

    /// Joins the group of an address.
    pub fn join(&mut self, address: Ipv6Addr) -> io::Result<()> {
        let group = solicited_node(address);
        if !self.members.contains_key(&group) {
            self.set(group, libc::IPV6_ADD_MEMBERSHIP)?;
        }
        *self.members.entry(group).or_default() += 1;
        Ok(())
    }

    /// Leaves the group of an address, unless another one has it, too.
    pub fn leave(&mut self, address: Ipv6Addr) -> io::Result<()> {
        let group = solicited_node(address);
        let Some(count) = self.members.get_mut(&group) else { return Ok(()) };
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        self.members.remove(&group);
        self.set(group, libc::IPV6_DROP_MEMBERSHIP)
    }

    fn set(&mut self, group: Ipv6Addr, option: i32) -> io::Result<()> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(socket(
                AddressFamily::Inet6,
                SockType::Datagram,
                SockFlag::SOCK_CLOEXEC,
                None::<SockProtocol>,
            )?),
        };
        let request = libc::ipv6_mreq {
            ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
            ipv6mr_interface: self.device,
        };
        set(socket, libc::IPPROTO_IPV6, option, &request)
    }
}
