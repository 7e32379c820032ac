//! The agent's own Node changes, without a restart of the agent.

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::traffic::get_status;
use serde_json::{Value, json};

use crate::fixture::{shared, wait_for_line};
use crate::scene::Scene;

const ZONE: &str = "topology.kubernetes.io/zone";

fn patch_node(cluster: &Cluster, node: u8, patch: Value) -> Result<()> {
    cluster.api_server()?.kube().patch("v1", "Node", "", &format!("node{node}"), patch)
}

#[test]
fn a_zone_label_that_changes_changes_the_choice_of_endpoints() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "zones")?;
    scene.service("web", json!({"clusterIP": "10.96.3.1", "ports": [{"port": 80}]}), json!({}))?;
    let hinted = |address: &str, node: &str, zone: &str| json!({"addresses": [address], "nodeName": node, "hints": {"forZones": [{"name": zone}]}});
    let endpoints = json!([hinted("10.244.1.10", "node3", "a"), hinted("10.244.2.10", "node3", "b")]);
    scene.slice("web-1", "web", 8080, endpoints)?;
    let line = |backends: &str| format!("web IPv4 Cluster [ClusterIP 10.96.3.1:80 TCP] -> {backends}");
    for (zone, backends) in [
        (json!("a"), "10.244.1.10:8080"),
        (json!("b"), "10.244.2.10:8080"),
        (json!("c"), "10.244.1.10:8080 10.244.2.10:8080"),
        (json!("a"), "10.244.1.10:8080"),
        (json!(null), "10.244.1.10:8080 10.244.2.10:8080"),
    ] {
        patch_node(&cluster, 1, json!({"metadata": {"labels": {ZONE: zone}}}))?;
        scene.expect(1, &[&line(backends)])?;
        // The label of another node has no effect.
        scene.expect(2, &[&line("10.244.1.10:8080 10.244.2.10:8080")])?;
    }
    Ok(())
}

#[test]
fn node_ports_follow_the_addresses_of_the_node() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "addresses")?;
    let spec = json!({
        "type": "NodePort",
        "clusterIP": "10.96.3.2",
        "ports": [{"port": 80, "nodePort": 30302}],
    });
    scene.service("web", spec, json!({}))?;
    let line = |address: &str| {
        format!("web IPv4 Cluster [ClusterIP 10.96.3.2:80 TCP] [NodePort {address}:30302 TCP] -> none")
    };
    let own = cluster.bed().node(1)?.addresses().both();
    for first in ["172.30.0.11", "172.30.0.111", "172.30.0.11"] {
        let addresses = json!([
            {"type": "InternalIP", "address": first},
            {"type": "InternalIP", "address": own[1]},
        ]);
        cluster.api_server()?.kube().put(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node1"},
            // The API server does not let them change.
            "spec": {"podCIDRs": cluster.bed().node(1)?.pod_ranges()},
            "status": {"addresses": addresses},
        }))?;
        scene.expect(1, &[&line(first)])?;
        scene.expect(2, &[&line("172.30.0.12")])?;
    }
    Ok(())
}

#[test]
fn a_node_that_the_autoscaler_is_about_to_delete_gets_no_new_traffic() -> Result<()> {
    let cluster = shared();
    let healthy = |path: &'static str, wanted: u16| -> Result<()> {
        let proxy = cluster.proxy(1)?;
        proxy.wait_until(&format!("{path} answers {wanted}"), || {
            let status =
                proxy.namespace().run(async move || get_status("127.0.0.1:10256".parse()?, path).await)?;
            Ok(status == wanted)
        })
    };
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    let read = cluster.proxy(1)?.log().len();
    for (taints, status) in [(json!([]), 200), (taint, 503), (json!([]), 200)] {
        patch_node(&cluster, 1, json!({"spec": {"taints": taints}}))?;
        healthy("/healthz", status)?;
        healthy("/livez", 200)?;
        // The node serves, and must go on until it is deleted.
        healthy("/readyz", 200)?;
    }
    for word in ["autoscaler", "the Node exists and stays"] {
        wait_for_line(&cluster, 1, read, &["node=\"node1\"", word])?;
        let log = cluster.proxy(1)?.log();
        assert_eq!(log[read..].lines().filter(|line| line.contains(word)).count(), 1, "{word}");
    }
    Ok(())
}
