use std::net::IpAddr;

use super::world::*;
use crate::dataplane::Encapsulation;
use crate::dataplane::ipvs::plan::{Op, Rules};
use crate::dataplane::ipvs::state::{Element, Set};
use crate::model::Dirty;

const NODES: [[u8; 4]; 2] = [[172, 16, 0, 1], [172, 16, 0, 2]];

/// Returns the addresses in a set.
fn addresses(scene: &Scene, wanted: Set) -> Vec<IpAddr> {
    let members = scene.kernel.state.members.keys();
    let addresses = members.filter_map(|(set, element)| match element {
        Element::Address(address) if *set == wanted => Some(*address),
        _ => None,
    });
    addresses.collect()
}

/// Returns a port with Direct Server Return and without a NodePort.
fn without_node_port(n: u8) -> crate::model::ServicePort {
    let mut port = direct(port(n, &[11]));
    port.frontends.retain(|one| one.address.port() == load_balancer(n).port());
    port
}

#[test]
fn the_set_of_inner_destinations_has_the_addresses_for_which_nodes_decapsulate() {
    let mut scene = Scene::new(Rules::default());
    let inner = |scene: &Scene| addresses(scene, Set::InnerDestinations);
    scene.serve(1, Some(port(1, &[11])));
    assert_eq!(inner(&scene), [] as [IpAddr; 0], "no node decapsulates for a Service without DSR");
    scene.serve(2, Some(without_node_port(2)));
    assert_eq!(inner(&scene), [load_balancer(2).ip()], "nor for a ClusterIP");
    scene.serve(3, Some(direct(port(3, &[11]))));
    let all = [IpAddr::from(NODES[0]), NODES[1].into(), load_balancer(2).ip(), load_balancer(3).ip()];
    assert_eq!(inner(&scene), all, "a NodePort is reached at every node");
    scene.serve(3, Some(port(3, &[11])));
    assert_eq!(inner(&scene), [load_balancer(2).ip()]);
    scene.serve(2, None);
    assert_eq!(inner(&scene), [] as [IpAddr; 0]);
}

#[test]
fn addresses_that_this_node_does_not_serve_count_as_well() {
    let excluded = vec!["203.0.113.0/24".parse().unwrap()];
    for rules in [
        Rules { excluded, ..Rules::default() },
        Rules { encapsulation: Encapsulation::Fou, ..Rules::default() },
    ] {
        let mut scene = Scene::new(rules);
        scene.serve(1, Some(without_node_port(1)));
        assert_eq!(addresses(&scene, Set::InnerDestinations), [load_balancer(1).ip()]);
    }
}

#[test]
fn the_addresses_of_nodes_follow_their_objects() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(direct(port(1, &[11]))));
    assert_eq!(addresses(&scene, Set::Nodes), NODES.map(IpAddr::from));
    scene.desired.nodes.remove("elsewhere");
    scene.sync_as(&Dirty { nodes: true, ..Dirty::default() });
    assert_eq!(addresses(&scene, Set::Nodes), [IpAddr::from(NODES[0])]);
    assert_eq!(addresses(&scene, Set::InnerDestinations), [IpAddr::from(NODES[0]), load_balancer(1).ip()]);
}

#[test]
fn fou_from_pods_is_dropped_if_nodes_accept_fou() {
    use Encapsulation::{Fou, Ipip};
    for (encapsulation, also_taken, takes_fou) in
        [(Ipip, None, false), (Ipip, Some(Fou), true), (Fou, None, true), (Fou, Some(Ipip), true)]
    {
        let mut scene = Scene::new(Rules { encapsulation, also_taken, ..Rules::default() });
        scene.sync([]);
        let expected = if takes_fou { NODES.map(IpAddr::from).to_vec() } else { Vec::new() };
        assert_eq!(addresses(&scene, Set::FouNodes), expected, "{encapsulation:?} {also_taken:?}");
    }
}

#[test]
fn inner_destinations_are_added_before_the_service_and_removed_after_it() {
    let mut scene = Scene::new(Rules::default());
    let is_about = |op: &Op| match op {
        Op::ChangeMembers { add, delete } => {
            add.iter().chain(delete).any(|((set, _), _)| *set == Set::InnerDestinations)
        }
        _ => false,
    };
    let place =
        |scene: &Scene, is_it: &dyn Fn(&Op) -> bool| scene.kernel.done.iter().position(is_it).unwrap();
    let service = tcp(load_balancer(1));
    scene.serve(1, Some(without_node_port(1)));
    assert!(
        place(&scene, &is_about) < place(&scene, &|op| matches!(op, Op::PutService(of, _) if *of == service))
    );
    // A new agent changes nothing.
    scene.start(Rules::default());
    assert_eq!(scene.sync_all().writes, 0);
    scene.serve(1, None);
    assert!(place(&scene, &is_about) > place(&scene, &|op| *op == Op::DeleteService(service)));
}
