use std::collections::BTreeMap;

use super::world::*;
use crate::dataplane::SyncFailure;
use crate::dataplane::ipvs::plan::{Op, Rules};
use crate::dataplane::ipvs::state::{Server, Set, Virtual};
use crate::model::{Dirty, Family, Protocol};

#[test]
fn a_removed_tcp_server_keeps_its_connections_until_the_last_has_ended() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(port(1, &[1, 2])));
    scene.serve(1, Some(port(1, &[1])));
    let service = tcp(cluster_ip(1));
    assert_eq!(scene.servers(service), BTreeMap::from([(endpoint(1), 1), (endpoint(2), 0)]));
    assert_eq!(scene.sync_all().writes, 0, "the draining server stays");
    assert_eq!(scene.plan.draining().count(), 3);
    scene.plan.has_drained(service, endpoint(2));
    let report = scene.plan.execute(&mut scene.kernel);
    assert_eq!((report.writes, scene.plan.draining().count()), (1, 2));
    assert_eq!(scene.servers(service), BTreeMap::from([(endpoint(1), 1)]));
}

#[test]
fn a_server_that_returns_drains_no_longer() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(port(1, &[1, 2])));
    scene.serve(1, Some(port(1, &[1])));
    scene.plan.has_drained(tcp(cluster_ip(1)), endpoint(2));
    scene.serve(1, Some(port(1, &[1, 2])));
    assert_eq!(scene.servers(tcp(cluster_ip(1)))[&endpoint(2)], 1);
    assert_eq!(scene.plan.draining().count(), 0);
    scene.serve(1, Some(port(1, &[1])));
    assert_eq!(scene.plan.draining().count(), 3, "the server drains anew");
}

#[test]
fn a_removed_udp_or_sctp_server_is_gone_at_once() {
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        let of = |endpoints: &[u8]| {
            let mut port = port(1, endpoints);
            port.protocol = protocol;
            port
        };
        let mut scene = Scene::new(Rules::default());
        scene.serve(1, Some(of(&[1, 2])));
        scene.serve(1, Some(of(&[1])));
        let service = Virtual::Address { protocol, address: cluster_ip(1) };
        assert_eq!(scene.servers(service), BTreeMap::from([(endpoint(1), 1)]));
    }
}

#[test]
fn the_last_server_drains_although_new_clients_are_refused() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(local_policy(port(1, &[1, 11]))));
    let marked = Virtual::Mark { family: Family::V4, mark: scene.mark(load_balancer(1)).unwrap() };
    scene.serve(1, Some(local_policy(port(1, &[11]))));
    assert_eq!(scene.servers(marked), BTreeMap::from([(endpoint(1), 0)]));
    assert!(scene.has(Set::DroppedOutside, load_balancer(1)));
    scene.serve(1, Some(local_policy(port(1, &[]))));
    assert_eq!(scene.servers(tcp(cluster_ip(1))), BTreeMap::from([(endpoint(1), 0), (endpoint(11), 0)]));
    assert!(scene.has(Set::Refused, cluster_ip(1)));
}

#[test]
fn servers_with_weight_zero_from_an_earlier_agent_are_restored_or_drain_on() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(port(1, &[1, 2])));
    let service = tcp(cluster_ip(1));
    for n in [1, 2] {
        scene.kernel.state.servers.insert((service, endpoint(n)), Server { weight: 0, method: 0 });
    }
    scene.desired.ports.insert(key(1), port(1, &[1]));
    scene.start(Rules::default());
    scene.sync_all();
    assert_eq!(scene.servers(service), BTreeMap::from([(endpoint(1), 1), (endpoint(2), 0)]));
    assert!(scene.plan.draining().any(|one| *one == (service, endpoint(2))));
}

#[test]
fn a_new_agent_writes_nothing_that_is_already_correct() {
    let mut scene = Scene::new(Rules::default());
    for n in 1..20 {
        let port = local_policy(restricted(port(n, &[n, n + 20]), &["10.0.0.0/8"]));
        scene.serve(n, Some(port));
    }
    let before = scene.kernel.state.clone();
    assert_eq!(scene.sync_all().writes, 0);
    scene.start(Rules::default());
    let report = scene.sync_all();
    assert_eq!((report.writes, &scene.kernel.done), (0, &Vec::new()));
    assert_eq!(scene.kernel.state, before);
}

