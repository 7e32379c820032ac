//! What the data plane needs to know of the node's network, and how it follows from what the kernel tells.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::state::{Device, DeviceKind, NodeState, Resolution};
use crate::config::DevicePattern;

/// Devices to attach to, and ways to other nodes: the node module's output, the data plane's input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// By interface index: where our programs belong.
    pub devices: BTreeMap<u32, AttachTarget>,
    /// By address of the other node: how it is reached. A target without a route is absent.
    pub ways: BTreeMap<IpAddr, Way>,
    /// Addresses on this node's devices, loopback, link-local and service addresses left out.
    pub addresses: BTreeSet<IpAddr>,
    /// Names of the devices toward the network.
    pub uplinks: BTreeSet<String>,
    /// Names that `--uplinks` has and no device.
    pub missing_uplinks: BTreeSet<String>,
    /// Bytes an IP packet between nodes may have: the least of all uplinks and ways. `None` = there are none.
    pub mtu: Option<u32>,
}

impl Topology {
    /// Whether any device is an uplink.
    #[must_use]
    pub fn has_uplink(&self) -> bool {
        !self.uplinks.is_empty() || self.devices.values().any(AttachTarget::is_uplink)
    }
}

/// The devices that take the outer header off where IPVS serves, by family of that header. What comes out of them has come
/// in over an uplink before, and their addresses are nobody's.
pub const TUNNELS: [&str; 2] = ["millrace-tun4", "millrace-tun6"];

/// A device and the hooks our programs belong on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachTarget {
    /// Name, for messages.
    pub name: String,
    /// Hooks, sorted.
    pub hooks: BTreeSet<Hook>,
    /// What is translated and leaves here has this source, where the kernel can't say which its routes prefer: the
    /// device's own address, else this node's.
    pub source_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub source_v6: Option<Ipv6Addr>,
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
    /// `tc_pod_in`.
    TcPodIn,
    /// `tc_pod_out`.
    TcPodOut,
    /// `tc_ingress_l3`: `tc_ingress` for a device without Ethernet frames.
    TcIngressL3,
    /// `tc_egress_l3`: `tc_egress` for such a device.
    TcEgressL3,
}

impl Hook {
    /// Those for what comes in.
    pub const INGRESS: [Self; 3] = [Self::Xdp, Self::TcIngress, Self::TcIngressL3];
}

impl AttachTarget {
    /// Whether what comes in there is served, be it by XDP or by TC alone.
    #[must_use]
    pub fn is_uplink(&self) -> bool {
        [Hook::TcIngress, Hook::TcIngressL3].iter().any(|hook| self.hooks.contains(hook))
    }
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

/// Link-layer addresses of a resolved way; zeros where the device has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// MAC address of the device.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop.
    pub destination_mac: [u8; 6],
}

/// What the user says of the node's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// Devices toward the network; empty = devices with a default route or a node address, and overlay devices.
    pub uplinks: BTreeSet<String>,
    /// Devices that lead to this node's pods.
    pub pod_interfaces: Vec<DevicePattern>,
    /// Where XDP is used.
    pub xdp: XdpUse,
    /// Ports that no socket may be given, if any.
    pub snat_ports: Option<RangeInclusive<u16>>,
    /// The device that carries service addresses on our own behalf, if any.
    pub own_device: Option<String>,
    /// A directory of the BPF file system where it is noted which of the host's settings were changed.
    pub notes: Option<PathBuf>,
}

/// On which uplinks XDP is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpUse {
    /// On none.
    Never,
    /// Wherever frames come off a wire. A veth pair hands over frames of its other end's stack, whose checksums are
    /// not computed yet and which may be trains of segments: XDP can't translate those, TC can.
    #[default]
    OffTheWire,
    /// On veth devices too, since the user says so.
    Everywhere,
}

impl XdpUse {
    const fn includes(self, kind: DeviceKind) -> bool {
        // XDP sees the outer frames of bridges, VLANs and overlays on the device below them.
        match (self, kind) {
            (Self::OffTheWire | Self::Everywhere, DeviceKind::Other)
            | (Self::Everywhere, DeviceKind::Veth) => true,
            (Self::Never | Self::OffTheWire | Self::Everywhere, _) => false,
        }
    }
}

/// Devices, hooks and ways, from the kernel's state, the settings and the addresses of the cluster's nodes
/// (this node's own among them: they mark an uplink and have no way).
#[must_use]
pub fn topology(state: &NodeState, settings: &NodeSettings, targets: &BTreeSet<IpAddr>) -> Topology {
    let local: BTreeSet<IpAddr> = state.addresses.iter().map(|(_, address)| *address).collect();
    let is_own = |index| {
        let device: Option<&Device> = state.devices.get(index);
        device.is_none_or(|device| !is_service_device(device) && !is_own_tunnel(device))
    };
    let own = state.addresses.iter().filter(|(index, _)| is_own(index)).map(|(_, address)| *address);
    let devices = state.devices.iter().filter_map(|(index, device)| {
        let hooks = hooks(device, is_uplink(state, settings, targets, *index, device), settings);
        (!hooks.is_empty()).then(|| {
            let (source_v4, source_v6) = sources(state, targets, *index);
            (*index, AttachTarget { name: device.name.clone(), hooks, source_v4, source_v6 })
        })
    });
    let ways = targets.difference(&local).filter_map(|target| Some((*target, way(state, *target)?)));
    let ways: BTreeMap<IpAddr, Way> = ways.collect();
    let uplinks = uplinks(state, settings, targets);
    let mtus = uplinks.iter().map(|device| device.mtu).chain(ways.values().map(|way| way.mtu.into()));
    Topology {
        devices: devices.collect(),
        mtu: mtus.min(),
        ways,
        addresses: own.collect(),
        uplinks: uplinks.into_iter().map(|device| device.name.clone()).collect(),
        missing_uplinks: missing_uplinks(state, settings),
    }
}

