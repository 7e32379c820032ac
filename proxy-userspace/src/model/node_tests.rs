use serde_json::{Value, json};

use super::*;
use crate::model::{Dirty, FrontendKind, Model, testing};

fn node(name: &str, changes: &Value) -> Value {
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "a"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    });
    merge(&mut node, changes);
    node
}

fn merge(into: &mut Value, changes: &Value) {
    let (Some(into), Some(changes)) = (into.as_object_mut(), changes.as_object()) else { return };
    for (key, change) in changes {
        let inner = into.entry(key).or_insert(Value::Null);
        if inner.is_object() && change.is_object() { merge(inner, change) } else { *inner = change.clone() }
    }
}

/// Returns a model with a NodePort that knows its own Node.
fn model() -> Model {
    let mut model = testing::model();
    model.tell(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80, "nodePort": 30080}]},
    }));
    model.tell(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": [
            {"addresses": ["10.244.0.1"], "hints": {"forZones": [{"name": "a"}]}},
            {"addresses": ["10.244.0.2"], "hints": {"forZones": [{"name": "b"}]}},
        ],
    }));
    model.tell(node("node-1", &json!({})));
    model.refresh();
    model
}

#[test]
fn what_a_node_reports_of_itself_makes_nothing_dirty() {
    let mut model = model();
    for (name, changes) in [
        ("node-1", json!({"metadata": {"resourceVersion": "7", "annotations": {"a": "b"}}})),
        ("node-1", json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})),
        ("node-1", json!({"metadata": {"labels": {"other": "label"}}})),
        (
            "node-1",
            json!({"spec": {"unschedulable": true, "taints": [{"key": "other", "effect": "NoExecute"}]}}),
        ),
        (
            "node-1",
            json!({"status": {"addresses": [
                {"type": "Hostname", "address": "node-1"}, {"type": "InternalIP", "address": "192.0.2.1"},
            ]}}),
        ),
    ] {
        model.tell(node(name, &changes));
        assert!(model.pending.services.is_empty() && !model.pending.everything, "{changes}");
        assert_eq!(model.refresh(), Dirty::default(), "{changes}");
    }
    // Only the addresses of other Nodes matter.
    let other = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}]}});
    model.tell(node("node-2", &other));
    assert!(model.refresh().nodes);
    for changes in [
        json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}}),
    ] {
        let mut changed = other.clone();
        merge(&mut changed, &changes);
        model.tell(node("node-2", &changed));
        assert!(model.pending.services.is_empty() && !model.pending.everything, "{changes}");
        assert_eq!(model.refresh(), Dirty::default(), "{changes}");
    }
}

#[test]
fn the_own_node_says_whether_load_balancers_may_send_clients_here() {
    let taint = |key: &str| json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut both = deleted.clone();
    merge(&mut both, &taint("ToBeDeletedByClusterAutoscaler"));
    for (changes, eligibility) in [
        (taint("ToBeDeletedByClusterAutoscaler"), Eligibility::Tainted),
        (deleted, Eligibility::Deleted),
        (both, Eligibility::Deleted),
        (taint("DeletionCandidateOfClusterAutoscaler"), Eligibility::Eligible),
        (json!({}), Eligibility::Eligible),
    ] {
        let mut model = model();
        assert_eq!(model.desired().eligibility, Eligibility::Eligible);
        model.tell(node("node-1", &changes));
        let changed = eligibility != Eligibility::Eligible;
        assert_eq!(model.refresh(), Dirty { health: changed, ..Dirty::default() }, "{changes}");
        assert_eq!(model.desired().eligibility, eligibility, "{changes}");
        model.tell(node("node-1", &json!({})));
        assert_eq!(model.refresh().health, changed, "{changes}");
        model.forget(node("node-1", &json!({})));
        assert!(model.refresh().health);
        assert_eq!(model.desired().eligibility, Eligibility::Missing);
    }
}

#[test]
fn the_zone_and_the_addresses_of_the_own_node_take_effect_at_once() {
    let mut model = model();
    let listed = |model: &Model| {
        let port = model.port("web", Family::V4).unwrap();
        port.members(crate::model::List::Cluster).map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(listed(&model), ["10.244.0.1:8080"]);
    model.tell(node("node-1", &json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}})));
    assert_eq!(model.refresh().ports.len(), 1);
    assert_eq!(listed(&model), ["10.244.0.2:8080"]);
    model.tell(node("node-1", &json!({"metadata": {"labels": {"topology.kubernetes.io/zone": ""}}})));
    assert_eq!(model.refresh().ports.len(), 1);
    assert_eq!(listed(&model), ["10.244.0.1:8080", "10.244.0.2:8080"]);
    model.tell(node(
        "node-1",
        &json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}}),
    ));
    let dirty = model.refresh();
    assert!(dirty.nodes && dirty.ports.len() == 1);
    let sources = model.desired().cluster_sources.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(sources, ["192.0.2.7/32"]);
    assert_eq!(model.desired().own_sources, model.desired().cluster_sources);
    let frontends = &model.port("web", Family::V4).unwrap().frontends;
    let mut node_ports = frontends.iter().filter(|frontend| frontend.kind == FrontendKind::NodePort);
    let expected = ["192.0.2.7:30080", "127.0.0.1:30080"];
    assert!(node_ports.all(|frontend| expected.contains(&frontend.address.to_string().as_str())));
}

