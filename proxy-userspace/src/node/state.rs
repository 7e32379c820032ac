//! The state of this node's network from rtnetlink, as plain data that tests can build.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::Family;

/// The kernel's state that [`topology`](super::topology()) needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The devices by interface index.
    pub devices: BTreeMap<u32, Device>,
    /// The addresses, each with the index of its device.
    pub addresses: BTreeSet<(u32, IpAddr)>,
    /// Devices of the default routes.
    pub default_routes: BTreeSet<DefaultRoute>,
    /// The neighbour caches of both families, by device and address.
    pub neighbours: BTreeMap<(u32, IpAddr), Neighbour>,
    /// The kernel's route to each target. A target without a route is absent.
    pub routes: BTreeMap<IpAddr, Route>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Whether it is administratively up.
    pub up: bool,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// The link-layer address, if the device has Ethernet frames.
    pub mac: Option<[u8; 6]>,
    /// Whether it is enslaved to a bridge, bond or the like, so that no route leads out of it. A
    /// VRF's member is not.
    pub is_port: bool,
}

/// The kinds of devices that are treated differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The loopback device.
    Loopback,
    /// A bridge.
    Bridge,
    /// A VLAN on top of another device.
    Vlan,
    /// An overlay or tunnel: VXLAN, Geneve, WireGuard, IPIP, GRE and their like.
    Overlay,
    /// One end of a veth pair. Its frames often never were on a wire.
    Veth,
    /// Anything else: physical devices, bonds.
    Other,
}

/// A default route. There may be several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DefaultRoute {
    /// Index of the device.
    pub device: u32,
    /// Family.
    pub family: Family,
    /// Routing table.
    pub table: u32,
    /// Metric.
    pub metric: u32,
}

/// An entry of a neighbour cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The state of the MAC address.
    pub resolution: Resolution,
    /// Whether the kernel keeps it resolved (NTF_EXT_MANAGED).
    pub managed: bool,
    /// Whether Millrace made it.
    pub ours: bool,
}

/// The state of a neighbour's MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Unknown, or the neighbour does not answer.
    Unresolved,
    /// Learned, and valid until the neighbour stops answering.
    Learned([u8; 6]),
    /// Fixed by an administrator or by the kind of device, and never probed.
    Fixed([u8; 6]),
}

/// The kernel's answer to a route look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the device.
    pub device: u32,
    /// The next hop; `None` = the target is on the link.
    pub gateway: Option<IpAddr>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// The MTU of the route, if it has its own.
    pub mtu: Option<u32>,
}

/// A change of the node's network, from a notification or a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// A device is new or has changed.
    Device(u32, Device),
    /// A device is gone.
    DeviceGone(u32),
    /// A device has an address.
    Address(u32, IpAddr),
    /// A device has lost an address.
    AddressGone(u32, IpAddr),
    /// A default route is there.
    DefaultRoute(DefaultRoute),
    /// A default route is gone.
    DefaultRouteGone(DefaultRoute),
    /// Another route or a rule has changed.
    Routing,
    /// A neighbour is new or has changed.
    Neighbour(u32, IpAddr, Neighbour),
    /// A neighbour is gone.
    NeighbourGone(u32, IpAddr),
}

impl Update {
    /// Returns whether route look-ups may have other results now.
    #[must_use]
    pub const fn affects_routes(&self) -> bool {
        !matches!(self, Self::Neighbour(..) | Self::NeighbourGone(..))
    }
}

impl NodeState {
    /// Applies a change.
    pub fn apply(&mut self, update: Update) {
        match update {
            Update::Device(index, device) => {
                self.devices.insert(index, device);
            }
            Update::DeviceGone(index) => self.forget_device(index),
            Update::Address(index, address) => {
                self.addresses.insert((index, address));
            }
            Update::AddressGone(index, address) => {
                self.addresses.remove(&(index, address));
            }
            Update::DefaultRoute(route) => {
                self.default_routes.insert(route);
            }
            Update::DefaultRouteGone(route) => {
                self.default_routes.remove(&route);
            }
            Update::Routing => {}
            Update::Neighbour(index, address, neighbour) => {
                self.neighbours.insert((index, address), neighbour);
            }
            Update::NeighbourGone(index, address) => {
                self.neighbours.remove(&(index, address));
            }
        }
    }

    /// Returns the neighbour that gets packets to `target`: the gateway, else the target itself.
    #[must_use]
    pub fn next_hop(&self, target: IpAddr) -> Option<(u32, IpAddr)> {
        let route = self.routes.get(&target)?;
        Some((route.device, route.gateway.unwrap_or(target)))
    }

    /// Forgets a device with its addresses, routes and neighbours: the kernel sends no notification
    /// for those.
    fn forget_device(&mut self, index: u32) {
        self.devices.remove(&index);
        self.addresses.retain(|(device, _)| *device != index);
        self.default_routes.retain(|route| route.device != index);
        self.neighbours.retain(|(device, _), _| *device != index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_goes_takes_all_that_hung_on_it_along() {
        let mut state = NodeState::default();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let route = DefaultRoute { device: 2, family: Family::V4, table: 254, metric: 0 };
        let neighbour = Neighbour { resolution: Resolution::Unresolved, managed: false, ours: false };
        let device = Device {
            name: "eth0".to_owned(),
            kind: DeviceKind::Other,
            up: true,
            mtu: 1500,
            mac: None,
            is_port: false,
        };
        for update in [
            Update::Device(2, device),
            Update::Address(2, address),
            Update::DefaultRoute(route),
            Update::Neighbour(2, address, neighbour),
        ] {
            state.apply(update);
        }
        assert_ne!(state, NodeState::default());
        state.apply(Update::DeviceGone(2));
        assert_eq!(state, NodeState::default());
    }
}
