//! Every kind of Service, family and policy, from pods, nodes and outside.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use millrace_lab::kubernetes::{Cluster, Plan, wait};
use millrace_lab::traffic::get_status;
use serde_json::json;

use super::clients::{Client, Protocol};
use super::fixture::{CHANGE_LIMIT, NODES, PODS_LIMIT, Service, shared};
use super::objects::{backend_on, service};

/// Requests to each address. With three backends, one of two thousand runs meets only one of them.
const REQUESTS: usize = 8;

/// Asks a target until the change has reached the nodes, then repeatedly.
fn check_backends(client: &Client, protocol: Protocol, target: SocketAddr) -> Result<()> {
    wait("an answer", CHANGE_LIMIT, || client.ask(protocol, target, "hostname"))?;
    let backends = client.backends(protocol, target, REQUESTS)?;
    ensure!(backends.len() > 1, "{client} meets only {backends:?} at {target} over {protocol:?}");
    Ok(())
}

fn sockets(addresses: impl IntoIterator<Item = IpAddr>, port: u16) -> Vec<SocketAddr> {
    addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect()
}

fn parsed(addresses: &[String]) -> Vec<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

/// Returns the targets of a Service: load balancer addresses, node ports of every node, ClusterIPs.
fn targets(service: &Service, balancers: &[&str], protocol: Protocol) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    let balancers = balancers.iter().map(|address| address.parse().unwrap());
    let nodes = (1..=NODES).flat_map(Plan::node);
    let mut public = sockets(balancers, protocol.port());
    public.extend(sockets(nodes, service.node_port(protocol.port_name())));
    (public, sockets(parsed(&service.cluster_ips()), protocol.port()))
}

fn check_from(clients: impl Fn(&Cluster) -> Result<Vec<Client>>, name: &str, balancers: [&str; 2]) {
    let cluster = shared();
    let object = service(name, "web", json!({"type": "LoadBalancer"}));
    let service = Service::put(&cluster.kubectl(), object, &balancers).unwrap();
    for client in clients(&cluster).unwrap() {
        for protocol in Protocol::ALL {
            let (public, internal) = targets(&service, &balancers, protocol);
            let internal = if matches!(client, Client::Outside(_)) { Vec::new() } else { internal };
            for target in public.into_iter().chain(internal) {
                check_backends(&client, protocol, target).unwrap();
            }
        }
    }
}

#[test]
fn pods_reach_every_kind_of_address_over_both_families_and_protocols() {
    check_from(|cluster| Ok(vec![Client::in_pod(cluster, 2)?]), "for-pods", ["198.51.100.1", "fd00:100::1"]);
}

#[test]
fn nodes_reach_every_kind_of_address_over_both_families_and_protocols() {
    check_from(
        |cluster| Ok(vec![Client::on_node(cluster, 3)?]),
        "for-nodes",
        ["198.51.100.2", "fd00:100::2"],
    );
}

#[test]
fn clients_outside_reach_node_ports_and_load_balancer_addresses() {
    check_from(|cluster| Ok(vec![Client::outside(cluster)?]), "for-others", ["198.51.100.3", "fd00:100::3"]);
}

#[test]
fn the_api_server_is_reached_by_its_service() {
    let cluster = shared();
    let target = "10.96.0.1:443".parse().unwrap();
    // The API server speaks TLS, and answers plain HTTP with an error that says so.
    for client in [Client::in_pod(&cluster, 1).unwrap(), Client::on_node(&cluster, 2).unwrap()] {
        let answer = client.ask(Protocol::Http, target, "livez").unwrap();
        assert!(answer.contains("HTTPS"), "{client}: {answer}");
    }
}

