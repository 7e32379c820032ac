use super::*;
use crate::model::Family;
use crate::node::state::{DefaultRoute, Neighbour, Route};

const ETH0: u32 = 2;
const ETH0_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn device(name: &str, kind: DeviceKind) -> Device {
    Device { name: name.to_owned(), kind, up: true, mtu: 1500, mac: Some(ETH0_MAC), is_port: false }
}

fn neighbour(resolution: Resolution) -> Neighbour {
    Neighbour { resolution, managed: false, ours: false }
}

/// eth0 has the node's address and another node on its link. A pod's veth, a bridge and loopback
/// are beside it.
fn node() -> (NodeState, BTreeSet<IpAddr>) {
    let mut state = NodeState::default();
    state.devices.insert(1, Device { mac: None, mtu: 65536, ..device("lo", DeviceKind::Loopback) });
    state.devices.insert(ETH0, device("eth0", DeviceKind::Other));
    state.devices.insert(3, device("veth12", DeviceKind::Other));
    state.devices.insert(4, device("docker0", DeviceKind::Bridge));
    state.addresses.insert((ETH0, ip("192.0.2.1")));
    let on_link = Route { device: ETH0, gateway: None, source: Some(ip("192.0.2.1")), mtu: None };
    state.routes.insert(ip("192.0.2.2"), on_link);
    state.neighbours.insert((ETH0, ip("192.0.2.2")), neighbour(Resolution::Learned(PEER_MAC)));
    (state, BTreeSet::from([ip("192.0.2.1"), ip("192.0.2.2")]))
}

fn settings() -> NodeSettings {
    NodeSettings {
        pod_interfaces: vec![DevicePattern::new("veth*").unwrap()],
        xdp: XdpUse::OffTheWire,
        ..NodeSettings::default()
    }
}

fn hooks_of(topology: &Topology, index: u32) -> Vec<Hook> {
    topology.devices.get(&index).map(|target| target.hooks.iter().copied().collect()).unwrap_or_default()
}

const ALL: [Hook; 3] = [Hook::Xdp, Hook::TcIngress, Hook::TcEgress];
const TC: [Hook; 2] = [Hook::TcIngress, Hook::TcEgress];
const POD: [Hook; 2] = [Hook::TcPodIn, Hook::TcPodOut];

#[test]
fn the_device_with_the_node_address_is_the_uplink_and_other_exits_restore_replies() {
    let (state, targets) = node();
    let topology = topology(&state, &settings(), &targets);
    assert_eq!(hooks_of(&topology, ETH0), ALL);
    assert_eq!(hooks_of(&topology, 4), [Hook::TcEgress], "a reply to a container's client leaves here");
    assert_eq!(hooks_of(&topology, 1), [], "loopback");
    assert_eq!(hooks_of(&topology, 3), POD);
    assert_eq!(topology.addresses, BTreeSet::from([ip("192.0.2.1")]));
    assert_eq!(topology.devices[&ETH0].mac, Some(ETH0_MAC));
}

#[test]
fn service_addresses_on_the_device_of_another_proxy_are_not_this_nodes_own() {
    let (mut state, mut targets) = node();
    for (index, name, address) in [(7, "kube-ipvs0", "203.0.113.1"), (8, "kube-dummy-if", "203.0.113.2")] {
        state.devices.insert(index, device(name, DeviceKind::Other));
        state.addresses.insert((index, ip(address)));
        targets.insert(ip(address));
        state
            .routes
            .insert(ip(address), Route { device: 1, gateway: None, source: Some(ip(address)), mtu: None });
    }
    let topology = topology(&state, &settings(), &targets);
    assert_eq!(topology.addresses, BTreeSet::from([ip("192.0.2.1")]));
    assert_eq!(topology.ways.keys().collect::<Vec<_>>(), [&ip("192.0.2.2")], "they are local all the same");
}

#[test]
fn a_default_route_makes_an_uplink_without_any_node_address() {
    let (mut state, _) = node();
    state.default_routes.insert(DefaultRoute { device: 3, family: Family::V6, table: 254, metric: 1024 });
    let topology = topology(&state, &settings(), &BTreeSet::new());
    assert_eq!(hooks_of(&topology, 3), ALL, "an uplink though its name is a pod device's");
    assert_eq!(hooks_of(&topology, ETH0), [Hook::TcEgress]);
}

#[test]
fn an_overlay_device_is_an_uplink_without_xdp_once_it_is_up() {
    let (mut state, targets) = node();
    state.devices.insert(5, device("flannel.1", DeviceKind::Overlay));
    state.devices.insert(6, Device { up: false, ..device("tunl0", DeviceKind::Overlay) });
    let topology = topology(&state, &settings(), &targets);
    assert_eq!(hooks_of(&topology, 5), TC);
    assert_eq!(hooks_of(&topology, 6), []);
}

