//! What the data plane needs to know of the node's network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Devices to attach to, and ways to other nodes: the node module's output, the data plane's input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// By interface index: where our programs belong.
    pub devices: BTreeMap<u32, AttachTarget>,
    /// By address of the other node: how it is reached. A target without a route is absent.
    pub ways: BTreeMap<IpAddr, Way>,
    /// Addresses on this node's devices, loopback and link-local left out.
    pub addresses: BTreeSet<IpAddr>,
}

/// A device and the hooks our programs belong on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachTarget {
    /// Name, for messages.
    pub name: String,
    /// Hooks, sorted.
    pub hooks: BTreeSet<Hook>,
}

/// A place a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// `xdp_ingress`, native or generic as the setting says.
    Xdp,
    /// `tc_ingress`.
    TcIngress,
    /// `tc_egress`.
    TcEgress,
}

/// How another node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Preferred source address of the route.
    pub source: IpAddr,
    /// Index of the device.
    pub device: u32,
    /// Bytes an IP packet may have on this way, outer header included.
    pub mtu: u16,
    /// MAC addresses of device and next hop, once the neighbour is resolved.
    pub link: Option<Link>,
}

/// Link-layer addresses of a resolved way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// MAC address of the device.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop.
    pub destination_mac: [u8; 6],
}
