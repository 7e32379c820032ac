//! The serving endpoints while EndpointSlices change.

use anyhow::Result;
use millrace_lab::agent::BackendView;
use millrace_lab::cluster::Cluster;
use serde_json::{Value, json};

use crate::fixture::shared;
use crate::scene::Scene;

/// A ClusterIP Service `web` with one unnamed port.
fn web(scene: &Scene<'_>, address: &str, more: &Value) -> Result<()> {
    let mut spec = json!({"clusterIP": address, "ports": [{"port": 80}]});
    for (name, field) in more.as_object().into_iter().flatten() {
        spec[name] = field.clone();
    }
    scene.service("web", spec, json!({}))
}

fn endpoint(address: &str, node: &str, conditions: Value) -> Value {
    json!({"addresses": [address], "nodeName": node, "conditions": conditions})
}

#[test]
fn conditions_decide_who_serves_and_draining_endpoints_serve_last() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "conditions")?;
    web(&scene, "10.96.2.1", &json!({}))?;
    let ready = json!({"ready": true});
    let unready = json!({"ready": false, "serving": false});
    let draining = json!({"ready": false, "serving": true, "terminating": true});
    let dead = json!({"ready": false, "serving": false, "terminating": true});
    let line = |backends: &str| format!("web IPv4 Cluster [ClusterIP 10.96.2.1:80 TCP] -> {backends}");
    for (conditions, backends) in [
        ([json!({}), ready.clone()], "10.244.1.10:8080 10.244.2.10:8080"),
        ([unready.clone(), ready.clone()], "10.244.2.10:8080"),
        ([draining.clone(), ready], "10.244.2.10:8080"),
        ([draining, unready.clone()], "10.244.1.10:8080"),
        ([dead, unready], "none"),
    ] {
        let [first, second] = conditions;
        let endpoints =
            json!([endpoint("10.244.1.10", "node1", first), endpoint("10.244.2.10", "node2", second)]);
        scene.slice("web-1", "web", 8080, endpoints)?;
        scene.expect_everywhere(&[&line(backends)])?;
    }
    scene.delete_slice("web-1")?;
    scene.expect_everywhere(&[&line("none")])
}

#[test]
fn policy_local_of_either_kind_keeps_to_the_nodes_own_endpoints() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "policies")?;
    let policies = json!({
        "type": "NodePort",
        "internalTrafficPolicy": "Local",
        "externalTrafficPolicy": "Local",
        "ports": [{"port": 80, "nodePort": 30202}],
    });
    web(&scene, "10.96.2.2", &policies)?;
    let line = |node: u8, backends: &str| {
        format!(
            "web IPv4 Local [ClusterIP 10.96.2.2:80 TCP] [NodePort 172.30.0.1{node}:30202 TCP] -> {backends}"
        )
    };
    scene.slice("web-1", "web", 8080, json!([endpoint("10.244.1.10", "node1", json!({}))]))?;
    scene.expect(1, &[&line(1, "10.244.1.10:8080")])?;
    scene.expect(2, &[&line(2, "none here")])?;

    // A draining endpoint of this node is better than none, whatever other nodes have.
    let draining = json!({"ready": false, "serving": true, "terminating": true});
    let endpoints =
        json!([endpoint("10.244.1.10", "node1", draining), endpoint("10.244.2.10", "node2", json!({}))]);
    scene.slice("web-1", "web", 8080, endpoints)?;
    scene.expect(1, &[&line(1, "10.244.1.10:8080")])?;
    scene.expect(2, &[&line(2, "10.244.2.10:8080")])
}

#[test]
fn hints_by_node_and_by_zone_are_taken_where_every_endpoint_has_one() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "hints")?;
    web(&scene, "10.96.2.3", &json!({}))?;
    let hinted = |address: &str, node: &str, hints: Value| json!({"addresses": [address], "nodeName": node, "hints": hints});
    let line = |backends: &str| format!("web IPv4 Cluster [ClusterIP 10.96.2.3:80 TCP] -> {backends}");
    let for_node = |name: &str| json!({"forNodes": [{"name": name}], "forZones": [{"name": "z"}]});
    let endpoints = json!([
        hinted("10.244.1.10", "node1", for_node("node1")),
        hinted("10.244.2.10", "node2", for_node("node2")),
    ]);
    scene.slice("web-1", "web", 8080, endpoints)?;
    scene.expect(1, &[&line("10.244.1.10:8080")])?;
    scene.expect(2, &[&line("10.244.2.10:8080")])?;

    let endpoints = json!([
        hinted("10.244.1.10", "node1", for_node("node1")),
        hinted("10.244.2.10", "node2", json!(null)),
    ]);
    scene.slice("web-1", "web", 8080, endpoints)?;
    scene.expect_everywhere(&[&line("10.244.1.10:8080 10.244.2.10:8080")])
}

