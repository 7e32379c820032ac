//! The multicast groups in which hosts ask for IPv6 addresses.
//!
//! A network card drops, and a switch does not forward, what is sent to a group that nobody has joined.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::frame::solicited_node;
use super::socket::set;

/// Groups that one socket joins. The kernel limits the memory of each socket for them (`net.core.optmem_max`).
const EACH: usize = 64;

/// The groups of one device. The kernel leaves them when this is dropped.
#[derive(Debug)]
pub struct Groups {
    device: u32,
    /// Each socket has `EACH` groups at most.
    sockets: Vec<(OwnedFd, BTreeSet<Ipv6Addr>)>,
    /// The addresses of each joined group.
    members: BTreeMap<Ipv6Addr, BTreeSet<Ipv6Addr>>,
}

impl Groups {
    /// Returns the groups of a device.
    pub fn of(device: u32) -> Self {
        Self { device, sockets: Vec::new(), members: BTreeMap::new() }
    }

    /// Joins the group of an address, unless this was done before.
    pub fn join(&mut self, address: Ipv6Addr) -> io::Result<()> {
        let group = solicited_node(address);
        if !self.members.contains_key(&group) {
            self.join_group(group)?;
        }
        self.members.entry(group).or_default().insert(address);
        Ok(())
    }

    /// Leaves the group of an address, unless another one needs it, too.
    pub fn leave(&mut self, address: Ipv6Addr) -> io::Result<()> {
        let group = solicited_node(address);
        let Some(addresses) = self.members.get_mut(&group) else { return Ok(()) };
        addresses.remove(&address);
        if !addresses.is_empty() {
            return Ok(());
        }
        self.members.remove(&group);
        let device = self.device;
        for (socket, groups) in &mut self.sockets {
            if groups.remove(&group) {
                return change(socket, device, group, libc::IPV6_DROP_MEMBERSHIP);
            }
        }
        Ok(())
    }

    fn join_group(&mut self, group: Ipv6Addr) -> io::Result<()> {
        let device = self.device;
        if !self.sockets.iter().any(|(_, groups)| groups.len() < EACH) {
            let flags = SockFlag::SOCK_CLOEXEC;
            let new = socket(AddressFamily::Inet6, SockType::Datagram, flags, None::<SockProtocol>)?;
            self.sockets.push((new, BTreeSet::new()));
        }
        let with_room = self.sockets.iter_mut().find(|(_, groups)| groups.len() < EACH);
        let Some((socket, groups)) = with_room else { return Ok(()) };
        change(socket, device, group, libc::IPV6_ADD_MEMBERSHIP)?;
        groups.insert(group);
        Ok(())
    }
}

fn change(socket: &OwnedFd, device: u32, group: Ipv6Addr, option: i32) -> io::Result<()> {
    let request = libc::ipv6_mreq {
        ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
        ipv6mr_interface: device,
    };
    set(socket, libc::IPPROTO_IPV6, option, &request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_left_with_its_last_address_and_many_fit() {
        let address = |number: u32| Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(number));
        let mut groups = Groups::of(1);
        for number in 0..200 {
            groups.join(address(number)).unwrap();
            groups.join(address(number)).unwrap();
        }
        // It ends like the first one, and so has its group.
        let twin = Ipv6Addr::from(0x2001_0db9_u128 << 96);
        groups.join(twin).unwrap();
        assert_eq!((groups.members.len(), groups.sockets.len()), (200, 4));
        groups.leave(address(0)).unwrap();
        groups.leave(address(0)).unwrap();
        assert_eq!(groups.members.len(), 200);
        groups.leave(twin).unwrap();
        assert_eq!(groups.members.len(), 199);
        groups.join(address(0)).unwrap();
        assert_eq!(groups.sockets.len(), 4);
    }
}