#[test]
fn a_device_of_ours_that_takes_outer_headers_off_is_no_uplink_and_its_address_is_nobodys() {
    let (mut state, targets) = node();
    for (index, name) in [(5, "millrace-tun4"), (6, "millrace-tun6")] {
        state.devices.insert(index, Device { mac: None, mtu: 1280, ..device(name, DeviceKind::Overlay) });
    }
    state.addresses.extend([(5, ip("192.0.0.8")), (6, ip("100::78"))]);
    let topology = topology(&state, &settings(), &targets);
    assert_eq!(topology.uplinks, BTreeSet::from(["eth0".to_owned()]));
    assert_eq!(topology.addresses, BTreeSet::from([ip("192.0.2.1")]));
    assert_eq!(topology.mtu, Some(1500));
}

#[test]
fn packets_between_nodes_fit_the_narrowest_uplink_and_the_narrowest_way() {
    let (mut state, targets) = node();
    let mtu = |state: &NodeState| topology(state, &settings(), &targets).mtu;
    assert_eq!(mtu(&state), Some(1500));
    state.devices.insert(5, Device { mtu: 1450, ..device("flannel.1", DeviceKind::Overlay) });
    assert_eq!(mtu(&state), Some(1450));
    state.routes.get_mut(&ip("192.0.2.2")).unwrap().mtu = Some(1400);
    assert_eq!(mtu(&state), Some(1400));
    assert_eq!(topology(&NodeState::default(), &settings(), &targets).mtu, None);
}

#[test]
fn a_vlan_device_is_an_uplink_without_xdp() {
    let (mut state, targets) = node();
    state.devices.insert(5, device("eth0.100", DeviceKind::Vlan));
    state.default_routes.insert(DefaultRoute { device: 5, family: Family::V4, table: 254, metric: 0 });
    assert_eq!(hooks_of(&topology(&state, &settings(), &targets), 5), TC);
}

#[test]
fn named_uplinks_replace_the_default_choice() {
    let (state, targets) = node();
    let named = NodeSettings { uplinks: BTreeSet::from(["docker0".to_owned()]), ..settings() };
    let topology = topology(&state, &named, &targets);
    assert_eq!(hooks_of(&topology, ETH0), [Hook::TcEgress]);
    assert_eq!(hooks_of(&topology, 4), TC, "a bridge has no XDP of its own");
}

#[test]
fn xdp_is_left_out_where_it_is_off() {
    let (state, targets) = node();
    let topology = topology(&state, &NodeSettings { xdp: XdpUse::Never, ..settings() }, &targets);
    assert_eq!(hooks_of(&topology, ETH0), TC);
}

#[test]
fn a_veth_uplink_has_xdp_only_where_the_user_says_so() {
    let (mut state, targets) = node();
    state.devices.insert(ETH0, device("eth0", DeviceKind::Veth));
    assert_eq!(hooks_of(&topology(&state, &settings(), &targets), ETH0), TC);
    let everywhere = NodeSettings { xdp: XdpUse::Everywhere, ..settings() };
    assert!(hooks_of(&topology(&state, &everywhere, &targets), ETH0).contains(&Hook::Xdp));
}

#[test]
fn pods_are_served_on_every_kind_of_device_that_a_pattern_names_once_it_is_up() {
    let (mut state, targets) = node();
    state.devices.insert(5, Device { is_port: true, ..device("veth-1a", DeviceKind::Veth) });
    state.devices.insert(6, device("cni0", DeviceKind::Bridge));
    state.devices.insert(7, device("tap0", DeviceKind::Other));
    state.devices.insert(8, Device { up: false, ..device("veth-1b", DeviceKind::Veth) });
    state.devices.insert(9, Device { mac: None, ..device("veth-1c", DeviceKind::Other) });
    let pod_interfaces = ["veth*", "cni0", "tap*"].map(|text| DevicePattern::new(text).unwrap()).to_vec();
    let topology = topology(&state, &NodeSettings { pod_interfaces, ..settings() }, &targets);
    for index in [5, 6, 7] {
        assert_eq!(hooks_of(&topology, index), POD, "{index}");
    }
    assert_eq!(hooks_of(&topology, 8), [], "not up");
    assert_eq!(hooks_of(&topology, 9), [], "no Ethernet frames");
}

#[test]
fn a_port_of_a_bond_or_bridge_has_no_hooks() {
    let (mut state, targets) = node();
    state.devices.insert(7, Device { is_port: true, ..device("eth1", DeviceKind::Other) });
    assert_eq!(hooks_of(&topology(&state, &settings(), &targets), 7), []);
}

#[test]
fn a_named_port_takes_frames_for_the_mac_address_of_the_device_above_it() {
    let (mut state, targets) = node();
    state.devices.insert(7, Device { is_port: true, ..device("eth1", DeviceKind::Other) });
    let settings = NodeSettings { uplinks: BTreeSet::from(["eth1".to_owned()]), ..settings() };
    let topology = topology(&state, &settings, &targets);
    assert_eq!((hooks_of(&topology, 7).is_empty(), topology.devices[&7].mac), (false, None));
}