#[test]
fn the_local_policy_keeps_the_clients_address_and_serves_only_beside_the_backend() {
    let cluster = shared();
    let kubectl = cluster.kubectl();
    kubectl.apply(&[backend_on("local", "node-1")]).unwrap();
    let balancers = ["198.51.100.4", "fd00:100::4"];
    let object = service("local", "local", json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}));
    let service = Service::put(&kubectl, object, &balancers).unwrap();
    let outside = Client::outside(&cluster).unwrap();
    for protocol in Protocol::ALL {
        let port = service.node_port(protocol.port_name());
        let balancers = sockets(balancers.map(|address| address.parse().unwrap()), protocol.port());
        for target in sockets(Plan::node(1), port).into_iter().chain(balancers) {
            let seen = wait("an answer", PODS_LIMIT, || outside.ask(protocol, target, "clientip")).unwrap();
            let seen: SocketAddr = seen.parse().with_context(|| seen.clone()).unwrap();
            assert!(Plan::outside().contains(&seen.ip()), "{target} over {protocol:?} saw {seen}");
        }
        for target in sockets(Plan::node(2), port) {
            assert!(outside.ask(protocol, target, "clientip").is_err(), "{target} has no backend beside it");
        }
    }
    for (number, expected) in [(1, 200), (2, 503), (3, 503)] {
        let [address, _] = Plan::node(number);
        let target = SocketAddr::new(address, service.health_check_port());
        let namespace = cluster.namespace("outside").unwrap();
        let status = namespace.run(async move || get_status(target, "/healthz").await).unwrap();
        assert_eq!(status, expected, "health check of node-{number}");
    }
}

#[test]
fn the_internal_local_policy_serves_pods_only_by_backends_beside_them() {
    let cluster = shared();
    let kubectl = cluster.kubectl();
    kubectl.apply(&[backend_on("beside", "node-1")]).unwrap();
    let object = service("beside", "beside", json!({"internalTrafficPolicy": "Local"}));
    let service = Service::put(&kubectl, object, &[]).unwrap();
    for target in sockets(parsed(&service.cluster_ips()), Protocol::Http.port()) {
        let near = Client::in_pod(&cluster, 1).unwrap();
        wait("an answer", PODS_LIMIT, || near.ask(Protocol::Http, target, "hostname")).unwrap();
        let far = Client::in_pod(&cluster, 2).unwrap();
        assert!(far.ask(Protocol::Http, target, "hostname").is_err(), "node-2 has no backend of its own");
    }
}

#[test]
fn session_affinity_keeps_a_client_at_its_backend() {
    let cluster = shared();
    let object = service("sticky", "web", json!({"type": "NodePort", "sessionAffinity": "ClientIP"}));
    let service = Service::put(&cluster.kubectl(), object, &[]).unwrap();
    let clients = [
        (Client::outside(&cluster).unwrap(), sockets(Plan::node(2), service.node_port("http"))),
        (Client::in_pod(&cluster, 1).unwrap(), sockets(parsed(&service.cluster_ips()), 80)),
    ];
    for (client, targets) in clients {
        for target in targets {
            wait("an answer", CHANGE_LIMIT, || client.ask(Protocol::Http, target, "hostname")).unwrap();
            let backends = client.backends(Protocol::Http, target, REQUESTS).unwrap();
            assert_eq!(backends.len(), 1, "{client} at {target}");
        }
    }
}

#[test]
fn source_ranges_keep_other_clients_away() {
    let cluster = shared();
    let balancers = ["198.51.100.5", "fd00:100::5"];
    let ranges = |ranges: [&str; 2]| {
        service("ranged", "web", json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}))
    };
    let outside = Client::outside(&cluster).unwrap();
    let kubectl = cluster.kubectl();
    Service::put(&kubectl, ranges(["172.30.1.0/24", "fd00:31::/64"]), &balancers).unwrap();
    let targets = sockets(balancers.map(|address| address.parse().unwrap()), 80);
    for target in &targets {
        wait("an answer", CHANGE_LIMIT, || outside.ask(Protocol::Http, *target, "hostname")).unwrap();
    }
    Service::put(&kubectl, ranges(["192.0.2.0/24", "fd00:99::/64"]), &balancers).unwrap();
    for target in targets {
        wait("no answer", CHANGE_LIMIT, || {
            let answer = outside.ask(Protocol::Http, target, "hostname");
            ensure!(answer.is_err(), "{target} still answers: {answer:?}");
            Ok(())
        })
        .unwrap();
    }
}
