use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::world::*;
use crate::dataplane::RejectUnknown;
use crate::dataplane::ipvs::plan::{Masquerade, Op, Rules};
use crate::dataplane::ipvs::state::{Element, Scheduling, Set, Virtual};
use crate::model::{Algorithm, Family, Frontend, Protocol, Scheduler, Scope, ServicePort};
use crate::node::Topology;

fn marked(mark: u32) -> Virtual {
    Virtual::Mark { family: Family::V4, mark }
}

#[test]
fn every_address_of_a_port_has_a_virtual_service_with_the_whole_list() {
    let mut scene = Scene::new(Rules::default());
    let report = scene.serve(1, Some(port(1, &[1, 11])));
    assert!(report.is_complete());
    for address in [cluster_ip(1), node_port(1), load_balancer(1)] {
        assert_eq!(scene.servers(tcp(address)), BTreeMap::from([(endpoint(1), 1), (endpoint(11), 1)]));
        assert!(scene.has(Set::Services, address));
    }
    assert_eq!(scene.kernel.state.services.len(), 3, "no mark if all clients get one list");
    assert!(scene.has(Set::Local, endpoint(1)) && scene.has(Set::Loop, endpoint(1)));
    assert!(!scene.has(Set::Local, endpoint(11)));
}

#[test]
fn refusals_are_added_first_and_the_address_last() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(local_policy(restricted(port(1, &[1]), &["10.0.0.0/8"]))));
    let kinds: Vec<&str> = scene.kernel.done.iter().map(|op| kind(op)).collect();
    let mut turns = kinds.clone();
    turns.dedup();
    assert_eq!(turns, ["marked", "marked server", "members", "service", "server", "address"]);
    scene.serve(1, None);
    let mut turns: Vec<&str> = scene.kernel.done.iter().map(|op| kind(op)).collect();
    turns.dedup();
    assert_eq!(turns, ["no address", "no service", "members", "no service"]);
    assert!(scene.kernel.state.services.is_empty() && scene.kernel.state.servers.is_empty());
    assert!(scene.kernel.state.addresses.is_empty());
}

fn kind(op: &Op) -> &'static str {
    match op {
        Op::PutService(Virtual::Mark { .. }, _) => "marked",
        Op::PutService(..) => "service",
        Op::DeleteService(_) => "no service",
        Op::PutServer(Virtual::Mark { .. }, ..) => "marked server",
        Op::PutServer(..) => "server",
        Op::DeleteServer(..) => "no server",
        Op::ChangeMembers { .. } => "members",
        Op::AddAddress(_) => "address",
        Op::DeleteAddress(_) => "no address",
        Op::AddTunnel(_) => "tunnel",
        Op::DeleteTunnel(_) => "no tunnel",
    }
}

#[test]
fn clients_outside_get_the_local_list_by_a_mark_and_clients_inside_the_whole_list() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(local_policy(port(1, &[1, 11]))));
    let mark = scene.mark(load_balancer(1)).unwrap();
    assert_eq!(scene.mark(node_port(1)), Some(mark), "one mark for all addresses of a port");
    assert_eq!(scene.mark(cluster_ip(1)), None);
    assert_eq!(scene.servers(marked(mark)), BTreeMap::from([(endpoint(1), 1)]));
    assert_eq!(scene.servers(tcp(load_balancer(1))).len(), 2);
    scene.serve(2, Some(local_policy(port(2, &[2]))));
    assert_ne!(scene.mark(load_balancer(2)), Some(mark));
    scene.serve(1, Some(port(1, &[1, 11])));
    assert_eq!(scene.mark(load_balancer(1)), None);
    assert!(!scene.kernel.state.services.contains_key(&marked(mark)));
}

#[test]
fn a_mark_includes_the_protocol_of_its_service() {
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let mut scene = Scene::new(Rules::default());
        let mut port = local_policy(port(1, &[1]));
        port.protocol = protocol;
        scene.serve(1, Some(port));
        let member = (Set::Marks, Element::Port(protocol, load_balancer(1)));
        let mark = scene.kernel.state.members[&member].unwrap();
        assert_eq!(marked(mark).protocol(), protocol);
    }
}

#[test]
fn clients_are_refused_without_endpoints_and_clients_outside_are_dropped_without_local_ones() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(port(1, &[])));
    assert!(scene.has(Set::Refused, load_balancer(1)) && scene.has(Set::Refused, cluster_ip(1)));
    scene.serve(1, Some(local_policy(port(1, &[11]))));
    assert!(!scene.has(Set::Refused, load_balancer(1)));
    assert!(
        scene.has(Set::DroppedOutside, load_balancer(1)) && !scene.has(Set::DroppedOutside, cluster_ip(1))
    );
    assert!(!scene.has(Set::DroppedInside, load_balancer(1)));
    scene.serve(1, Some(local_policy(port(1, &[1, 11]))));
    assert!(!scene.has(Set::DroppedOutside, load_balancer(1)));
    let mut inside = port(1, &[11]);
    inside.frontends = inside
        .frontends
        .into_iter()
        .map(|mut frontend| {
            frontend.list = crate::model::List::Local;
            frontend
        })
        .collect();
    scene.serve(1, Some(inside));
    assert!(scene.has(Set::DroppedInside, cluster_ip(1)) && scene.has(Set::DroppedOutside, cluster_ip(1)));
}

