use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::world::*;
use crate::dataplane::Encapsulation;
use crate::dataplane::ipvs::plan::{Op, Rules};
use crate::dataplane::ipvs::state::{Element, Set, Virtual};
use crate::model::{Dirty, Family, Protocol};
use crate::node::Topology;

const TRANSLATE: u32 = 0;
const TUNNEL: u32 = 2;

/// Returns the servers for clients outside with their forwarding methods.
fn methods(scene: &Scene, address: SocketAddr) -> BTreeMap<SocketAddr, u32> {
    let service = Virtual::Mark { family: Family::V4, mark: scene.mark(address).unwrap() };
    let all = scene.kernel.state.servers.iter().filter(|((of, _), _)| *of == service);
    all.map(|((_, address), server)| (*address, server.method)).collect()
}

fn encapsulated(n: u8) -> (Set, Element) {
    (Set::Encapsulated, Element::Address(endpoint(n).ip()))
}

/// Returns the number of a backend of this node.
fn number(scene: &Scene, n: u8) -> Option<u32> {
    scene.kernel.state.members.get(&encapsulated(n)).copied().flatten()
}

fn target(set: Set, number: u32, frontend: SocketAddr, n: u8) -> (Set, Element) {
    (set, Element::Target { number, protocol: Protocol::Tcp, frontend, backend: endpoint(n).ip() })
}

fn any(number: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], number))
}

#[test]
fn clients_outside_reach_remote_backends_by_a_tunnel_and_local_ones_by_translation() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[1, 11]))));
    for address in [load_balancer(1), node_port(1)] {
        assert_eq!(methods(&scene, address), [(endpoint(1), TRANSLATE), (endpoint(11), TUNNEL)].into());
    }
    let inside = scene.kernel.state.servers.iter();
    let inside = inside.filter(|((service, _), _)| matches!(service, Virtual::Address { .. }));
    assert!(inside.clone().count() == 6 && inside.clone().all(|(_, server)| server.method == TRANSLATE));
    assert_eq!(scene.mark(cluster_ip(1)), None, "a client of a ClusterIP may have no route for the reply");
}

#[test]
fn ports_with_a_mark_for_direct_server_return_only_are_in_the_set_direct() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[1, 11]))));
    scene.serve(2, Some(direct(local_policy(port(2, &[1, 11])))));
    scene.serve(3, Some(local_policy(port(3, &[1, 11]))));
    let is_direct = |address: SocketAddr| {
        scene.kernel.state.members.contains_key(&(Set::Direct, Element::Port(Protocol::Tcp, address)))
    };
    assert!(is_direct(load_balancer(1)) && is_direct(node_port(1)));
    for n in [2, 3] {
        assert!(
            scene.mark(load_balancer(n)).is_some()
                && !is_direct(load_balancer(n))
                && !is_direct(node_port(n))
        );
    }
}

#[test]
fn a_service_with_fou_is_served_without_direct_server_return() {
    let mut scene = Scene::new(Rules { encapsulation: Encapsulation::Fou, ..Rules::default() });
    scene.serve(1, Some(direct(port(1, &[1, 11]))));
    assert_eq!((scene.mark(load_balancer(1)), number(&scene, 1)), (None, None));
    assert!(scene.kernel.state.servers.values().all(|server| server.method == TRANSLATE));
}

#[test]
fn an_endpoint_without_a_node_is_reached_by_translation() {
    let mut scene = Scene::new(Rules::default());
    let mut port = direct(port(1, &[11, 12]));
    port.endpoints.get_mut(&endpoint(12)).unwrap().node = None;
    scene.serve(1, Some(port));
    let expected = [(endpoint(11), TUNNEL), (endpoint(12), TRANSLATE)];
    assert_eq!(methods(&scene, load_balancer(1)), expected.into());
}

#[test]
fn an_endpoint_at_a_nodes_own_address_is_reached_by_translation() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[1, 2, 11, 12]))));
    scene.desired.nodes =
        [(1, "here"), (11, "there")].map(|(n, name)| (name.to_owned(), [endpoint(n).ip()].into())).into();
    scene.sync_as(&Dirty { nodes: true, ..Dirty::default() });
    assert!(number(&scene, 1).is_none() && number(&scene, 2).is_some());
    let expected = [(1, TRANSLATE), (2, TRANSLATE), (11, TRANSLATE), (12, TUNNEL)];
    assert_eq!(methods(&scene, load_balancer(1)), expected.map(|(n, method)| (endpoint(n), method)).into());
}

