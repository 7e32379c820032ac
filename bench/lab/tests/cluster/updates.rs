//! Updates of backends and of agents, under load.

use std::net::SocketAddr;

use millrace_lab::kubernetes::{Cluster, Plan, Proxy, wait};
use serde_json::json;

use super::clients::{Client, Protocol};
use super::fixture::{CHANGE_LIMIT, NODES, Service, proxy, roll_out, shared, wait_for_pods};
use super::install::{roll_agents, wait_for_agents};
use super::load::Load;
use super::objects::{backends, service};

/// Requests that each client makes at least, so that a load is one.
const LEAST: usize = 100;

/// Starts clients outside, in a pod and on a node, and waits until all are served.
fn start_load(cluster: &Cluster, service: &Service) -> Load {
    let node_port = SocketAddr::new(Plan::node(2)[1], service.node_port("http"));
    let cluster_ips = service.cluster_ips();
    let internal = |family: usize| SocketAddr::new(cluster_ips[family].parse().unwrap(), 80);
    let clients = vec![
        (Client::outside(cluster).unwrap(), node_port),
        (Client::outside(cluster).unwrap(), SocketAddr::new(Plan::node(1)[0], service.node_port("http"))),
        (Client::in_pod(cluster, 1).unwrap(), internal(0)),
        (Client::on_node(cluster, 3).unwrap(), internal(1)),
    ];
    for (client, target) in &clients {
        wait("an answer", CHANGE_LIMIT, || client.ask(Protocol::Http, *target, "hostname")).unwrap();
    }
    Load::start(clients)
}

fn assert_nothing_lost(load: Load) {
    for outcome in load.end() {
        assert_eq!(outcome.failures, [""; 0], "beside {} answers", outcome.answers);
        assert!(outcome.answers >= LEAST, "only {} requests were made", outcome.answers);
        println!("{} requests were answered", outcome.answers);
    }
}

#[test]
fn a_rolling_update_of_the_backends_loses_no_request() {
    let cluster = shared();
    let kubectl = cluster.kubectl();
    kubectl.apply(&backends("rolling", NODES.into())).unwrap();
    roll_out(&kubectl, "deployment/rolling").unwrap();
    let object = service("rolling", "rolling", json!({"type": "NodePort"}));
    let service = Service::put(&kubectl, object, &[]).unwrap();
    let load = start_load(&cluster, &service);
    kubectl.run(&["rollout", "restart", "deployment/rolling"]).unwrap();
    roll_out(&kubectl, "deployment/rolling").unwrap();
    wait_for_pods(&kubectl, "rolling", NODES.into()).unwrap();
    assert_nothing_lost(load);
}

#[test]
fn an_update_of_the_agents_loses_no_request() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    let kubectl = cluster.kubectl();
    let object = service("updated", "web", json!({"type": "NodePort"}));
    let service = Service::put(&kubectl, object, &[]).unwrap();
    // Agents that are not yet available would all be replaced at once.
    wait_for_agents(&kubectl).unwrap();
    let load = start_load(&cluster, &service);
    roll_agents(&kubectl, "restart").unwrap();
    assert_nothing_lost(load);
}
