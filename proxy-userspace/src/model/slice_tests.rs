use serde_json::{Value, json};

use crate::model::testing::model;
use crate::model::{Family, List, Model};

fn service(spec: &Value) -> Value {
    let mut full =
        json!({"clusterIPs": ["10.96.0.1", "2001:db8:c::1"], "ports": [{"port": 80, "targetPort": "http"}]});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": full})
}

fn slice(name: &str, family: &str, port: &Value, endpoints: &Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": family, "ports": [{"port": port}], "endpoints": endpoints,
    })
}

/// Returns the endpoints in any condition, and those in the Cluster list.
fn endpoints(model: &mut Model, family: Family) -> (Vec<String>, Vec<String>) {
    model.refresh();
    let port = model.port("web", family).unwrap();
    let text = |address: &std::net::SocketAddr| address.to_string();
    (port.endpoints.keys().map(text).collect(), port.members(List::Cluster).map(text).collect())
}

#[test]
fn conditions_that_are_not_set_mean_ready_and_serving_and_not_terminating() {
    for (conditions, [ready, serving, terminating]) in [
        (json!(null), [true, true, false]),
        (json!({}), [true, true, false]),
        (json!({"ready": null, "serving": null, "terminating": null}), [true, true, false]),
        (json!({"ready": false}), [false, true, false]),
        (json!({"serving": false}), [true, false, false]),
        (json!({"terminating": true}), [true, true, true]),
    ] {
        let mut model = model();
        model.tell(service(&json!({})));
        let endpoint = json!({"addresses": ["10.0.0.1"], "conditions": conditions});
        model.tell(slice("a", "IPv4", &json!(8080), &json!([endpoint])));
        model.refresh();
        let port = model.port("web", Family::V4).unwrap();
        let one = port.endpoints.values().next().unwrap();
        assert_eq!([one.ready, one.serving, one.terminating], [ready, serving, terminating], "{conditions}");
    }
}

#[test]
fn what_is_no_endpoint_is_passed_over_and_the_rest_is_served() {
    for (family, port, endpoint, complaint) in [
        ("IPv4", json!(8080), json!({"addresses": ["2001:db8::1"]}), Some("is not an IPv4 address")),
        ("IPv6", json!(8080), json!({"addresses": ["10.0.0.1"]}), Some("is not an IPv6 address")),
        ("IPv4", json!(8080), json!({"addresses": ["web"]}), Some("is not an IP address")),
        ("IPv4", json!(8080), json!({"addresses": []}), Some("is not an IP address")),
        ("IPv4", json!(8080), json!({"addresses": ["127.0.0.1"]}), Some("is not accepted")),
        ("IPv4", json!(null), json!({"addresses": ["10.0.0.1"]}), None),
        ("IPv4", json!(0), json!({"addresses": ["10.0.0.1"]}), None),
        ("IPv4", json!(70000), json!({"addresses": ["10.0.0.1"]}), Some("is not a port")),
        ("FQDN", json!(8080), json!({"addresses": ["web.example.org"]}), None),
        ("Other", json!(8080), json!({"addresses": ["10.0.0.1"]}), Some("takes IPv4, IPv6 or FQDN")),
    ] {
        let mut model = model();
        model.tell(service(&json!({})));
        model.tell(slice("a", family, &port, &json!([endpoint])));
        model.tell(slice("b", "IPv4", &json!(8080), &json!([{"addresses": ["10.0.0.9", "10.0.0.10"]}])));
        let expected = vec!["10.0.0.9:8080".to_owned()];
        assert_eq!(endpoints(&mut model, Family::V4), (expected.clone(), expected), "{endpoint}");
        assert_eq!(endpoints(&mut model, Family::V6), (Vec::new(), Vec::new()), "{endpoint}");
        let complaints = model.complaints();
        match complaint {
            Some(complaint) => {
                assert!(complaints.len() == 1 && complaints[0].contains(complaint), "{complaints:?}");
            }
            None => assert_eq!(complaints, [""; 0], "{endpoint}"),
        }
    }
}

#[test]
fn a_named_target_port_is_what_each_slice_says_it_is() {
    let mut model = model();
    model.tell(service(&json!({})));
    let one = |address: &str| json!([{"addresses": [address]}]);
    model.tell(slice("a", "IPv4", &json!(8080), &one("10.0.0.1")));
    model.tell(slice("b", "IPv4", &json!(9090), &one("10.0.0.2")));
    model.tell(slice("c", "IPv6", &json!(7070), &one("2001:db8::3")));
    let v4 = vec!["10.0.0.1:8080".to_owned(), "10.0.0.2:9090".to_owned()];
    assert_eq!(endpoints(&mut model, Family::V4), (v4.clone(), v4));
    let v6 = vec!["[2001:db8::3]:7070".to_owned()];
    assert_eq!(endpoints(&mut model, Family::V6), (v6.clone(), v6));
    // The pods were replaced: the port's name now has another number.
    model.tell(slice("a", "IPv4", &json!(9090), &one("10.0.0.1")));
    let v4 = vec!["10.0.0.1:9090".to_owned(), "10.0.0.2:9090".to_owned()];
    assert_eq!(endpoints(&mut model, Family::V4), (v4.clone(), v4));
}

#[test]
fn each_family_is_judged_by_itself() {
    let mut model = model();
    model.tell(service(&json!({})));
    model.tell(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node-1", "labels": {"topology.kubernetes.io/zone": "a"}},
    }));
    let hinted =
        |address: &str, zone: &str| json!({"addresses": [address], "hints": {"forZones": [{"name": zone}]}});
    model.tell(slice("a", "IPv4", &json!(80), &json!([hinted("10.0.0.1", "a"), hinted("10.0.0.2", "b")])));
    let unhinted = json!({"addresses": ["2001:db8::2"]});
    model.tell(slice("b", "IPv6", &json!(80), &json!([hinted("2001:db8::1", "a"), unhinted])));
    assert_eq!(endpoints(&mut model, Family::V4).1, ["10.0.0.1:80"]);
    assert_eq!(endpoints(&mut model, Family::V6).1, ["[2001:db8::1]:80", "[2001:db8::2]:80"]);
}

#[test]
fn a_change_of_one_services_slice_computes_that_service_only() {
    let mut model = model();
    for number in 0..3 {
        let mut other = service(&json!({"clusterIPs": [format!("10.96.1.{number}")]}));
        other["metadata"]["name"] = json!(format!("other-{number}"));
        model.tell(other);
    }
    model.tell(service(&json!({})));
    model.refresh();
    model.tell(slice("a", "IPv4", &json!(80), &json!([{"addresses": ["10.0.0.1"]}])));
    let names: Vec<_> = model.pending.services.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["web"]);
    assert!(!model.pending.everything);
    // A slice that moves to another Service concerns both.
    let mut moved = slice("a", "IPv4", &json!(80), &json!([{"addresses": ["10.0.0.1"]}]));
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = json!("other-1");
    model.refresh();
    model.tell(moved);
    let names: Vec<_> = model.pending.services.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["other-1", "web"]);
}
