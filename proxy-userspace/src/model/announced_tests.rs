use serde_json::{Value, json};

use crate::model::testing::settings;
use crate::model::{Candidates, Model, ModelSettings};

fn node(name: &str, address: &str, metadata: &Value) -> Value {
    let mut node = json!({
        "kind": "Node", "metadata": metadata,
        "status": { "addresses": [{ "type": "InternalIP", "address": address }] },
    });
    node["metadata"]["name"] = json!(name);
    node
}

fn service(name: &str, ingress: &str, spec: &Value) -> Value {
    let mut service = json!({
        "kind": "Service", "metadata": { "name": name, "uid": name },
        "spec": { "type": "LoadBalancer", "clusterIP": format!("10.96.0.{}", name.len()), "ports": [{ "port": 80 }] },
        "status": { "loadBalancer": { "ingress": [{ "ip": ingress }] } },
    });
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    service
}

/// A slice of a Service with an endpoint on each node; the conditions are ready, serving and terminating.
fn slice(name: &str, endpoints: &[(&str, [bool; 3])]) -> Value {
    let endpoints = endpoints.iter().enumerate().map(|(n, (node, [ready, serving, terminating]))| {
        json!({
            "addresses": [format!("10.244.0.{n}")], "nodeName": node,
            "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
        })
    });
    json!({
        "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{ "port": 8080 }],
        "metadata": { "name": format!("{name}-1"), "labels": { "kubernetes.io/service-name": name } },
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}

const READY: [bool; 3] = [true, true, false];
const ENDS: [bool; 3] = [false, true, true];

/// Returns a model of node-1 of two nodes that announces 203.0.113.0/24 and 10.0.0.0/24.
fn with(objects: &[Value]) -> Model {
    let ranges = ["203.0.113.0/24", "10.0.0.0/24"].map(|range| range.parse().unwrap());
    let mut model = Model::new(ModelSettings { announced_ranges: ranges.into(), ..settings() });
    model.tell(node("node-1", "10.0.0.1", &json!({})));
    model.tell(node("node-2", "10.0.0.2", &json!({})));
    for object in objects {
        model.tell(object.clone());
    }
    model.refresh();
    model
}

/// Returns a line for each announced address.
fn announced(model: &Model) -> Vec<String> {
    let line = |candidates: &Candidates| match candidates {
        Candidates::All => "all".to_owned(),
        Candidates::Only(nodes) => nodes.iter().map(|node| &**node).collect::<Vec<_>>().join(","),
    };
    model.desired().announced.iter().map(|(address, nodes)| format!("{address} {}", line(nodes))).collect()
}

fn local() -> Value {
    json!({ "externalTrafficPolicy": "Local" })
}

#[test]
fn addresses_of_load_balancers_and_external_ips_inside_the_ranges_are_announced() {
    let mut silent = service("silent", "203.0.113.8", &json!({}));
    silent["metadata"]["annotations"] = json!({ "millrace.dev/announce": "none" });
    let model = with(&[
        service("web", "203.0.113.7", &json!({})),
        service("other", "198.51.100.7", &json!({})),
        // A node's own kernel answers for this one.
        service("of-node", "10.0.0.2", &json!({})),
        service("by-name", "10.0.0.77", &json!({ "externalIPs": ["192.0.2.9"] })),
        silent,
    ]);
    assert_eq!(announced(&model), ["10.0.0.77 all", "203.0.113.7 all"]);
}

#[test]
fn with_policy_local_only_nodes_with_endpoints_are_candidates() {
    let web = service("web", "203.0.113.7", &local());
    for (endpoints, expected) in [
        (vec![("node-1", READY), ("node-2", READY)], "203.0.113.7 node-1,node-2"),
        (vec![("node-1", ENDS), ("node-2", READY)], "203.0.113.7 node-2"),
        (vec![("node-1", ENDS)], "203.0.113.7 node-1"),
        (vec![("node-1", [false; 3])], "203.0.113.7 "),
    ] {
        let model = with(&[web.clone(), slice("web", &endpoints)]);
        assert_eq!(announced(&model), [expected], "{endpoints:?}");
    }
}

#[test]
fn a_node_that_serves_all_services_of_a_shared_address_is_preferred() {
    let objects = |of_b: &str| {
        let port = json!({ "externalTrafficPolicy": "Local", "ports": [{ "port": 81 }] });
        let cluster = json!({ "ports": [{ "port": 82 }] });
        [
            service("a", "203.0.113.7", &local()),
            service("bb", "203.0.113.7", &port),
            service("ccc", "203.0.113.7", &cluster),
            slice("a", &[("node-1", READY), ("node-2", READY)]),
            slice("bb", &[(of_b, READY)]),
        ]
    };
    assert_eq!(announced(&with(&objects("node-2"))), ["203.0.113.7 node-2"]);
    // No node serves both: one that serves some of them must do.
    assert_eq!(announced(&with(&objects("node-3"))), ["203.0.113.7 node-1,node-2,node-3"]);
}

#[test]
fn a_node_that_is_to_get_no_clients_announces_nothing() {
    let web = service("web", "203.0.113.7", &json!({}));
    let mut model = with(&[web]);
    assert_eq!(announced(&model).len(), 1);
    for metadata in [
        json!({ "labels": { "node.kubernetes.io/exclude-from-external-load-balancers": "" } }),
        json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }),
    ] {
        model.tell(node("node-1", "10.0.0.1", &metadata));
        model.refresh();
        assert_eq!(announced(&model), [""; 0], "{metadata}");
    }
    model.tell(node("node-1", "10.0.0.1", &json!({})));
    model.refresh();
    assert_eq!(announced(&model).len(), 1);
}