fn missing_uplinks(state: &NodeState, settings: &NodeSettings) -> BTreeSet<String> {
    let names: BTreeSet<&str> = state.devices.values().map(|device| device.name.as_str()).collect();
    settings.uplinks.iter().filter(|name| !names.contains(name.as_str())).cloned().collect()
}

/// An address of a device for each family: one that is the node's own in its Node object, or else the first, or else the node's
/// on another device. Addresses that come and go with a virtual router are no node's.
fn sources(
    state: &NodeState,
    targets: &BTreeSet<IpAddr>,
    index: u32,
) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let is_nodes = |(_, address): &&(u32, IpAddr)| targets.contains(address);
    let own = || state.addresses.iter().filter(|(device, _)| *device == index);
    let nodes = || state.addresses.iter().filter(is_nodes);
    let addresses = || own().filter(is_nodes).chain(own()).chain(nodes()).map(|(_, address)| *address);
    let v4 = addresses().find_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    let v6 = addresses().find_map(|address| match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    });
    (v4, v6)
}

/// Whether a device of kube-proxy (IPVS) or kube-router carries the addresses of all services: none of them is
/// this node's own, and there may be thousands.
#[must_use]
pub fn is_service_device(device: &Device) -> bool {
    matches!(device.name.as_str(), "kube-ipvs0" | "kube-dummy-if")
}

fn is_own_tunnel(device: &Device) -> bool {
    TUNNELS.contains(&device.name.as_str())
}

/// The devices that are uplinks, sorted by index.
#[must_use]
pub fn uplinks<'a>(
    state: &'a NodeState,
    settings: &NodeSettings,
    targets: &BTreeSet<IpAddr>,
) -> Vec<&'a Device> {
    let is_uplink = |(index, device): &(&u32, &Device)| is_uplink(state, settings, targets, **index, device);
    state.devices.iter().filter(is_uplink).map(|(_, device)| device).collect()
}

fn is_uplink(
    state: &NodeState,
    settings: &NodeSettings,
    targets: &BTreeSet<IpAddr>,
    index: u32,
    device: &Device,
) -> bool {
    if device.kind == DeviceKind::Loopback || is_own_tunnel(device) {
        return false;
    }
    if !settings.uplinks.is_empty() {
        return settings.uplinks.contains(&device.name);
    }
    let has_node_address =
        || state.addresses.iter().any(|(device, address)| *device == index && targets.contains(address));
    // tunl0, gre0 and their like come with the kernel module and stay down until somebody uses them.
    device.kind == DeviceKind::Overlay && device.up
        || state.default_routes.iter().any(|route| route.device == index)
        || has_node_address()
}

/// The hooks of a device: what comes in is served on uplinks and, by other rules, where pods are; what goes out is restored wherever
/// a reply can leave, and where it can reach a pod.
///
/// A device without MAC addresses (WireGuard, IPIP, a plain tunnel) has no Ethernet frames, and no XDP that could send one on.
fn hooks(device: &Device, is_uplink: bool, settings: &NodeSettings) -> BTreeSet<Hook> {
    let has_frames = device.mac.is_some();
    let egress = if has_frames { Hook::TcEgress } else { Hook::TcEgressL3 };
    if is_uplink {
        let has_xdp = has_frames && settings.xdp.includes(device.kind);
        let ingress = if has_frames { Hook::TcIngress } else { Hook::TcIngressL3 };
        return [has_xdp.then_some(Hook::Xdp), Some(ingress), Some(egress)].into_iter().flatten().collect();
    }
    if device.kind == DeviceKind::Loopback || !device.up {
        return BTreeSet::new();
    }
    // Frames that a bridge passes between its ports don't come by the bridge itself.
    if settings.pod_interfaces.iter().any(|pattern| pattern.matches(&device.name)) {
        return if has_frames { BTreeSet::from([Hook::TcPodIn, Hook::TcPodOut]) } else { BTreeSet::new() };
    }
    if device.is_port { BTreeSet::new() } else { BTreeSet::from([egress]) }
}

fn way(state: &NodeState, target: IpAddr) -> Option<Way> {
    let route = state.routes.get(&target)?;
    let device = state.devices.get(&route.device)?;
    let mtu = device.mtu.min(route.mtu.unwrap_or(u32::MAX));
    let neighbour = state.next_hop(target).and_then(|next_hop| state.neighbours.get(&next_hop));
    let destination_mac = neighbour.and_then(|neighbour| match neighbour.resolution {
        Resolution::Learned(mac) | Resolution::Fixed(mac) => Some(mac),
        Resolution::Unresolved => None,
    });
    let link = match device.mac {
        Some(source_mac) => destination_mac.map(|destination_mac| Link { source_mac, destination_mac }),
        // There is nothing to resolve.
        None => Some(Link::default()),
    };
    Some(Way {
        source: route.source?,
        device: route.device,
        mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        link,
    })
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
