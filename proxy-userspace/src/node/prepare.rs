//! Sets the node's sysctls once, without following its network.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::host::Host;
use super::topology::{NodeSettings, uplinks};
use super::{Device, DeviceKind, NodeError, NodeState, look};

/// Sets the sysctls that [`follow`](super::follow) would set. `own` are the addresses of this node's Node.
///
/// Routes to other nodes are unknown here. So an overlay counts only if it has one of these addresses.
pub async fn prepare(settings: &NodeSettings, own: &BTreeSet<IpAddr>) -> Result<(), NodeError> {
    let state = look(&BTreeSet::new()).await?.state;
    let host = Host::new(settings.notes.as_deref());
    if let Some(ports) = &settings.snat_ports {
        host.reserve_ports(ports);
    }
    host.prepare(&toward_nodes(&state, settings, own));
    Ok(())
}

/// Returns the names of the uplinks that lead to other nodes, as far as `own` tells.
fn toward_nodes<'a>(state: &'a NodeState, settings: &NodeSettings, own: &BTreeSet<IpAddr>) -> Vec<&'a str> {
    let has_node_address = |device: &Device| {
        let mut devices = state.addresses.iter().filter(|(_, address)| own.contains(address));
        devices.any(|(index, _)| state.devices.get(index).is_some_and(|found| found.name == device.name))
    };
    let found = uplinks(state, settings, own).into_iter();
    let leading = found.filter(|device| device.kind != DeviceKind::Overlay || has_node_address(device));
    leading.map(|device| device.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Family;
    use crate::node::DefaultRoute;

    fn node(devices: &[(&str, DeviceKind, IpAddr)]) -> NodeState {
        let mut state = NodeState::default();
        for (index, (name, kind, address)) in (1_u32..).zip(devices) {
            let name = (*name).to_owned();
            let device = Device { name, kind: *kind, up: true, mtu: 1500, mac: None, is_port: false };
            state.devices.insert(index, device);
            state.addresses.insert((index, *address));
        }
        state
    }

    #[test]
    fn a_second_uplink_is_known_by_the_nodes_addresses_and_an_overlay_only_by_them() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let mut state = node(&[
            ("eth0", DeviceKind::Other, address(1)),
            ("eth1", DeviceKind::Other, address(2)),
            ("vxlan0", DeviceKind::Overlay, address(3)),
            ("wg0", DeviceKind::Overlay, address(4)),
            ("storage0", DeviceKind::Other, address(5)),
        ]);
        let route = DefaultRoute { device: 1, family: Family::V4, table: 254, metric: 0 };
        state.default_routes.insert(route);
        let settings = NodeSettings::default();
        assert_eq!(toward_nodes(&state, &settings, &BTreeSet::new()), ["eth0"]);
        let own = BTreeSet::from([address(2), address(4)]);
        assert_eq!(toward_nodes(&state, &settings, &own), ["eth0", "eth1", "wg0"]);
        let named = NodeSettings { uplinks: BTreeSet::from(["storage0".to_owned()]), ..settings };
        assert_eq!(toward_nodes(&state, &named, &own), ["storage0"]);
    }
}
