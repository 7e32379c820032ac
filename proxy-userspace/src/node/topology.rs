//! Derives the data plane's view of the network from the kernel's state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::pattern::DevicePattern;
use super::pod_tunnels::is_pod_tunnel;
use super::state::{Device, DeviceKind, NodeState, Resolution};

/// The devices to attach to, and the routes to other nodes: the node module's output, the data
/// plane's input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The devices that get programs, by interface index.
    pub devices: BTreeMap<u32, AttachTarget>,
    /// The route to each address of another node. A target without a route is absent.
    pub ways: BTreeMap<IpAddr, Way>,
    /// The addresses on this node's devices, without loopback, link-local and service addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Names of the devices toward the network.
    pub uplinks: BTreeSet<String>,
    /// The names in `--uplinks` that no device has.
    pub missing_uplinks: BTreeSet<String>,
    /// The largest IP packet between nodes, in bytes: the least MTU of all uplinks and routes.
    /// `None` without any.
    pub mtu: Option<u32>,
}

impl Topology {
    /// Returns whether any device is an uplink.
    #[must_use]
    pub fn has_uplink(&self) -> bool {
        !self.uplinks.is_empty() || self.devices.values().any(AttachTarget::is_of_network)
    }
}

/// The devices that decapsulate where IPVS serves, by family of the outer header.
///
/// Their packets came in over an uplink before. Their addresses are not the node's.
pub const TUNNELS: [&str; 2] = ["millrace-tun4", "millrace-tun6"];

/// A device and the hooks for its programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachTarget {
    /// The name, for messages.
    pub name: String,
    /// The hooks, sorted.
    pub hooks: BTreeSet<Hook>,
    /// The MAC address of its frames. A port of a bridge or bond has none: it takes frames for the device above it.
    pub mac: Option<[u8; 6]>,
    /// The source of translated IPv4 packets that leave here, where the kernel can't say which
    /// source its routes prefer: the device's own address, else this node's.
    pub source_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub source_v6: Option<Ipv6Addr>,
}

/// A hook for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// `xdp_ingress`, in the mode of `--xdp`.
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
    /// `tc_egress_l3`: `tc_egress` for a device without Ethernet frames.
    TcEgressL3,
}

impl Hook {
    /// The hooks for incoming packets.
    pub const INGRESS: [Self; 3] = [Self::Xdp, Self::TcIngress, Self::TcIngressL3];
}

impl AttachTarget {
    /// Returns whether incoming packets are served, by XDP or by TC alone.
    #[must_use]
    pub fn is_uplink(&self) -> bool {
        [Hook::TcIngress, Hook::TcIngressL3].iter().any(|hook| self.hooks.contains(hook))
    }

    /// Returns whether it is an uplink toward the network, and not a tunnel above one to pods of another node.
    #[must_use]
    pub fn is_of_network(&self) -> bool {
        self.is_uplink() && !is_pod_tunnel(&self.name)
    }
}

/// The route to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The preferred source address.
    pub source: IpAddr,
    /// The index of the device.
    pub device: u32,
    /// The largest IP packet on this route, in bytes, outer header included.
    pub mtu: u16,
    /// The MAC addresses of device and next hop, once the neighbour is resolved.
    pub link: Option<Link>,
}

/// The link-layer addresses of a resolved route; zeros if the device has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// MAC address of the device.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop.
    pub destination_mac: [u8; 6],
}

/// The user's settings about the node's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// Devices toward the network. Empty = devices with a default route or a node address, and
    /// overlay devices.
    pub uplinks: BTreeSet<String>,
    /// Devices that lead to this node's pods.
    pub pod_interfaces: Vec<DevicePattern>,
    /// Whether the pod firewall judges packets on the devices of pods. Bridges then have no programs: on the way to a pod,
    /// the firewall comes before addresses are restored.
    pub is_guarded: bool,
    /// The uplinks that get XDP.
    pub xdp: XdpUse,
    /// Ports that no socket may be given, if any.
    pub snat_ports: Option<RangeInclusive<u16>>,
    /// The device that carries service addresses for Millrace, if any.
    pub own_device: Option<String>,
    /// A directory of the BPF file system for the records of changed host settings.
    pub notes: Option<PathBuf>,
}

/// The uplinks that get XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpUse {
    /// None.
    Never,
    /// Devices with frames from a wire.
    ///
    /// A veth pair hands over frames of its other end's stack, without computed checksums and often
    /// as trains of segments. TC can translate those, XDP can't.
    #[default]
    OffTheWire,
    /// Veth devices too, by the user's choice.
    Everywhere,
}

impl XdpUse {
    const fn includes(self, kind: DeviceKind) -> bool {
        // On bridges, VLANs and overlays, XDP sees the outer frames on the device below.
        match (self, kind) {
            (Self::OffTheWire | Self::Everywhere, DeviceKind::Other)
            | (Self::Everywhere, DeviceKind::Veth) => true,
            (Self::Never | Self::OffTheWire | Self::Everywhere, _) => false,
        }
    }
}

/// Returns devices, hooks and routes.
///
/// `targets` are the addresses of the cluster's nodes. This node's own mark an uplink, and need no
/// route.
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
            let mac = device.mac.filter(|_| !device.is_port);
            (*index, AttachTarget { name: device.name.clone(), hooks, mac, source_v4, source_v6 })
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

/// Returns a source address of a device for each family: the device's address in the Node object,
/// or else its first, or else the node's on another device. Addresses that move with a virtual
/// router do not count.
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

/// Returns whether a device of kube-proxy (IPVS) or kube-router carries the addresses of all
/// Services.
///
/// None of them is this node's own, and there may be thousands.
#[must_use]
pub fn is_service_device(device: &Device) -> bool {
    matches!(device.name.as_str(), "kube-ipvs0" | "kube-dummy-if")
}

fn is_own_tunnel(device: &Device) -> bool {
    TUNNELS.contains(&device.name.as_str())
}

/// Returns the uplinks, sorted by index.
#[must_use]
pub fn uplinks<'a>(
    state: &'a NodeState,
    settings: &NodeSettings,
    targets: &BTreeSet<IpAddr>,
) -> Vec<&'a Device> {
    let is_uplink = |(index, device): &(&u32, &Device)| {
        is_uplink(state, settings, targets, **index, device) && !is_pod_tunnel(&device.name)
    };
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
    // Nobody can name these in `--uplinks`: their names are hashes.
    let is_pod_tunnel = device.kind == DeviceKind::Overlay && is_pod_tunnel(&device.name);
    if is_pod_tunnel || !settings.uplinks.is_empty() {
        return is_pod_tunnel && device.up || settings.uplinks.contains(&device.name);
    }
    let has_node_address =
        || state.addresses.iter().any(|(device, address)| *device == index && targets.contains(address));
    // tunl0, gre0 and their like come with the kernel module, and stay down until they are used.
    device.kind == DeviceKind::Overlay && device.up
        || state.default_routes.iter().any(|route| route.device == index)
        || has_node_address()
}

/// Returns the hooks of a device.
///
/// Incoming packets are served on uplinks and, by other rules, on devices toward pods. Outgoing
/// packets are translated back where a reply can leave, and where it can reach a pod.
///
/// A device without MAC addresses (WireGuard, IPIP, a plain tunnel) has no Ethernet frames, and no
/// XDP that could send one on.
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
    // Frames between the ports of a bridge do not pass the bridge itself.
    if settings.pod_interfaces.iter().any(|pattern| pattern.matches(&device.name)) {
        if settings.is_guarded && device.kind == DeviceKind::Bridge {
            return BTreeSet::new();
        }
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
        // The device has no neighbours to resolve.
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