#[test]
fn a_service_that_gets_or_loses_direct_server_return_changes_its_forwarding_methods() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(local_policy(port(1, &[1, 11]))));
    scene.serve(1, Some(direct(port(1, &[1, 11]))));
    assert_eq!(methods(&scene, load_balancer(1)), [(endpoint(1), TRANSLATE), (endpoint(11), TUNNEL)].into());
    scene.serve(1, Some(port(1, &[1, 11])));
    assert_eq!(scene.mark(load_balancer(1)), None);
    assert!(scene.kernel.state.tunnels.is_empty() && number(&scene, 1).is_none());
}

#[test]
fn encapsulated_packets_for_a_local_backend_reach_its_port_from_any_frontend() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[1, 2, 11]))));
    let (one, two) = (number(&scene, 1).unwrap(), number(&scene, 2).unwrap());
    assert_ne!(one, two);
    assert_eq!(number(&scene, 11), None, "it is a backend of another node");
    for (number, n) in [(one, 1), (two, 2)] {
        for member in [
            target(Set::Targets, number, load_balancer(1), n),
            target(Set::NodeTargets, number, any(node_port(1).port()), n),
        ] {
            assert_eq!(scene.kernel.state.members.get(&member), Some(&Some(8080)), "{member:?}");
        }
    }
    let of_vips = scene.kernel.state.members.keys().filter(|(set, _)| *set == Set::Targets);
    assert_eq!(of_vips.count(), 4, "two backends, each at a load balancer's address and at a NodePort");
    // The frontend distinguishes another service with the same backend.
    scene.serve(2, Some(direct(port(2, &[1]))));
    assert_eq!(number(&scene, 1), Some(one));
    assert!(scene.kernel.state.members.contains_key(&target(Set::Targets, one, load_balancer(2), 1)));
}

#[test]
fn one_of_two_ports_of_a_pod_gets_the_encapsulated_packets_and_a_new_port_replaces_it() {
    let other = SocketAddr::new(endpoint(1).ip(), 9090);
    let on = |ports: &[SocketAddr]| {
        let mut port = direct(port(1, &[1]));
        let one = port.endpoints.get(&endpoint(1)).unwrap().clone();
        port.endpoints = ports.iter().map(|address| (*address, one.clone())).collect();
        port.cluster = Some(ports.iter().copied().collect());
        port
    };
    let mut scene = Scene::new(Rules::default());
    let values = |scene: &Scene| -> Vec<Option<u32>> {
        let members = scene.kernel.state.members.iter();
        let ours = members.filter(|((_, element), _)| {
            matches!(element, Element::Target { frontend, .. } if *frontend == load_balancer(1))
        });
        ours.map(|(_, port)| *port).collect()
    };
    assert!(scene.serve(1, Some(on(&[endpoint(1), other]))).is_complete());
    assert_eq!(values(&scene), [Some(8080)]);
    assert!(scene.serve(1, Some(on(&[other]))).is_complete());
    assert_eq!(values(&scene), [Some(9090)]);
    // A target of an earlier agent is held, but never beside its replacement.
    scene.desired.ports.insert(key(1), on(&[endpoint(1)]));
    scene.start(Rules::default());
    scene.sync_as(&Dirty { ports: [key(1)].into(), incomplete: true, ..Dirty::default() });
    assert_eq!(values(&scene), [Some(8080)]);
}

#[test]
fn a_number_is_not_reused_while_an_unread_service_may_have_it() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[1]))));
    let first = number(&scene, 1).unwrap();
    scene.desired.ports = [(key(2), direct(port(2, &[2])))].into();
    scene.start(Rules::default());
    scene.sync_as(&Dirty { ports: [key(2)].into(), incomplete: true, ..Dirty::default() });
    assert_eq!(number(&scene, 1), Some(first));
    assert!(number(&scene, 2).is_some_and(|number| number != first));
}

#[test]
fn the_set_of_nodes_has_the_addresses_of_nodes_only() {
    let nodes = |scene: &Scene| -> Vec<IpAddr> {
        let members = scene.kernel.state.members.keys();
        let addresses = members.filter_map(|member| match member {
            (Set::Nodes, Element::Address(address)) => Some(*address),
            _ => None,
        });
        addresses.collect()
    };
    let mut scene = Scene::new(Rules::default());
    scene.desired.cluster_sources = ["10.244.0.0/16".parse().unwrap()].into();
    scene.serve(1, Some(direct(port(1, &[1]))));
    assert_eq!(
        nodes(&scene),
        [[172, 16, 0, 1], [172, 16, 0, 2]].map(IpAddr::from),
        "it has no addresses of pods"
    );
    scene.desired.nodes.remove("elsewhere");
    scene.sync_as(&Dirty { nodes: true, ..Dirty::default() });
    assert_eq!(nodes(&scene), [IpAddr::from([172, 16, 0, 1])]);
}