#[test]
fn a_node_on_the_link_is_reached_through_its_own_neighbour_entry() {
    let (state, targets) = node();
    let ways = topology(&state, &settings(), &targets).ways;
    let link = Some(Link { source_mac: ETH0_MAC, destination_mac: PEER_MAC });
    let way = Way { source: ip("192.0.2.1"), device: ETH0, mtu: 1500, link };
    assert_eq!(ways, BTreeMap::from([(ip("192.0.2.2"), way)]), "and this node itself has no way");
}

#[test]
fn a_node_behind_a_router_is_reached_through_the_routers_neighbour_entry() {
    let (mut state, _) = node();
    let target = ip("198.51.100.7");
    let gateway = Some(ip("fe80::1"));
    let route = Route { device: ETH0, gateway, source: Some(ip("192.0.2.1")), mtu: Some(1400) };
    state.routes.insert(target, route);
    let targets = BTreeSet::from([target]);
    let unresolved = topology(&state, &settings(), &targets).ways[&target].clone();
    assert_eq!((unresolved.mtu, unresolved.link), (1400, None));

    state.neighbours.insert((ETH0, ip("fe80::1")), neighbour(Resolution::Fixed(PEER_MAC)));
    let resolved = topology(&state, &settings(), &targets).ways[&target].clone();
    assert_eq!(resolved.link, Some(Link { source_mac: ETH0_MAC, destination_mac: PEER_MAC }));
}

#[test]
fn a_neighbour_that_does_not_answer_leaves_the_way_unresolved() {
    let (mut state, targets) = node();
    state.neighbours.insert((ETH0, ip("192.0.2.2")), neighbour(Resolution::Unresolved));
    assert_eq!(topology(&state, &settings(), &targets).ways[&ip("192.0.2.2")].link, None);
}

#[test]
fn a_device_without_mac_addresses_is_served_by_tc_alone_and_its_ways_need_no_neighbour() {
    let (mut state, targets) = node();
    state.devices.insert(ETH0, Device { mac: None, ..device("wg0", DeviceKind::Other) });
    state.neighbours.clear();
    let topology = topology(&state, &settings(), &targets);
    assert_eq!(topology.ways[&ip("192.0.2.2")].link, Some(Link::default()));
    assert_eq!(topology.devices[&ETH0].hooks, BTreeSet::from([Hook::TcIngressL3, Hook::TcEgressL3]));
    assert!(topology.devices[&ETH0].is_uplink());
}

#[test]
fn a_target_without_a_route_has_no_way() {
    let (mut state, targets) = node();
    state.routes.clear();
    assert_eq!(topology(&state, &settings(), &targets).ways, BTreeMap::new());
}

#[test]
fn what_leaves_translated_has_the_nodes_own_address() {
    let (mut state, targets) = node();
    let source = |state: &NodeState, device| {
        topology(state, &settings(), &targets).devices.get(&device).and_then(|target| target.source_v4)
    };
    let own = Some("192.0.2.1".parse().unwrap());
    assert_eq!(source(&state, ETH0), own);
    state.addresses.insert((ETH0, ip("10.0.0.1")));
    assert_eq!(source(&state, ETH0), own, "another address of the device is lower");
    assert_eq!(source(&state, 4), own, "a device without an address of its own");
    state.addresses.insert((4, ip("172.17.0.1")));
    assert_eq!(source(&state, 4), Some("172.17.0.1".parse().unwrap()));
}

#[test]
fn a_tunnel_to_pods_of_another_node_is_an_uplink_whatever_the_user_names() {
    let (mut state, targets) = node();
    let tunnel = Device { mac: None, ..device("mr-0123456789ab", DeviceKind::Overlay) };
    state.devices.insert(7, tunnel.clone());
    state.devices.insert(8, Device { name: "wg0".to_owned(), ..tunnel.clone() });
    state.devices.insert(9, Device { name: "mr-999999999999".to_owned(), up: false, ..tunnel });
    let named = NodeSettings { uplinks: ["eth0".to_owned()].into(), ..settings() };
    for (settings, uplinks) in [(named, [true, false, false]), (settings(), [true, true, false])] {
        let topology = topology(&state, &settings, &targets);
        let found = [7, 8, 9].map(|index| topology.devices.get(&index).is_some_and(AttachTarget::is_uplink));
        assert_eq!(found, uplinks);
        assert!(topology.uplinks.contains("eth0") && !topology.uplinks.contains("mr-0123456789ab"));
    }
    // It is none toward the network.
    state.devices.remove(&ETH0);
    let named = NodeSettings { uplinks: ["eth0".to_owned()].into(), ..settings() };
    assert!(!topology(&state, &named, &targets).has_uplink());
}
