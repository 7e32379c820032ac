use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::model::testing::model;
use crate::model::{Family, FrontendKind, Listener, Model, Protocol};

fn service(name: &str, created: &str, ingress: &[&str]) -> Value {
    let ingress: Vec<Value> = ingress.iter().map(|ip| json!({ "ip": ip, "ipMode": "VIP" })).collect();
    json!({
        "kind": "Service",
        "metadata": { "name": name, "uid": name, "creationTimestamp": created },
        "spec": {
            "type": "LoadBalancer", "clusterIP": format!("10.96.0.{}", name.len()), "ports": [{ "port": 80 }],
        },
        "status": { "loadBalancer": { "ingress": ingress } },
    })
}

fn node() -> Value {
    json!({
        "kind": "Node", "metadata": { "name": "node-1" },
        "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }] },
    })
}

/// Returns a model of the node 10.0.0.1 with a Service `web`.
fn with(ingress: &[&str]) -> Model {
    let mut model = model();
    model.tell(node());
    model.set_devices(&["10.0.0.1"]);
    model.tell(service("web", "2026-01-01T00:00:00Z", ingress));
    model.refresh();
    model
}

/// Returns the addresses of the load balancer that a Service is served at.
fn served(model: &Model, name: &str) -> Vec<String> {
    let port = model.port(name, Family::V4).unwrap();
    let of_balancer = port.frontends.iter().filter(|frontend| frontend.kind == FrontendKind::LoadBalancer);
    let mut addresses: Vec<String> = of_balancer.map(|frontend| frontend.address.to_string()).collect();
    addresses.dedup();
    addresses
}

#[test]
fn this_nodes_address_is_served_for_a_while_after_it_left_the_status_and_others_are_not() {
    let mut model = with(&["10.0.0.1", "10.0.0.2"]);
    model.tell(service("web", "2026-01-01T00:00:00Z", &[]));
    model.refresh();
    assert_eq!(served(&model, "web"), ["10.0.0.1:80"]);
    let count = model.former_addresses();
    model.forget_former(count - 1);
    model.refresh();
    assert_eq!(served(&model, "web"), ["10.0.0.1:80"]);
    model.forget_former(count);
    assert!(model.is_due());
    model.refresh();
    assert_eq!(served(&model, "web"), [""; 0]);
}

#[test]
fn an_address_that_comes_back_begins_anew() {
    let mut model = with(&["10.0.0.1"]);
    model.tell(service("web", "2026-01-01T00:00:00Z", &[]));
    model.refresh();
    let first = model.former_addresses();
    model.tell(service("web", "2026-01-01T00:00:00Z", &["10.0.0.1"]));
    model.tell(service("web", "2026-01-01T00:00:00Z", &[]));
    model.forget_former(first);
    model.refresh();
    assert_eq!(served(&model, "web"), ["10.0.0.1:80"]);
}

#[test]
fn another_type_or_another_service_of_the_same_name_has_no_former_address() {
    for (change, value) in [("/spec/type", json!("ClusterIP")), ("/metadata/uid", json!("another"))] {
        let mut model = with(&["10.0.0.1"]);
        let mut next = service("web", "2026-01-01T00:00:00Z", &[]);
        *next.pointer_mut(change).unwrap() = value;
        model.tell(next);
        model.refresh();
        assert_eq!(served(&model, "web"), [""; 0], "{change}");
    }
}

#[test]
fn a_former_address_yields_to_a_service_that_has_it_now_whichever_is_told_first() {
    for is_first in [true, false] {
        let mut model = with(&["10.0.0.1"]);
        let take = service("other", "2026-02-01T00:00:00Z", &["10.0.0.1"]);
        if is_first {
            model.tell(take.clone());
        }
        model.tell(service("web", "2026-01-01T00:00:00Z", &[]));
        if !is_first {
            model.refresh();
            model.tell(take);
        }
        model.refresh();
        assert_eq!(served(&model, "web"), [""; 0], "{is_first}");
        assert_eq!(served(&model, "other"), ["10.0.0.1:80"], "{is_first}");
        assert_eq!(model.complaints().iter().filter(|line| line.contains("too;")).count(), 0);
    }
}