#[test]
fn addresses_of_this_node_are_neither_bound_nor_in_the_set_of_vips() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(port(1, &[1])));
    let bound = BTreeSet::from([cluster_ip(1).ip(), load_balancer(1).ip()]);
    assert_eq!(scene.kernel.state.addresses, bound);
    let vips = |scene: &Scene| -> BTreeSet<IpAddr> {
        let members = scene.kernel.state.members.keys();
        members
            .filter_map(|member| match member {
                (Set::Vips, Element::Address(address)) => Some(*address),
                _ => None,
            })
            .collect()
    };
    assert_eq!(vips(&scene), bound);
    // A device of this node gets the load balancer's address, as with k3s and kube-vip.
    let addresses = BTreeSet::from([IpAddr::from([172, 16, 0, 1]), load_balancer(1).ip()]);
    scene.plan.set_topology(&Topology { addresses, ..topology() });
    scene.sync([]);
    assert_eq!(scene.kernel.state.addresses, BTreeSet::from([cluster_ip(1).ip()]));
    assert_eq!(vips(&scene), scene.kernel.state.addresses);
    assert!(scene.has(Set::Services, load_balancer(1)));
}

#[test]
fn unknown_ports_are_refused_according_to_the_setting() {
    for (setting, answered) in
        [(RejectUnknown::Off, 0), (RejectUnknown::ClusterIp, 1), (RejectUnknown::All, 2)]
    {
        let mut scene = Scene::new(Rules { reject_unknown: setting, ..Rules::default() });
        scene.serve(1, Some(port(1, &[1])));
        let refusing = scene.kernel.state.members.keys().filter(|(set, _)| *set == Set::Refusing);
        assert_eq!(refusing.count(), answered, "{setting:?}");
    }
}

#[test]
fn source_ranges_apply_to_the_load_balancer_only_and_do_not_overlap() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(restricted(port(1, &[1]), &["10.0.0.0/8", "10.1.0.0/16", "192.0.2.7/32"])));
    assert!(scene.has(Set::Restricted, load_balancer(1)));
    assert!(!scene.has(Set::Restricted, node_port(1)) && !scene.has(Set::Restricted, cluster_ip(1)));
    let allowed = |scene: &Scene| -> Vec<String> {
        let members = scene.kernel.state.members.keys();
        members
            .filter_map(|member| match member {
                (Set::Allowed(Protocol::Tcp), Element::Range(_, range)) => Some(range.to_string()),
                _ => None,
            })
            .collect()
    };
    assert_eq!(allowed(&scene), ["10.0.0.0/8", "192.0.2.7/32"]);
    scene.serve(1, Some(restricted(port(1, &[1]), &["10.1.0.0/16"])));
    assert_eq!(allowed(&scene), ["10.1.0.0/16"]);
    assert_eq!(scene.kernel.done.len(), 1, "ranges that overlap change in one transaction");
    scene.serve(1, Some(restricted(port(1, &[1]), &[])));
    assert!(scene.has(Set::Restricted, load_balancer(1)) && allowed(&scene).is_empty());
}

#[test]
fn affinity_becomes_persistence_and_a_service_gets_its_scheduler() {
    let mut scene = Scene::new(Rules { scheduler: Scheduler::Wlc, ..Rules::default() });
    let scheduling = |scene: &Scene| scene.kernel.state.services[&tcp(cluster_ip(1))].clone();
    scene.serve(1, Some(port(1, &[1])));
    let plain = Scheduling { scheduler: "wlc".to_owned(), flags: 0, timeout: 0, netmask: u32::MAX };
    assert_eq!(scheduling(&scene), plain);
    let mut asking = port(1, &[1]);
    asking.affinity_seconds = 600;
    asking.scheduler = Some(Scheduler::Sh);
    scene.serve(1, Some(asking.clone()));
    let expected = Scheduling { scheduler: "sh".to_owned(), flags: 1, timeout: 600, ..plain.clone() };
    assert_eq!(scheduling(&scene), expected);
    asking.scheduler = None;
    asking.algorithm = Algorithm::Maglev(251);
    asking.affinity_seconds = 0;
    scene.serve(1, Some(asking));
    assert_eq!(scheduling(&scene), Scheduling { scheduler: "mh".to_owned(), flags: 0x18, ..plain });
}

