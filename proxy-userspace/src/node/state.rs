//! What rtnetlink has told of this node, as plain data that can be made up in a test.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::Family;

/// Everything [`topology`](super::topology) needs to know of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// By interface index.
    pub devices: BTreeMap<u32, Device>,
    /// Addresses, each with the index of its device.
    pub addresses: BTreeSet<(u32, IpAddr)>,
    /// Devices of the default routes.
    pub default_routes: BTreeSet<DefaultRoute>,
    /// The neighbour caches of both families, by device and address.
    pub neighbours: BTreeMap<(u32, IpAddr), Neighbour>,
    /// The kernel's answer to "how is this target reached?"; a target without a route is absent.
    pub routes: BTreeMap<IpAddr, Route>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name.
    pub name: String,
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// Administratively up.
    pub up: bool,
    /// Bytes an IP packet may have.
    pub mtu: u32,
    /// Link-layer address, if the device has Ethernet frames.
    pub mac: Option<[u8; 6]>,
    /// Enslaved to a bridge, bond or the like, so that no route leads out of it. A VRF's member is not.
    pub is_port: bool,
}

/// Kinds of devices that are treated differently.
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
    /// One end of a veth pair: what it hands over was often never on a wire.
    Veth,
    /// Anything else: physical devices, bonds.
    Other,
}

/// A default route; several may exist beside each other.
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
    /// What is known of the MAC address.
    pub resolution: Resolution,
    /// Whether the kernel keeps it resolved by itself (NTF_EXT_MANAGED).
    pub managed: bool,
    /// Whether this program made it.
    pub ours: bool,
}

/// How much is known of a neighbour's MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Nothing, or that it does not answer.
    Unresolved,
    /// Learned; true until it stops answering.
    Learned([u8; 6]),
    /// Fixed by an administrator or by the kind of device; never probed.
    Fixed([u8; 6]),
}

/// The kernel's answer to a route look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the device.
    pub device: u32,
    /// The next hop; `None` = the target itself is on the link.
    pub gateway: Option<IpAddr>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// The route's own MTU, if it has one.
    pub mtu: Option<u32>,
}

/// One change of the node's network, as a notification or a dump tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// A device is there or has changed.
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
    /// A neighbour is there or has changed.
    Neighbour(u32, IpAddr, Neighbour),
    /// A neighbour is gone.
    NeighbourGone(u32, IpAddr),
}

impl Update {
    /// Whether the kernel may now answer route look-ups differently.
    #[must_use]
    pub const fn affects_routes(&self) -> bool {
        !matches!(self, Self::Neighbour(..) | Self::NeighbourGone(..))
    }
}

impl NodeState {
    /// Takes over one change.
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

    /// The neighbour that a packet to `target` is handed to: the gateway, else the target itself.
    #[must_use]
    pub fn next_hop(&self, target: IpAddr) -> Option<(u32, IpAddr)> {
        let route = self.routes.get(&target)?;
        Some((route.device, route.gateway.unwrap_or(target)))
    }

    /// The kernel sends no notification for what vanishes together with its device.
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