#[test]
fn a_node_goes_on_serving_as_before_when_its_object_is_gone_and_follows_the_next_one() {
    let mut model = model();
    let served = model.desired().clone();
    assert_eq!(served.ports.len(), 1);
    model.forget(node("node-1", &json!({})));
    assert_eq!(model.refresh(), Dirty { health: true, ..Dirty::default() });
    let missing = crate::model::Desired { eligibility: Eligibility::Missing, ..served.clone() };
    assert_eq!(*model.desired(), missing);
    assert_eq!(model.complaints(), [": it was deleted; its last addresses and zone stay in use"]);

    // A Service that is created now is served on the same address.
    model.tell(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "late"},
        "spec": {"type": "NodePort", "clusterIPs": ["10.96.0.2"], "ports": [{"port": 80, "nodePort": 30081}]},
    }));
    model.refresh();
    let late = &model.port("late", Family::V4).unwrap().frontends;
    assert!(late.iter().any(|frontend| frontend.address.to_string() == "192.0.2.1:30081"));
    let late = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "late"}});
    model.forget(late);
    model.refresh();

    model.tell(node("node-1", &json!({})));
    assert_eq!(model.refresh(), Dirty { health: true, ..Dirty::default() });
    assert_eq!(*model.desired(), served);
    assert_eq!(model.complaints(), Vec::<String>::new());
    model.forget(node("node-1", &json!({})));
    model.refresh();
    let moved = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}});
    model.tell(node("node-1", &moved));
    assert!(model.refresh().nodes);
    let nodes = &model.desired().nodes;
    assert_eq!(nodes["node-1"], ["192.0.2.7".parse().unwrap()].into());
    let sources = model.desired().cluster_sources.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(sources, ["192.0.2.7/32"], "the former address is no longer a node's");
}

#[test]
fn an_address_of_two_nodes_is_a_cluster_source_until_both_are_gone() {
    let mut settings = testing::settings();
    settings.cluster_ranges = ["10.244.1.1/16", "192.0.2.9/32"].map(|range| range.parse().unwrap()).into();
    let mut model = Model::new(settings);
    let sources = |model: &Model| {
        model.desired().cluster_sources.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(sources(&model), "10.244.0.0/16 192.0.2.9/32");
    let addresses = |addresses: &[(&str, &str)]| {
        let addresses = addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address}));
        json!({"status": {"addresses": addresses.collect::<Vec<_>>()}})
    };
    let both = addresses(&[("InternalIP", "192.0.2.1"), ("ExternalIP", "2001:db8::1"), ("InternalDNS", "n")]);
    for (name, addresses, expected) in [
        ("node-2", Some(both.clone()), "10.244.0.0/16 192.0.2.1/32 192.0.2.9/32 2001:db8::1/128"),
        (
            "node-3",
            Some(addresses(&[("InternalIP", "192.0.2.1")])),
            "10.244.0.0/16 192.0.2.1/32 192.0.2.9/32 2001:db8::1/128",
        ),
        ("node-2", None, "10.244.0.0/16 192.0.2.1/32 192.0.2.9/32"),
        ("node-3", Some(addresses(&[("InternalIP", "192.0.2.9")])), "10.244.0.0/16 192.0.2.9/32"),
        ("node-3", None, "10.244.0.0/16 192.0.2.9/32"),
    ] {
        match addresses {
            Some(addresses) => model.tell(node(name, &addresses)),
            None => model.forget(node(name, &json!({}))),
        }
        assert!(model.refresh().nodes, "{name} {expected}");
        assert_eq!(sources(&model), expected);
    }
}

#[test]
fn the_primary_address_is_the_first_internal_one_or_else_the_first_external_one() {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let spec = |internal: &[&str], external: &[&str]| NodeSpec {
        internal: internal.iter().copied().map(address).collect(),
        external: external.iter().copied().map(address).collect(),
        ..NodeSpec::default()
    };
    for (internal, external, v4, v6) in [
        (&["192.0.2.1", "192.0.2.2"][..], &[][..], Some("192.0.2.1"), None),
        (&["192.0.2.1"], &["203.0.113.1", "2001:db8::1"], Some("192.0.2.1"), Some("2001:db8::1")),
        (&[], &["203.0.113.1"], Some("203.0.113.1"), None),
        (&["2001:db8::2", "192.0.2.2"], &["192.0.2.1"], Some("192.0.2.2"), Some("2001:db8::2")),
        (&[], &[], None, None),
    ] {
        let spec = spec(internal, external);
        assert_eq!(spec.primary(Family::V4), v4.map(address), "{internal:?} {external:?}");
        assert_eq!(spec.primary(Family::V6), v6.map(address), "{internal:?} {external:?}");
    }
}
