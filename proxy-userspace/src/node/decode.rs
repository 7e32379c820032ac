//! Turns rtnetlink messages into [`Update`]s.

use std::net::IpAddr;

use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{
    InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteType, RouteVia,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::state::{DefaultRoute, Device, DeviceKind, Neighbour, Resolution, Route, Update};
use crate::model::Family;

/// NDA_PROTOCOL of the neighbours that Millrace makes, so that a later process recognises them.
/// Values from 4 on are for user space, and no routing daemon uses this one.
pub const OUR_PROTOCOL: RouteProtocol = RouteProtocol::Other(109);

/// Returns the changes in a notification or an entry of a dump. It is empty for messages that do
/// not matter.
#[must_use]
pub fn updates(message: &RouteNetlinkMessage) -> Vec<Update> {
    match message {
        RouteNetlinkMessage::NewLink(link) => device(link).into_iter().collect(),
        // A bridge sends this too when a port leaves it. That device still exists.
        RouteNetlinkMessage::DelLink(link) if link.header.interface_family == AddressFamily::Unspec => {
            vec![Update::DeviceGone(link.header.index)]
        }
        RouteNetlinkMessage::NewAddress(message) => address(message)
            .map(|address| Update::Address(message.header.index, address))
            .into_iter()
            .collect(),
        RouteNetlinkMessage::DelAddress(message) => address(message)
            .map(|address| Update::AddressGone(message.header.index, address))
            .into_iter()
            .collect(),
        RouteNetlinkMessage::NewRoute(message) => routing(message, Update::DefaultRoute),
        RouteNetlinkMessage::DelRoute(message) => routing(message, Update::DefaultRouteGone),
        RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => vec![Update::Routing],
        RouteNetlinkMessage::NewNeighbour(message) => neighbour_key(message)
            .map(|(device, address)| Update::Neighbour(device, address, neighbour(message)))
            .into_iter()
            .collect(),
        RouteNetlinkMessage::DelNeighbour(message) => neighbour_key(message)
            .map(|(device, address)| Update::NeighbourGone(device, address))
            .into_iter()
            .collect(),
        _ => Vec::new(),
    }
}

/// Returns the answer to a route look-up; `None` if no packet can be sent along it (blackhole, our
/// own address).
#[must_use]
pub fn route(message: &RouteMessage) -> Option<Route> {
    if message.header.kind != RouteType::Unicast {
        return None;
    }
    let mut device = None;
    let mut route = Route { device: 0, gateway: None, source: None, mtu: None };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::Gateway(address) => route.gateway = ip(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => route.gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => route.gateway = Some((*address).into()),
            RouteAttribute::PrefSource(address) => route.source = ip(address),
            RouteAttribute::Metrics(metrics) => route.mtu = mtu(metrics),
            _ => {}
        }
    }
    device.map(|device| Route { device, ..route })
}

/// Returns a device with its interface index; `None` for a message about a port of a bridge.
pub fn device(link: &LinkMessage) -> Option<Update> {
    if link.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let flags = link.header.flags;
    let is_ethernet = link.header.link_layer_type == LinkLayerType::Ether;
    let mut device = Device {
        name: String::new(),
        kind: DeviceKind::Other,
        up: flags.contains(LinkFlags::Up),
        mtu: 0,
        mac: None,
        is_port: false,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => device.mtu = *mtu,
            LinkAttribute::Address(bytes) if is_ethernet => device.mac = bytes.as_slice().try_into().ok(),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => device.kind = device_kind(kind),
                        LinkInfo::PortKind(kind) => device.is_port = *kind != InfoPortKind::Vrf,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if flags.contains(LinkFlags::Loopback) {
        device.kind = DeviceKind::Loopback;
    }
    Some(Update::Device(link.header.index, device))
}

fn device_kind(kind: &InfoKind) -> DeviceKind {
    match kind {
        InfoKind::Bridge => DeviceKind::Bridge,
        InfoKind::Vlan => DeviceKind::Vlan,
        InfoKind::Veth => DeviceKind::Veth,
        InfoKind::Vxlan
        | InfoKind::Wireguard
        | InfoKind::IpIp
        | InfoKind::Ip6Tnl
        | InfoKind::SitTun
        | InfoKind::GreTun
        | InfoKind::GreTap
        | InfoKind::GreTun6
        | InfoKind::GreTap6
        | InfoKind::Geneve
        | InfoKind::Xfrm => DeviceKind::Overlay,
        _ => DeviceKind::Other,
    }
}

/// Returns the device's own address: IFA_LOCAL on point-to-point links, where IFA_ADDRESS is the
/// peer's.
pub fn address(message: &AddressMessage) -> Option<IpAddr> {
    if !matches!(message.header.scope, AddressScope::Universe | AddressScope::Site) {
        return None;
    }
    let mut own = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => return Some(*address),
            AddressAttribute::Address(address) => own = Some(*address),
            _ => {}
        }
    }
    own
}

/// Returns the change of a route: one default route for each of its next hops, or another route.
fn routing(message: &RouteMessage, default: fn(DefaultRoute) -> Update) -> Vec<Update> {
    let routes = default_routes(message);
    if routes.is_empty() { vec![Update::Routing] } else { routes.into_iter().map(default).collect() }
}

fn default_routes(message: &RouteMessage) -> Vec<DefaultRoute> {
    let header = &message.header;
    let family = match header.address_family {
        AddressFamily::Inet => Family::V4,
        AddressFamily::Inet6 => Family::V6,
        _ => return Vec::new(),
    };
    if header.destination_prefix_length != 0 || header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let mut devices = Vec::new();
    let (mut table, mut metric) = (u32::from(header.table), 0);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => devices.push(*index),
            RouteAttribute::MultiPath(hops) => devices.extend(hops.iter().map(|hop| hop.interface_index)),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            _ => {}
        }
    }
    devices.into_iter().map(|device| DefaultRoute { device, family, table, metric }).collect()
}

/// Returns device and address. `None` for entries other than IP neighbours: forwarding tables of
/// bridges and VXLANs, proxies.
fn neighbour_key(message: &NeighbourMessage) -> Option<(u32, IpAddr)> {
    let is_ip = matches!(message.header.family, AddressFamily::Inet | AddressFamily::Inet6);
    if !is_ip || message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
            Some((message.header.ifindex, (*address).into()))
        }
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
            Some((message.header.ifindex, (*address).into()))
        }
        _ => None,
    })
}

fn neighbour(message: &NeighbourMessage) -> Neighbour {
    let mut mac = None;
    let mut managed = false;
    let mut ours = false;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            NeighbourAttribute::ExtFlags(flags) => managed = flags.contains(NeighbourExtFlags::Managed),
            NeighbourAttribute::Protocol(protocol) => ours = *protocol == OUR_PROTOCOL,
            _ => {}
        }
    }
    let resolution = match (message.header.state, mac) {
        (
            NeighbourState::Reachable | NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe,
            Some(mac),
        ) => Resolution::Learned(mac),
        (NeighbourState::Permanent | NeighbourState::Noarp, Some(mac)) => Resolution::Fixed(mac),
        _ => Resolution::Unresolved,
    };
    Neighbour { resolution, managed, ours }
}

pub const fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

fn mtu(metrics: &[RouteMetric]) -> Option<u32> {
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}