#[test]
fn only_the_port_that_another_service_has_now_is_given_up() {
    let two = |name: &str, created: &str, ingress: &[&str]| {
        let mut service = service(name, created, ingress);
        service["spec"]["ports"] = json!([{ "name": "a", "port": 80 }, { "name": "b", "port": 443 }]);
        service
    };
    let mut model = model();
    model.tell(node());
    model.set_devices(&["10.0.0.1"]);
    model.tell(two("web", "2026-01-01T00:00:00Z", &["10.0.0.1"]));
    model.refresh();
    model.tell(two("web", "2026-01-01T00:00:00Z", &[]));
    model.refresh();
    model.tell(service("other", "2026-02-01T00:00:00Z", &["10.0.0.1"]));
    model.refresh();
    let served = |name: &str| {
        let ports = model.desired().ports.iter().filter(|(key, _)| key.service.name == name);
        let frontends = ports.flat_map(|(_, port)| &port.frontends);
        let of_balancer = frontends.filter(|frontend| frontend.kind == FrontendKind::LoadBalancer);
        of_balancer.map(|frontend| frontend.address.to_string()).collect::<BTreeSet<String>>()
    };
    assert_eq!(served("web"), BTreeSet::from(["10.0.0.1:443".to_owned()]));
    assert_eq!(served("other"), BTreeSet::from(["10.0.0.1:80".to_owned()]));
}

#[test]
fn a_new_service_of_the_same_name_does_not_inherit_former_addresses() {
    let mut model = with(&["10.0.0.1"]);
    model.tell(service("web", "2026-01-01T00:00:00Z", &[]));
    model.refresh();
    let mut next = service("web", "2026-03-01T00:00:00Z", &[]);
    next["metadata"]["uid"] = json!("another");
    model.tell(next);
    model.refresh();
    assert_eq!(served(&model, "web"), [""; 0]);
}

#[test]
fn a_socket_gets_a_former_address_too() {
    let mut model = with(&["10.0.0.1"]);
    model.tell(service("web", "2026-01-01T00:00:00Z", &[]));
    model.refresh();
    assert!(model.has_own_addresses());
    model.set_listeners([Listener { protocol: Protocol::Tcp, address: "[::]:80".parse().unwrap() }].into());
    model.refresh();
    assert_eq!(served(&model, "web"), [""; 0]);
}

#[test]
fn an_address_that_only_a_device_has_is_a_load_balancers_unless_a_socket_has_exactly_it() {
    let listener = |address: &str| Listener { protocol: Protocol::Tcp, address: address.parse().unwrap() };
    let mut model = with(&["10.0.0.9"]);
    model.set_devices(&["10.0.0.1", "10.0.0.9"]);
    model.set_listeners([listener("0.0.0.0:80"), listener("10.0.0.1:80")].into());
    model.refresh();
    assert_eq!(served(&model, "web"), ["10.0.0.9:80"], "a VIP of kube-vip, and sshd at all addresses");
    model.set_listeners([listener("10.0.0.9:80")].into());
    model.refresh();
    assert_eq!(served(&model, "web"), [""; 0]);
}

#[test]
fn a_port_of_a_socket_of_this_node_is_not_a_load_balancers_here() {
    let listener = |address: &str| Listener { protocol: Protocol::Tcp, address: address.parse().unwrap() };
    let mut model = with(&["10.0.0.1", "10.0.0.2"]);
    assert!(model.has_own_addresses());
    model.set_listeners([listener("0.0.0.0:80"), listener("0.0.0.0:22")].into());
    model.refresh();
    // The other node's sockets are unknown here. Its agent knows them.
    assert_eq!(served(&model, "web"), ["10.0.0.2:80"]);
    let told: Vec<String> = model.complaints();
    let line = "spec.ports[0].port: a process of this node has 10.0.0.1:80 TCP; not served there";
    assert!(told.iter().any(|told| told == line), "{told:?}");
    model.set_listeners([listener("0.0.0.0:80"), listener("0.0.0.0:23")].into());
    assert!(!model.is_due(), "no Service has one of the ports that changed");
    model.set_listeners([listener("0.0.0.0:22")].into());
    model.refresh();
    assert_eq!(served(&model, "web"), ["10.0.0.1:80", "10.0.0.2:80"]);
}

#[test]
fn a_backend_in_the_nodes_network_is_no_foreign_socket() {
    let mut model = with(&["10.0.0.1"]);
    let slice = |port: u16| {
        json!({
            "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{ "port": port }],
            "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
            "endpoints": [{ "addresses": ["10.0.0.1"], "nodeName": "node-1" }],
        })
    };
    model.set_listeners([Listener { protocol: Protocol::Tcp, address: "[::]:80".parse().unwrap() }].into());
    model.tell(slice(8080));
    model.refresh();
    assert_eq!(served(&model, "web"), [""; 0]);
    model.tell(slice(80));
    model.refresh();
    assert_eq!(served(&model, "web"), ["10.0.0.1:80"]);
}

#[test]
fn without_a_service_at_its_addresses_a_node_asks_for_no_sockets() {
    let mut model = with(&["10.0.0.2"]);
    assert!(!model.has_own_addresses());
    model.tell(service("web", "2026-01-01T00:00:00Z", &["10.0.0.1"]));
    assert!(model.has_own_addresses());
}
