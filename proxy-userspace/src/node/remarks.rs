//! Devices whose choice as uplinks, or not, may surprise a person.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::state::{Device, DeviceKind, NodeState};
use super::topology::{NodeSettings, TUNNELS, XdpUse, is_service_device, uplinks};

/// Returns devices with an address of a network that are no uplinks, such as a second one without
/// default route.
///
/// With `--uplinks` there are none. Bridges do not count either, since most lead to pods.
#[must_use]
pub fn overlooked(
    state: &NodeState,
    settings: &NodeSettings,
    targets: &BTreeSet<IpAddr>,
) -> BTreeSet<String> {
    if !settings.uplinks.is_empty() {
        return BTreeSet::new();
    }
    let chosen: BTreeSet<&str> =
        uplinks(state, settings, targets).iter().map(|device| device.name.as_str()).collect();
    let leads_to_pods = |device: &Device| settings.pod_interfaces.iter().any(|p| p.matches(&device.name));
    let is_candidate = |device: &Device| {
        matches!(device.kind, DeviceKind::Other | DeviceKind::Vlan | DeviceKind::Veth)
            && device.up
            && !device.is_port
            && !chosen.contains(device.name.as_str())
            && !is_service_device(device)
            && !TUNNELS.contains(&device.name.as_str())
            && !leads_to_pods(device)
    };
    let with_address = state.addresses.iter().filter(|(_, address)| !is_link_local(*address));
    let devices = with_address.filter_map(|(index, _)| state.devices.get(index));
    devices.filter(|device| is_candidate(device)).map(|device| device.name.clone()).collect()
}

/// Returns uplinks that are a veth's end and have XDP. It sees frames without the checksums that
/// the sender left to the device.
#[must_use]
pub fn veths_with_xdp(
    state: &NodeState,
    settings: &NodeSettings,
    targets: &BTreeSet<IpAddr>,
) -> BTreeSet<String> {
    let uplinks = uplinks(state, settings, targets).into_iter();
    let veths = uplinks.filter(|device| device.kind == DeviceKind::Veth && device.mac.is_some());
    let has_xdp = settings.xdp == XdpUse::Everywhere;
    veths.filter(|_| has_xdp).map(|device| device.name.clone()).collect()
}

/// Returns whether the address is link-local. Programs on the node use those among themselves, such
/// as DNS caches.
const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Family;
    use crate::node::DefaultRoute;
    use crate::node::DevicePattern;

    fn device(name: &str, kind: DeviceKind) -> Device {
        Device { name: name.to_owned(), kind, up: true, mtu: 1500, mac: Some([2; 6]), is_port: false }
    }

    /// Returns a device of each kind with an address, and a default route by the first.
    fn node() -> NodeState {
        let mut state = NodeState::default();
        let devices = [
            device("eth0", DeviceKind::Other),
            device("eth1", DeviceKind::Other),
            device("eth0.7", DeviceKind::Vlan),
            device("cni0", DeviceKind::Bridge),
            device("veth12", DeviceKind::Veth),
            device("kube-ipvs0", DeviceKind::Other),
            Device { is_port: true, ..device("eth2", DeviceKind::Other) },
            Device { up: false, ..device("eth3", DeviceKind::Other) },
            Device { mac: None, ..device("lo", DeviceKind::Loopback) },
        ];
        for (index, device) in (1_u32..).zip(devices) {
            state.addresses.insert((index, IpAddr::from([192, 0, 2, u8::try_from(index).unwrap()])));
            state.devices.insert(index, device);
        }
        state.devices.insert(20, device("nodelocaldns", DeviceKind::Other));
        state.addresses.insert((20, IpAddr::from([169, 254, 20, 10])));
        state.devices.insert(21, device("eth4", DeviceKind::Other));
        let route = DefaultRoute { device: 1, family: Family::V4, table: 254, metric: 0 };
        state.default_routes.insert(route);
        state
    }

    fn settings(xdp: XdpUse) -> NodeSettings {
        let pod_interfaces = vec![DevicePattern::new("veth*").unwrap()];
        NodeSettings { pod_interfaces, xdp, ..NodeSettings::default() }
    }

    #[test]
    fn a_device_with_an_address_that_was_not_chosen_is_named() {
        let (state, settings) = (node(), settings(XdpUse::OffTheWire));
        let found = overlooked(&state, &settings, &BTreeSet::new());
        assert_eq!(found, BTreeSet::from(["eth0.7".to_owned(), "eth1".to_owned()]));
        let node_address = BTreeSet::from([IpAddr::from([192, 0, 2, 2])]);
        assert_eq!(overlooked(&state, &settings, &node_address), BTreeSet::from(["eth0.7".to_owned()]));
        let named = NodeSettings { uplinks: BTreeSet::from(["eth0".to_owned()]), ..settings };
        assert_eq!(overlooked(&state, &named, &BTreeSet::new()), BTreeSet::new());
    }

    #[test]
    fn an_uplink_that_is_a_veth_is_named_only_where_xdp_is_asked_for_there() {
        let mut state = node();
        state.devices.insert(1, device("eth0", DeviceKind::Veth));
        let names = |xdp| veths_with_xdp(&state, &settings(xdp), &BTreeSet::new());
        assert_eq!(names(XdpUse::Everywhere), BTreeSet::from(["eth0".to_owned()]));
        assert_eq!(names(XdpUse::OffTheWire), BTreeSet::new());
        assert_eq!(names(XdpUse::Never), BTreeSet::new());
        state.devices.insert(1, device("eth0", DeviceKind::Other));
        let none = veths_with_xdp(&state, &settings(XdpUse::Everywhere), &BTreeSet::new());
        assert_eq!(none, BTreeSet::new());
    }
}