#[test]
fn virtual_services_of_an_earlier_agent_stay_until_all_objects_are_readable() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(port(1, &[1])));
    scene.serve(2, Some(port(2, &[2])));
    let before = scene.kernel.state.clone();
    scene.desired.ports.remove(&key(1));
    // The endpoints of the second service are unreadable, too.
    scene.desired.ports.insert(key(2), port(2, &[]));
    scene.start(Rules::default());
    let ports = scene.desired.ports.keys().cloned().collect();
    scene.sync_as(&Dirty { ports, incomplete: true, ..Dirty::default() });
    assert_eq!(scene.kernel.state, before);
    scene.sync([]);
    assert!(!scene.kernel.state.services.contains_key(&tcp(cluster_ip(1))));
    assert!(scene.has(Set::Refused, cluster_ip(2)));
    assert_eq!(scene.servers(tcp(cluster_ip(2))), BTreeMap::from([(endpoint(2), 0)]));
}

#[test]
fn entries_that_another_process_deleted_are_restored_after_a_read_back() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(port(1, &[1])));
    let before = scene.kernel.state.clone();
    scene.kernel.state.services.remove(&tcp(cluster_ip(1)));
    scene.kernel.state.servers.retain(|(service, _), _| *service != tcp(cluster_ip(1)));
    scene.kernel.state.addresses.clear();
    let found = scene.kernel.state.clone();
    assert_ne!(scene.plan.actual(), found);
    scene.plan.adopt(found);
    scene.sync([]);
    assert_eq!(scene.kernel.state, before);
    assert_eq!(scene.kernel.done.len(), 4, "a service, its server, two addresses: {:?}", scene.kernel.done);
}

#[test]
fn no_client_is_admitted_if_writing_the_rules_fails() {
    let mut scene = Scene::new(Rules::default());
    scene.sync([]);
    scene.kernel.patience = Some(0);
    let report = scene.serve(1, Some(restricted(port(1, &[1]), &["10.0.0.0/8"])));
    assert_eq!(report.failures, [SyncFailure::Node("no patience".to_owned())]);
    assert!(scene.kernel.state.services.is_empty());
    scene.kernel.patience = None;
    assert!(scene.sync([]).is_complete());
    assert_eq!(scene.kernel.state.services.len(), 3);
}

#[test]
fn a_port_with_a_refused_virtual_service_is_reported_and_others_are_served() {
    let mut scene = Scene::new(Rules::default());
    scene.desired.ports.insert(key(1), port(1, &[1]));
    scene.desired.ports.insert(key(2), port(2, &[2]));
    // The kernel accepts the members and the first service.
    scene.kernel.patience = Some(2);
    let report = scene.sync_all();
    let pending: Vec<_> = report.pending.iter().map(|(port, why)| (port.clone(), why.as_str())).collect();
    assert_eq!(pending, [(key(1), "no patience"), (key(2), "no patience")]);
    scene.kernel.patience = None;
    assert!(scene.sync([]).is_complete());
    assert_eq!(scene.kernel.state.servers.len(), 6);
}

#[test]
fn one_new_endpoint_adds_one_server_for_each_address() {
    let mut scene = Scene::new(Rules::default());
    for n in 1..100 {
        scene.desired.ports.insert(key(n), port(n, &[n, n + 100]));
    }
    scene.sync_all();
    scene.serve(50, Some(port(50, &[50, 150, 200])));
    let is_server = |op: &Op| matches!(op, Op::PutServer(_, address, _) if *address == endpoint(200));
    assert!(
        scene.kernel.done.len() == 3 && scene.kernel.done.iter().all(is_server),
        "{:?}",
        scene.kernel.done
    );
}

#[test]
fn an_address_that_moves_to_another_service_keeps_its_source_ranges() {
    let mut scene = Scene::new(Rules::default());
    scene.serve(1, Some(port(1, &[1])));
    let mut other = restricted(port(2, &[2]), &["10.0.0.0/8"]);
    other.frontends = scene.desired.ports[&key(1)].frontends.clone();
    scene.desired.ports.remove(&key(1));
    scene.desired.ports.insert(key(2), other);
    scene.kernel.guarded.insert(member(Set::Restricted, load_balancer(1)));
    scene.kernel.state.members.insert(member(Set::Restricted, load_balancer(1)), None);
    let state = scene.kernel.state.clone();
    scene.plan.adopt(state);
    scene.sync([key(1), key(2)]);
    assert!(scene.has(Set::Restricted, load_balancer(1)));
    assert_eq!(scene.servers(tcp(load_balancer(1))), BTreeMap::from([(endpoint(1), 0), (endpoint(2), 1)]));
}
