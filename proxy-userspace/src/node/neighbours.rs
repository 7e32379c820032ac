//! Keeps next hops resolved: the kernel does not probe a neighbour again that only XDP uses.
//!
//! From 5.16 on the kernel does so for managed neighbours. Older kernels ignore that flag and probe
//! once for each request, so the agent repeats the request.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rtnetlink::Handle;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};

use super::NodeError;
use super::decode::OUR_PROTOCOL;
use super::query;
use super::state::{NodeState, Resolution};

/// A next hop: index of the device and address.
type NextHop = (u32, IpAddr);

/// The changes of this node's neighbour entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The next hops to keep resolved.
    pub manage: BTreeSet<NextHop>,
    /// Our entries that no route to a node uses any more.
    pub release: BTreeSet<NextHop>,
}

/// Compares the neighbours that the routes to `targets` need with the present ones.
#[must_use]
pub fn plan(state: &NodeState, targets: &BTreeSet<IpAddr>) -> Plan {
    let wanted: BTreeSet<NextHop> = targets
        .iter()
        .filter_map(|target| state.next_hop(*target))
        .filter(|(device, _)| {
            state.devices.get(device).is_some_and(|device| device.up && device.mac.is_some())
        })
        .collect();
    let needs_nothing = |next_hop: &&NextHop| {
        let neighbour = state.neighbours.get(next_hop);
        neighbour.is_some_and(|n| n.managed || matches!(n.resolution, Resolution::Fixed(_)))
    };
    let ours = state.neighbours.iter().filter(|(_, neighbour)| neighbour.ours).map(|(next_hop, _)| *next_hop);
    Plan {
        release: ours.filter(|next_hop| !wanted.contains(next_hop)).collect(),
        manage: wanted.iter().filter(|next_hop| !needs_nothing(next_hop)).copied().collect(),
    }
}

/// Asks the kernel to resolve a next hop and to keep it resolved.
pub async fn manage(handle: &Handle, (device, address): NextHop) -> Result<(), NodeError> {
    let mut request = handle
        .neighbours()
        .add(device, address)
        .state(NeighbourState::None)
        .flags(NeighbourFlags::Use)
        .replace();
    request.message_mut().attributes.extend([
        NeighbourAttribute::Protocol(OUR_PROTOCOL),
        NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed),
    ]);
    Ok(request.execute().await?)
}

/// Removes one of our neighbour entries. The kernel makes it again when it needs it.
pub async fn release(handle: &Handle, (device, address): NextHop) -> Result<(), NodeError> {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = device;
    message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.attributes.push(NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    }));
    Ok(handle.neighbours().del(message).execute().await?)
}

/// Removes our neighbour entries on the routes to `targets`, and returns their number. Another
/// agent may need the others.
pub async fn release_for(targets: &BTreeSet<IpAddr>) -> Result<usize, NodeError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NodeError::Open)?;
    let connection = tokio::spawn(connection);
    let mut state = query::dump(&handle).await?;
    state.routes = query::routes(&handle, targets.iter().copied()).await?;
    let next_hops: BTreeSet<NextHop> = targets.iter().filter_map(|target| state.next_hop(*target)).collect();
    let is_ours = |next_hop: &&NextHop| state.neighbours.get(next_hop).is_some_and(|known| known.ours);
    let ours: Vec<NextHop> = next_hops.iter().filter(is_ours).copied().collect();
    for next_hop in &ours {
        release(&handle, *next_hop).await?;
    }
    connection.abort();
    Ok(ours.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::state::{Device, DeviceKind, Neighbour, Route};

    const TARGET: &str = "198.51.100.7";
    const GATEWAY: &str = "192.0.2.254";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn state_with(neighbours: &[(&str, Neighbour)]) -> NodeState {
        let mut state = NodeState::default();
        let device = Device {
            name: "eth0".to_owned(),
            kind: DeviceKind::Other,
            up: true,
            mtu: 1500,
            mac: Some([2; 6]),
            is_port: false,
        };
        state.devices.insert(2, device);
        let route = Route { device: 2, gateway: Some(ip(GATEWAY)), source: None, mtu: None };
        state.routes.insert(ip(TARGET), route);
        state.neighbours.extend(neighbours.iter().map(|(address, n)| ((2, ip(address)), *n)));
        state
    }

    const LEARNED: Neighbour =
        Neighbour { resolution: Resolution::Learned([4; 6]), managed: false, ours: false };

    #[test]
    fn the_gateway_is_managed_until_the_kernel_says_that_it_is() {
        let targets = BTreeSet::from([ip(TARGET)]);
        let manage = Plan { manage: BTreeSet::from([(2, ip(GATEWAY))]), ..Plan::default() };
        assert_eq!(plan(&state_with(&[]), &targets), manage);
        assert_eq!(plan(&state_with(&[(GATEWAY, LEARNED)]), &targets), manage);
        let managed = Neighbour { managed: true, ours: true, ..LEARNED };
        assert_eq!(plan(&state_with(&[(GATEWAY, managed)]), &targets), Plan::default());
    }

    #[test]
    fn a_fixed_neighbour_is_left_alone() {
        let fixed = Neighbour { resolution: Resolution::Fixed([4; 6]), ..LEARNED };
        assert_eq!(plan(&state_with(&[(GATEWAY, fixed)]), &BTreeSet::from([ip(TARGET)])), Plan::default());
    }

    #[test]
    fn only_our_own_neighbours_are_released() {
        let ours = Neighbour { ours: true, managed: true, ..LEARNED };
        let foreign = Neighbour { managed: true, ..LEARNED };
        let state = state_with(&[("192.0.2.9", ours), ("192.0.2.10", foreign)]);
        let release = BTreeSet::from([(2, ip("192.0.2.9"))]);
        assert_eq!(plan(&state, &BTreeSet::new()), Plan { release, ..Plan::default() });
    }

    #[test]
    fn a_device_without_mac_addresses_has_no_neighbours_to_manage() {
        let mut state = state_with(&[]);
        state.devices.get_mut(&2).unwrap().mac = None;
        assert_eq!(plan(&state, &BTreeSet::from([ip(TARGET)])), Plan::default());
    }
}