#[test]
fn a_marked_service_with_affinity_hashes_clients_if_the_ports_of_its_servers_differ() {
    let mut scene = Scene::new(Rules::default());
    let scheduling = |scene: &Scene| {
        let mark = scene.mark(load_balancer(1)).unwrap();
        let Scheduling { scheduler, flags, timeout, .. } = scene.kernel.state.services[&marked(mark)].clone();
        (scheduler, flags, timeout)
    };
    let asking = |endpoints: &[u8]| ServicePort { affinity_seconds: 600, ..local_policy(port(1, endpoints)) };
    scene.serve(1, Some(asking(&[1, 11])));
    assert_eq!(scheduling(&scene), ("mh".to_owned(), 0x08, 600));
    let by_address = &scene.kernel.state.services[&tcp(load_balancer(1))];
    assert_eq!(
        (by_address.scheduler.as_str(), by_address.flags),
        ("rr", 1),
        "a service by address translates ports"
    );
    scene.serve(1, Some(asking(&[11])));
    assert_eq!(scheduling(&scene), ("rr".to_owned(), 1, 600), "the marked service has no server");
    let mut same = asking(&[1]);
    let at_its_port = |frontend: Frontend| {
        let address = SocketAddr::new(frontend.address.ip(), endpoint(1).port());
        Frontend { address, ..frontend }
    };
    same.frontends = same.frontends.into_iter().map(at_its_port).collect();
    scene.serve(1, Some(same));
    let mark = scene.mark(SocketAddr::new(load_balancer(1).ip(), endpoint(1).port())).unwrap();
    assert_eq!(scene.kernel.state.services[&marked(mark)].flags, 1);
    // An encapsulated packet keeps its port.
    scene.serve(1, Some(direct(ServicePort { affinity_seconds: 600, ..port(1, &[11]) })));
    assert_eq!(scheduling(&scene), ("rr".to_owned(), 1, 600));
    scene.serve(1, Some(direct(ServicePort { affinity_seconds: 600, ..port(1, &[1, 11]) })));
    assert_eq!(scheduling(&scene), ("mh".to_owned(), 0x08, 600));
}

#[test]
fn an_excluded_address_is_neither_served_nor_bound() {
    let excluded = vec!["203.0.113.0/24".parse().unwrap()];
    let mut scene = Scene::new(Rules { excluded, ..Rules::default() });
    scene.serve(1, Some(port(1, &[1])));
    assert!(!scene.kernel.state.services.contains_key(&tcp(load_balancer(1))));
    assert!(!scene.kernel.state.addresses.contains(&load_balancer(1).ip()));
    assert!(scene.kernel.state.services.contains_key(&tcp(cluster_ip(1))));
}

#[test]
fn the_sets_of_sources_follow_the_ranges_and_the_masquerading() {
    let nets = |scene: &Scene, wanted: Set| -> Vec<String> {
        let members = scene.kernel.state.members.keys();
        members
            .filter_map(|member| match member {
                (set, Element::Net(net)) if *set == wanted => Some(net.to_string()),
                _ => None,
            })
            .collect()
    };
    let mut scene = Scene::new(Rules::default());
    scene.desired.cluster_sources =
        ["10.244.0.0/16", "10.244.0.7/32", "172.16.0.1/32"].map(|net| net.parse().unwrap()).into();
    scene.desired.pod_sources = ["10.244.0.0/16".parse().unwrap()].into();
    scene.sync([]);
    assert_eq!(nets(&scene, Set::Cluster), ["10.244.0.0/16", "172.16.0.1/32"]);
    assert_eq!(nets(&scene, Set::Near), ["10.244.0.0/16"]);
    assert_eq!(nets(&scene, Set::Inside), ["0.0.0.0/0", "::/0"]);
    let masquerade = Masquerade::Outside(vec!["10.244.0.0/16".parse().unwrap()]);
    scene.start(Rules { masquerade, ..Rules::default() });
    scene.sync([]);
    assert_eq!(nets(&scene, Set::Inside), ["10.244.0.0/16", "::/0"]);
    assert_eq!(scene.kernel.done.len(), 1, "ranges that overlap change in one transaction");
    scene.start(Rules { masquerade: Masquerade::All, ..Rules::default() });
    scene.sync([]);
    assert!(nets(&scene, Set::Inside).is_empty());
    let uplink = (Set::Uplinks, Element::Device("eth0".to_owned()));
    assert!(scene.kernel.state.members.contains_key(&uplink));
}

#[test]
fn a_frontend_for_encapsulated_packets_gets_no_virtual_service() {
    let mut scene = Scene::new(Rules::default());
    let mut port = port(1, &[1]);
    let mut any = port.frontends.first().unwrap().clone();
    any.scope = Scope::Encapsulated;
    any.address = "0.0.0.0:30001".parse().unwrap();
    port.frontends.insert(any);
    scene.serve(1, Some(port));
    assert_eq!(scene.kernel.state.services.len(), 3);
}