#[test]
fn named_ports_differ_between_slices_and_are_found_by_name() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "names")?;
    let ports = json!([
        {"name": "admin", "port": 81, "targetPort": "admin"},
        {"name": "http", "port": 80, "targetPort": "http"},
    ]);
    scene.service("web", json!({"clusterIP": "10.96.2.4", "ports": ports}), json!({}))?;
    let slice = |address: &str, http: u16, admin: u16| {
        json!({
            "ports": [{"name": "http", "port": http}, {"name": "admin", "port": admin}],
            "endpoints": [{"addresses": [address], "nodeName": "node1"}],
        })
    };
    scene.slice_with("web-old", "web", slice("10.244.1.10", 8080, 9080))?;
    scene.slice_with("web-new", "web", slice("10.244.1.11", 8081, 9081))?;
    scene.expect_everywhere(&[
        "web:admin IPv4 Cluster [ClusterIP 10.96.2.4:81 TCP] -> 10.244.1.10:9080 10.244.1.11:9081",
        "web:http IPv4 Cluster [ClusterIP 10.96.2.4:80 TCP] -> 10.244.1.10:8080 10.244.1.11:8081",
    ])?;
    scene.delete_slice("web-old")?;
    scene.expect_everywhere(&[
        "web:admin IPv4 Cluster [ClusterIP 10.96.2.4:81 TCP] -> 10.244.1.11:9081",
        "web:http IPv4 Cluster [ClusterIP 10.96.2.4:80 TCP] -> 10.244.1.11:8081",
    ])
}

#[test]
fn an_endpoint_that_moves_to_another_slice_stays_the_same_backend() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "moved")?;
    web(&scene, "10.96.2.5", &json!({}))?;
    let line = "web IPv4 Cluster [ClusterIP 10.96.2.5:80 TCP] -> 10.244.1.10:8085 10.244.1.11:8085";
    let [first, second] = ["10.244.1.10", "10.244.1.11"].map(|address| endpoint(address, "node1", json!({})));
    scene.slice("web-1", "web", 8085, json!([first, second]))?;
    scene.expect_everywhere(&[line])?;
    let before = backend(&cluster, "10.244.1.10:8085")?;
    // The endpoint is in no slice for a moment, as with the real controller.
    scene.slice("web-1", "web", 8085, json!([second]))?;
    scene.slice("web-2", "web", 8085, json!([first]))?;
    scene.expect_everywhere(&[line])?;
    assert_eq!(before, backend(&cluster, "10.244.1.10:8085")?);
    // An endpoint in two slices still counts once.
    scene.slice("web-1", "web", 8085, json!([first, second]))?;
    scene.slice("web-3", "web", 8085, json!([endpoint("10.244.1.12", "node1", json!({}))]))?;
    scene.expect_everywhere(&[&format!("{line} 10.244.1.12:8085")])
}

fn backend(cluster: &Cluster, address: &str) -> Result<BackendView> {
    let address = address.parse()?;
    let backends = cluster.proxy(1)?.backends()?;
    Ok(backends.into_iter().find(|backend| backend.address == address).expect("it serves"))
}

#[test]
fn slices_of_names_and_ports_without_a_number_bring_no_endpoint() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "useless")?;
    web(&scene, "10.96.2.6", &json!({}))?;
    let names = json!({
        "addressType": "FQDN",
        "ports": [{"port": 8080}],
        "endpoints": [{"addresses": ["pod.example"]}],
    });
    scene.slice_with("web-names", "web", names)?;
    let numberless = json!({"ports": [{"name": ""}], "endpoints": [{"addresses": ["10.244.1.10"]}]});
    scene.slice_with("web-numberless", "web", numberless)?;
    scene.slice("web-useful", "web", 8080, json!([endpoint("10.244.1.11", "node1", json!({}))]))?;
    scene.expect_everywhere(&["web IPv4 Cluster [ClusterIP 10.96.2.6:80 TCP] -> 10.244.1.11:8080"])
}

#[test]
fn slices_that_come_before_their_service_are_not_lost() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "early")?;
    scene.slice("web-1", "web", 8080, json!([endpoint("10.244.1.10", "node1", json!({}))]))?;
    web(&scene, "10.96.2.7", &json!({}))?;
    let line = "web IPv4 Cluster [ClusterIP 10.96.2.7:80 TCP] -> 10.244.1.10:8080";
    scene.expect_everywhere(&[line])?;
    scene.delete_service("web")?;
    scene.expect_everywhere(&[])?;
    web(&scene, "10.96.2.7", &json!({}))?;
    scene.expect_everywhere(&[line])
}