#[test]
fn a_node_port_at_an_address_unknown_to_other_nodes_is_served_by_translation() {
    let mut scene = Scene::new(Rules::default());
    scene.desired.nodes.remove("here");
    scene.serve(1, Some(direct(port(1, &[1, 11]))));
    assert_eq!(scene.mark(node_port(1)), None);
    assert_eq!(methods(&scene, load_balancer(1)), [(endpoint(1), TRANSLATE), (endpoint(11), TUNNEL)].into());
}

#[test]
fn the_device_is_made_before_its_members_and_removed_after_them() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[1]))));
    let place = |scene: &Scene, is_it: fn(&Op) -> bool| scene.kernel.done.iter().position(is_it).unwrap();
    let is_change = |op: &Op| matches!(op, Op::ChangeMembers { .. });
    assert!(place(&scene, |op| *op == Op::AddTunnel(Family::V4)) < place(&scene, is_change));
    scene.serve(1, None);
    assert!(place(&scene, |op| *op == Op::DeleteTunnel(Family::V4)) > place(&scene, is_change));
    let of_node = [Set::Uplinks, Set::Inside, Set::Nodes];
    assert!(scene.kernel.state.members.keys().all(|(set, _)| of_node.contains(set)));
}

#[test]
fn no_packet_goes_to_a_device_that_the_kernel_refuses() {
    let mut scene = Scene::new(Rules::default());
    scene.kernel.refuses_tunnels = true;
    let report = scene.serve(1, Some(direct(port(1, &[1, 11]))));
    assert_eq!(report.pending, [(key(1), "no such module".to_owned())]);
    assert_eq!(number(&scene, 1), None);
    assert_eq!(scene.servers(tcp(load_balancer(1))).len(), 2, "clients of this node are served");
    scene.kernel.refuses_tunnels = false;
    assert!(scene.sync([]).is_complete());
    assert!(number(&scene, 1).is_some() && scene.kernel.state.tunnels.contains(&Family::V4));
}

#[test]
fn a_new_agent_takes_over_numbers_and_devices_and_restores_missing_ones() {
    let mut scene = Scene::new(Rules::default());
    for n in 1..6 {
        scene.serve(n, Some(direct(port(n, &[n, n + 10]))));
    }
    scene.serve(1, None);
    let before = scene.kernel.state.clone();
    scene.start(Rules::default());
    assert_eq!((scene.sync_all().writes, &scene.kernel.state), (0, &before));
    scene.kernel.state.tunnels.clear();
    scene.kernel.state.members.remove(&encapsulated(3));
    let found = scene.kernel.state.clone();
    scene.plan.adopt(found);
    assert_eq!(scene.sync([]).writes, 2);
    assert_eq!(scene.kernel.state, before);
}

#[test]
fn a_number_is_reused_once_its_backend_is_gone() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[1]))));
    scene.serve(2, Some(direct(port(2, &[1]))));
    let first = number(&scene, 1).unwrap();
    scene.serve(1, Some(direct(port(1, &[2]))));
    assert_eq!(number(&scene, 1), Some(first), "the second service still uses the backend");
    assert_ne!(number(&scene, 2), Some(first));
    scene.serve(2, None);
    scene.serve(2, Some(direct(port(2, &[3]))));
    assert_eq!(number(&scene, 3), Some(first));
}

#[test]
fn numbers_and_devices_of_an_earlier_agent_stay_until_all_objects_are_readable() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[1]))));
    let before = scene.kernel.state.clone();
    scene.desired.ports.clear();
    scene.start(Rules::default());
    scene.sync_as(&Dirty { incomplete: true, ..Dirty::default() });
    assert_eq!(scene.kernel.state.tunnels, before.tunnels);
    assert_eq!(number(&scene, 1), before.members[&encapsulated(1)]);
    scene.sync([]);
    assert!(scene.kernel.state.tunnels.is_empty() && number(&scene, 1).is_none());
}

#[test]
fn segment_sizes_leave_room_for_the_outer_header_at_the_smallest_mtu() {
    let mut scene = Scene::new(Rules::default());
    scene.plan.set_topology(&Topology { mtu: Some(1450), ..topology() });
    let sizes = |scene: &Scene| -> Vec<Option<u32>> {
        let members = scene.kernel.state.members.iter();
        members.filter(|((set, _), _)| *set == Set::Segments).map(|(_, size)| *size).collect()
    };
    scene.serve(1, Some(port(1, &[1])));
    assert_eq!(sizes(&scene), []);
    scene.serve(1, Some(direct(port(1, &[1]))));
    assert_eq!(sizes(&scene), [Some(1450 - 60)]);
    scene.plan.set_topology(&Topology { mtu: Some(1500), ..topology() });
    scene.sync([]);
    assert_eq!(sizes(&scene), [Some(1500 - 60)]);
    assert_eq!(scene.kernel.done.len(), 1, "one transaction");
}
