use serde_json::{Value, json};

use crate::model::{Model, plain_line, testing};

/// Returns a Service with a problem of its own, another Service's node port and another one's
/// health check port.
fn service(uid: &str, changes: &[(&str, Value)]) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "uid": uid},
        "spec": {
            "type": "LoadBalancer", "clusterIPs": ["10.96.0.1"], "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000, "externalIPs": ["203.0.113.1"],
            "ports": [{"port": 80, "nodePort": 30080}],
        },
    });
    for (field, value) in changes {
        service["spec"][field] = value.clone();
    }
    service
}

fn model() -> Model {
    let mut model = testing::model();
    model.tell(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    }));
    let mut older = service("older", &[("clusterIPs", json!(["10.96.0.2"])), ("externalIPs", json!([]))]);
    older["metadata"] = json!({"name": "api", "uid": "older", "creationTimestamp": "2026-01-01T00:00:00Z"});
    model.tell(older);
    model.tell(service("first", &[]));
    model
}

/// Returns the new problems of the Service, by field.
fn told(model: &mut Model) -> Vec<String> {
    model.refresh();
    let problems = model.take_problems().into_iter();
    let of_web =
        problems.filter(|problem| problem.object.as_ref().is_some_and(|object| object.name == "web"));
    of_web.map(|problem| problem.field).collect()
}

const WRONG: [&str; 4] = ["", "spec.externalIPs[0]", "spec.healthCheckNodePort", "spec.ports[0].nodePort"];

#[test]
fn what_is_wrong_with_a_service_is_told_again_of_another_one_of_its_name() {
    let mut model = model();
    assert_eq!(told(&mut model), WRONG);
    model.tell(service("first", &[]));
    assert_eq!(told(&mut model), [""; 0], "it is the same");
    model.tell(service("first", &[("sessionAffinity", json!("ClientIP"))]));
    assert_eq!(told(&mut model), [""; 0], "the same is wrong with its new version");
    // A new Service of the same name: without a deletion, as in a new listing, and after one, as in
    // a watch.
    model.tell(service("second", &[]));
    assert_eq!(told(&mut model), WRONG);
    model.forget(service("second", &[]));
    model.tell(service("third", &[]));
    assert_eq!(told(&mut model), WRONG);
    model.tell(service("third", &[]));
    assert_eq!(told(&mut model), [""; 0]);
}

#[test]
fn what_was_wrong_with_a_service_is_not_told_of_one_that_is_right_or_gone() {
    let mut model = model();
    told(&mut model);
    model.tell(service("second", &[("externalIPs", json!(["198.51.100.1"]))]));
    assert_eq!(told(&mut model), ["", "spec.healthCheckNodePort", "spec.ports[0].nodePort"]);
    model.forget(service("second", &[]));
    assert_eq!(told(&mut model), [""; 0]);
}

#[test]
fn a_service_that_is_not_served_at_all_is_told_of_again_too() {
    let mut model = testing::model();
    let odd = |uid| service(uid, &[("type", json!("Odd"))]);
    for uid in ["first", "second"] {
        model.tell(odd(uid));
        assert_eq!(told(&mut model), ["spec.type"], "{uid}");
    }
}

#[test]
fn a_name_with_control_characters_forges_no_line() {
    let forged = plain_line("a\nINFO all is well\u{1b}[2J\t\u{85}");
    assert_eq!(forged, "a INFO all is well\\u{1b}[2J\\t\\u{85}");
    assert!(matches!(plain_line("Größe: 70000"), std::borrow::Cow::Borrowed(_)));
}
