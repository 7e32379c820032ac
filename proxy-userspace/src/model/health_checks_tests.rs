use serde_json::{Value, json};

use super::*;
use crate::model::testing::model;

fn service(name: &str, spec: &Value) -> Value {
    let mut full = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
        "clusterIPs": ["10.96.0.1", "2001:db8:c::1"], "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}],
    });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": full})
}

fn slice(name: &str, ports: &[&str], endpoints: &Value) -> Value {
    let ports: Vec<_> = ports.iter().map(|name| json!({"name": name, "port": 8080})).collect();
    let first = endpoints[0]["addresses"][0].as_str().unwrap_or_default();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": if first.contains(':') { "IPv6" } else { "IPv4" },
        "ports": ports, "endpoints": endpoints,
    })
}

/// Returns ports and counts by Service name.
fn checks(model: &Model) -> Vec<(&str, u16, usize)> {
    let checks = model.desired().health_checks.iter();
    checks.map(|(key, check)| (key.name.as_str(), check.port, check.local_endpoints)).collect()
}

#[test]
fn only_load_balancers_with_a_local_policy_have_a_health_check() {
    for (spec, port) in [
        (json!({}), Some(32000)),
        (json!({"healthCheckNodePort": 0}), None),
        (json!({"healthCheckNodePort": null}), None),
        (json!({"healthCheckNodePort": 70000}), None),
        (json!({"externalTrafficPolicy": "Cluster"}), None),
        (json!({"externalTrafficPolicy": null}), None),
        (json!({"type": "NodePort"}), None),
        (json!({"type": "ClusterIP", "externalIPs": ["198.51.100.1"]}), None),
        (json!({"clusterIPs": ["None"]}), None),
        (json!({"internalTrafficPolicy": "Local"}), Some(32000)),
    ] {
        let mut model = model();
        model.tell(service("web", &spec));
        assert_eq!(model.refresh().health, port.is_some(), "{spec}");
        let expected: Vec<_> = port.map(|port| ("web", port, 0)).into_iter().collect();
        assert_eq!(checks(&model), expected, "{spec}");
    }
}

#[test]
fn ready_endpoints_of_this_node_count_once_an_address() {
    let here = |address: &str, conditions: Value| json!({"addresses": [address], "nodeName": "node-1", "conditions": conditions});
    let there = json!({"addresses": ["10.0.0.9"], "nodeName": "node-2"});
    for (endpoints, count) in [
        (json!([]), 0),
        (json!([here("10.0.0.1", json!({}))]), 1),
        (json!([here("10.0.0.1", json!({})), here("10.0.0.1", json!({}))]), 1),
        (json!([here("10.0.0.1", json!({})), here("10.0.0.2", json!({})), there]), 2),
        (json!([there, json!({"addresses": ["10.0.0.9"]})]), 0),
        (json!([here("10.0.0.1", json!({"ready": false, "serving": true}))]), 0),
        (json!([here("10.0.0.1", json!({"ready": false, "serving": true, "terminating": true}))]), 0),
        (json!([here("10.0.0.1", json!({"ready": true, "terminating": true}))]), 1),
    ] {
        let mut model = model();
        model.tell(service("web", &json!({})));
        model.tell(slice("v4", &["a", "b"], &endpoints));
        model.refresh();
        assert_eq!(checks(&model), [("web", 32000, count)], "{endpoints}");
        // An address counts once with all its ports. An address of another family counts, too.
        model.tell(slice("again", &["b"], &endpoints));
        model.tell(slice("v6", &["a"], &json!([here("2001:db8::1", json!({}))])));
        model.refresh();
        assert_eq!(checks(&model), [("web", 32000, count + 1)], "{endpoints}");
    }
}

#[test]
fn a_health_check_is_named_dirty_when_its_count_or_port_changes_and_at_no_other_time() {
    let endpoints = |ready: &[bool]| {
        let endpoints = ready.iter().enumerate().map(|(index, ready)| {
            let address = format!("10.0.0.{index}");
            json!({"addresses": [address], "nodeName": "node-1", "conditions": {"ready": ready}})
        });
        Value::Array(endpoints.collect())
    };
    let mut model = model();
    model.tell(service("web", &json!({})));
    model.tell(slice("v4", &["a"], &endpoints(&[true, false])));
    assert!(model.refresh().health);
    model.tell(slice("v4", &["a"], &endpoints(&[false, true])));
    let dirty = model.refresh();
    assert!(!dirty.health && !dirty.ports.is_empty());
    model.tell(slice("v4", &["a"], &endpoints(&[true, true])));
    assert!(model.refresh().health);
    model.tell(service("web", &json!({"healthCheckNodePort": 32001})));
    let dirty = model.refresh();
    assert!(dirty.health && dirty.ports.is_empty());
    assert_eq!(checks(&model), [("web", 32001, 2)]);
    model.forget(service("web", &json!({})));
    assert!(model.refresh().health);
    assert_eq!(checks(&model), []);
}

#[test]
fn of_two_services_with_one_port_the_older_answers_until_it_is_gone() {
    let aged = |name: &str, ip: &str, created: Value| {
        let mut service = service(name, &json!({"clusterIPs": [ip]}));
        service["metadata"]["creationTimestamp"] = created;
        service
    };
    let young = aged("a", "10.96.0.1", json!("2026-02-01T00:00:00Z"));
    let old = aged("b", "10.96.0.2", json!("2026-01-01T00:00:00Z"));
    let ageless = aged("c", "10.96.0.3", Value::Null);
    for order in [[&young, &old, &ageless], [&ageless, &old, &young], [&old, &young, &ageless]] {
        let mut model = model();
        for service in order {
            model.tell(service.clone());
            model.refresh();
        }
        assert_eq!(checks(&model), [("b", 32000, 0)]);
        let rule = "the older one has it, or the first by name; this node does not answer it";
        let complaint = |winner: &str| {
            format!("spec.healthCheckNodePort: 32000 is Service default/{winner}'s too; {rule}")
        };
        let of = |model: &Model, winner: &str| {
            model.complaints().iter().filter(|text| **text == complaint(winner)).count()
        };
        assert_eq!(of(&model, "b"), 2);
        model.forget(old.clone());
        assert!(model.refresh().health);
        assert_eq!(checks(&model), [("a", 32000, 0)]);
        assert_eq!((of(&model, "a"), of(&model, "b")), (1, 0));
        model.forget(young.clone());
        model.refresh();
        assert_eq!(checks(&model), [("c", 32000, 0)]);
        assert_eq!((of(&model, "a"), of(&model, "b")), (0, 0));
    }
}
