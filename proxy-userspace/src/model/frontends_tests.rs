//! Tests of the rules for frontends.
//!
//! Node-1 has the addresses 192.0.2.1 and 2001:db8::1, and 10.0.0.1 on another device; 203.0.113.1
//! is mapped to it. Node-2 has 192.0.2.2. API servers listen on 192.0.2.100:6443 and on node-1's
//! 192.0.2.1:6443.

use serde_json::{Value, json};

use super::*;
use crate::model::testing::{self, settings};
use crate::model::{Model, NodePortAddresses, ServicePort, Topic};

/// Returns a Service of this type with one cluster IP of each family, with changes.
fn service(kind: &str, spec: &Value, ingress: &Value) -> Value {
    let mut full =
        json!({"type": kind, "clusterIPs": ["10.96.0.1", "2001:db8:c::1"], "ports": [{"port": 80}]});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": full,
        "status": {"loadBalancer": {"ingress": ingress}},
    })
}

fn model_with(settings: ModelSettings) -> Model {
    let mut model = Model::new(settings);
    let node = |name: &str, addresses: &[(&str, &str)]| {
        let addresses = addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address}));
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"addresses": addresses.collect::<Vec<_>>()},
        })
    };
    let own = [("InternalIP", "192.0.2.1"), ("InternalIP", "2001:db8::1"), ("ExternalIP", "203.0.113.1")];
    model.tell(node("node-1", &own));
    model.tell(node("node-2", &[("InternalIP", "192.0.2.2")]));
    model.set_devices(&["192.0.2.1", "2001:db8::1", "10.0.0.1"]);
    model.tell(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": 6443}],
        "endpoints": [{"addresses": ["192.0.2.100"]}, {"addresses": ["192.0.2.1"]}],
    }));
    model
}

fn of(port: Option<&ServicePort>) -> impl Iterator<Item = &Frontend> {
    port.into_iter().flat_map(|port| &port.frontends)
}

/// Returns the frontends of a kind in scope external, by address. Those in scope internal must have
/// the same addresses, except for loopback.
fn served(model: &Model, kind: FrontendKind) -> Vec<String> {
    let at = |scopes: &[Scope]| {
        let frontends = [Family::V4, Family::V6].into_iter().flat_map(|family| of(model.port("web", family)));
        let found = frontends.filter(|frontend| frontend.kind == kind && scopes.contains(&frontend.scope));
        let found = found.filter(|frontend| !frontend.address.ip().is_loopback());
        found.map(|frontend| frontend.address.to_string()).collect::<Vec<_>>()
    };
    let outside = at(&[Scope::External, Scope::ExternalInside]);
    assert_eq!(at(&[Scope::Internal]), outside, "{kind:?}");
    outside
}

#[test]
fn cluster_ips_are_for_clients_inside_the_cluster_unless_a_setting_says_all() {
    for (cluster_ip_clients, expected) in
        [(ClusterIpClients::Inside, Scope::ExternalInside), (ClusterIpClients::All, Scope::External)]
    {
        let mut model = model_with(ModelSettings { cluster_ip_clients, ..settings() });
        model.tell(service("LoadBalancer", &json!({}), &json!([{"ip": "198.51.100.1"}])));
        model.refresh();
        let scope_of = |kind: FrontendKind| {
            let frontends = of(model.port("web", Family::V4)).filter(|frontend| frontend.kind == kind);
            frontends
                .map(|frontend| frontend.scope)
                .filter(|scope| *scope != Scope::Internal)
                .collect::<Vec<_>>()
        };
        assert_eq!(scope_of(FrontendKind::ClusterIp), [expected]);
        assert_eq!(scope_of(FrontendKind::LoadBalancer), [Scope::External]);
    }
}

/// Returns the frontends and problems of one Service. The slice of `kubernetes` has no Service
/// here.
#[track_caller]
fn check(service: &Value, kind: FrontendKind, expected: &[&str], refusal: Option<&str>) {
    let mut model = model_with(settings());
    model.tell(service.clone());
    model.refresh();
    assert_eq!(served(&model, kind), expected, "{service}");
    let warnings: Vec<_> = model
        .problems()
        .filter(|problem| problem.topic != Topic::Mismatch)
        .map(ToString::to_string)
        .collect();
    match refusal {
        Some(refusal) => {
            assert!(warnings.len() == 1 && warnings[0].contains(refusal), "{warnings:?} {service}");
        }
        None => assert_eq!(warnings, [""; 0], "{service}"),
    }
}

#[test]
fn a_cluster_ip_is_served_in_each_family_and_from_both_sides() {
    for (spec, expected) in [
        (json!({}), &["10.96.0.1:80", "[2001:db8:c::1]:80"][..]),
        (json!({"clusterIPs": null, "clusterIP": "10.96.0.9"}), &["10.96.0.9:80"]),
        (json!({"clusterIPs": ["2001:db8:c::1"]}), &["[2001:db8:c::1]:80"]),
        (json!({"clusterIPs": null, "clusterIP": ""}), &[]),
        (json!({"clusterIPs": null}), &[]),
        (json!({"clusterIPs": ["None"], "clusterIP": "None"}), &[]),
        (json!({"type": "ExternalName", "externalName": "example.org"}), &[]),
    ] {
        let mut model = model_with(settings());
        model.tell(service("ClusterIP", &spec, &json!([])));
        model.refresh();
        assert_eq!(served(&model, FrontendKind::ClusterIp), expected, "{spec}");
    }
}

#[test]
fn labels_say_whose_a_service_is() {
    for (label, value, name, ours) in [
        ("other", "", None, true),
        ("service.kubernetes.io/headless", "", None, true),
        ("service.kubernetes.io/service-proxy-name", "x", None, false),
        ("service.kubernetes.io/service-proxy-name", "x", Some("x"), true),
        ("service.kubernetes.io/service-proxy-name", "y", Some("x"), false),
        ("other", "x", Some("x"), false),
    ] {
        let mut model =
            model_with(ModelSettings { service_proxy_name: name.map(str::to_owned), ..settings() });
        let mut service = service("ClusterIP", &json!({}), &json!([]));
        service["metadata"]["labels"] = json!({label: value});
        model.tell(service);
        model.refresh();
        assert_eq!(!served(&model, FrontendKind::ClusterIp).is_empty(), ours, "{label}={value} {name:?}");
    }
}

#[test]
fn a_node_port_is_served_on_the_primary_addresses_or_those_inside_the_ranges() {
    let ranges = |ranges: &[&str]| {
        NodePortAddresses::Within(ranges.iter().map(|range| range.parse().unwrap()).collect())
    };
    let both = ["192.0.2.1:30080", "[2001:db8::1]:30080"];
    for (kind, port, addresses, expected) in [
        ("NodePort", 30080, NodePortAddresses::Primary, &both[..]),
        ("LoadBalancer", 30080, NodePortAddresses::Primary, &both),
        // allocateLoadBalancerNodePorts: false
        ("LoadBalancer", 0, NodePortAddresses::Primary, &[]),
        ("ClusterIP", 30080, NodePortAddresses::Primary, &[]),
        ("NodePort", 30080, ranges(&["10.0.0.0/8"]), &["10.0.0.1:30080"]),
        ("NodePort", 30080, ranges(&["0.0.0.0/0"]), &["10.0.0.1:30080", "192.0.2.1:30080"]),
        ("NodePort", 30080, ranges(&["2001:db8::/64", "192.0.2.1/32"]), &both),
        ("NodePort", 30080, ranges(&["198.51.100.0/24"]), &[]),
    ] {
        let mut model = model_with(ModelSettings { node_ports: addresses.clone(), ..settings() });
        model.tell(service(kind, &json!({"ports": [{"port": 80, "nodePort": port}]}), &json!([])));
        model.refresh();
        assert_eq!(served(&model, FrontendKind::NodePort), expected, "{kind} {port} {addresses:?}");
    }
}

#[test]
fn an_external_ip_must_be_inside_the_ranges_and_nobodys_own() {
    let cases = [
        ("198.51.100.1", None),
        ("2001:db8:e::1", None),
        ("203.0.113.9", Some("203.0.113.9 is outside every --service-external-ip-range; not served")),
        ("192.0.2.1", Some("is an address of Node node-1; only status.loadBalancer.ingress may name it")),
        ("2001:db8::1", Some("is an address of Node node-1; ")),
        ("10.0.0.1", Some("is on a device of this node; only status.loadBalancer.ingress may name it")),
        ("203.0.113.1", Some("is an address of Node node-1; ")),
        ("192.0.2.2", Some("is an address of Node node-2; ")),
        ("192.0.2.100", Some("is an address of the API server; no setting gives it to a Service")),
        ("127.0.0.1", Some("is not accepted")),
        ("::1", Some("is not accepted")),
        ("0.0.0.0", Some("is not accepted")),
        ("::", Some("is not accepted")),
        ("169.254.1.1", Some("is not accepted")),
        ("fe80::1", Some("is not accepted")),
        ("224.0.0.1", Some("is not accepted")),
        ("ff02::1", Some("is not accepted")),
        ("255.255.255.255", Some("is not accepted")),
        ("::ffff:127.0.0.1", Some("127.0.0.1 is not accepted")),
        ("192.0.02.001", Some("is an address of Node node-1; ")),
        ("198.51..1", Some("is not an IP address")),
        ("198.51.100.0256", Some("is not an IP address")),
        ("example.org", Some("is not an IP address")),
    ];
    for (address, refusal) in cases {
        let at = address.parse().map(|ip| SocketAddr::new(ip, 80).to_string()).unwrap_or_default();
        let expected: &[&str] = if refusal.is_none() { &[&at] } else { &[] };
        for kind in ["ClusterIP", "NodePort", "LoadBalancer"] {
            let service = service(kind, &json!({"externalIPs": [address]}), &json!([]));
            check(&service, FrontendKind::ExternalIp, expected, refusal);
        }
    }
    for text in ["198.051.100.001", "::ffff:198.51.100.1", "::ffff:198.51.0100.1", "::ffff:c633:6401"] {
        let service = service("ClusterIP", &json!({"externalIPs": [text]}), &json!([]));
        check(&service, FrontendKind::ExternalIp, &["198.51.100.1:80"], None);
    }
    let one_family = json!({"clusterIPs": ["10.96.0.1"], "externalIPs": ["2001:db8:e::1"]});
    let refusal = Some("is IPv6, which the Service has no cluster IP of");
    check(&service("ClusterIP", &one_family, &json!([])), FrontendKind::ExternalIp, &[], refusal);
}

#[test]
fn without_ranges_every_external_ip_is_refused() {
    let mut model = model_with(ModelSettings { external_ip_ranges: Vec::new(), ..settings() });
    model.tell(service("ClusterIP", &json!({"externalIPs": ["198.51.100.1"]}), &json!([])));
    model.refresh();
    assert_eq!(served(&model, FrontendKind::ExternalIp), [""; 0]);
    let refusal = "198.51.100.1 is outside every --service-external-ip-range: none is set; not served";
    assert!(model.complaints().iter().any(|text| text.ends_with(refusal)));
}

#[test]
fn a_load_balancers_address_may_be_a_nodes_but_not_the_api_servers() {
    let cases: &[(Value, &[&str], Option<&str>)] = &[
        (json!([{"ip": "203.0.113.9"}]), &["203.0.113.9:80"], None),
        (json!([{"ip": "203.0.113.9", "ipMode": "VIP"}]), &["203.0.113.9:80"], None),
        (json!([{"ip": "203.0.113.9", "ipMode": "Proxy"}]), &[], None),
        (json!([{"hostname": "lb.example.org"}, {"ip": ""}]), &[], None),
        (
            json!([{"ip": "2001:db8:f::9"}, {"ip": "203.0.113.9"}]),
            &["203.0.113.9:80", "[2001:db8:f::9]:80"],
            None,
        ),
        (json!([{"ip": "192.0.2.1"}]), &["192.0.2.1:80"], None),
        (json!([{"ip": "192.0.2.2"}]), &["192.0.2.2:80"], None),
        (json!([{"ip": "10.0.0.1"}]), &["10.0.0.1:80"], None),
        // Packets for an address that the cloud maps one to one arrive at the InternalIP.
        (json!([{"ip": "203.0.113.1"}]), &["192.0.2.1:80", "203.0.113.1:80"], None),
        (json!([{"ip": "192.0.2.100"}]), &[], Some("an address of the API server")),
        (json!([{"ip": "127.0.0.1"}]), &[], Some("is not accepted")),
        (json!([{"ip": "0.0.0.0"}]), &[], Some("is not accepted")),
        (json!([{"ip": "fe80::1"}]), &[], Some("is not accepted")),
        (json!([{"ip": "ff02::1"}]), &[], Some("is not accepted")),
        (json!([{"ip": "any"}]), &[], Some("is not an IP address")),
    ];
    for (ingress, expected, refusal) in cases {
        check(&service("LoadBalancer", &json!({}), ingress), FrontendKind::LoadBalancer, expected, *refusal);
        for kind in ["ClusterIP", "NodePort"] {
            check(&service(kind, &json!({}), ingress), FrontendKind::LoadBalancer, &[], None);
        }
    }
    let one_family =
        service("LoadBalancer", &json!({"clusterIPs": ["2001:db8:c::1"]}), &json!([{"ip": "203.0.113.9"}]));
    let refusal = Some("is IPv4, which the Service has no cluster IP of");
    check(&one_family, FrontendKind::LoadBalancer, &[], refusal);
}

#[test]
fn no_load_balancer_comes_between_an_api_server_on_a_node_and_its_clients() {
    let spec = json!({"ports": [{"port": 6443}]});
    let refusal = Some("spec.ports[0].port: 192.0.2.1:6443 is the API server's");
    for (ip, expected) in [("192.0.2.1", &[][..]), ("203.0.113.1", &["203.0.113.1:6443"])] {
        let service = service("LoadBalancer", &spec, &json!([{"ip": ip}]));
        check(&service, FrontendKind::LoadBalancer, expected, refusal);
    }
    let service = service("LoadBalancer", &spec, &json!([{"ip": "192.0.2.2"}]));
    check(&service, FrontendKind::LoadBalancer, &["192.0.2.2:6443"], None);
}

#[test]
fn each_scope_has_the_list_its_policy_names() {
    use FrontendKind::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    use List::{Cluster, Local};
    let full = json!({"externalIPs": ["198.51.100.1"], "ports": [{"port": 80, "nodePort": 30080}]});
    for (kind, external, internal, expected) in [
        ("LoadBalancer", "Cluster", "Cluster", [Cluster, Cluster, Cluster]),
        ("LoadBalancer", "Local", "Cluster", [Cluster, Local, Cluster]),
        ("LoadBalancer", "Cluster", "Local", [Local, Cluster, Cluster]),
        ("NodePort", "Local", "Local", [Local, Local, Cluster]),
        // A ClusterIP Service gets external traffic by its external IPs.
        ("ClusterIP", "Local", "Cluster", [Cluster, Local, Cluster]),
    ] {
        let mut spec = full.clone();
        spec["externalTrafficPolicy"] = json!(external);
        spec["internalTrafficPolicy"] = json!(internal);
        let mut model = testing::model();
        model.tell(service(kind, &spec, &json!([{"ip": "203.0.113.9"}])));
        model.refresh();
        let port = model.port("web", Family::V4).unwrap();
        for frontend in &port.frontends {
            let expected = match (frontend.kind, frontend.scope) {
                (ClusterIp, _) => expected[0],
                (NodePort | ExternalIp | LoadBalancer, Scope::External | Scope::Encapsulated) => expected[1],
                (NodePort | ExternalIp | LoadBalancer, Scope::Internal) => expected[2],
                (NodePort | ExternalIp | LoadBalancer, Scope::ExternalInside) => panic!("{frontend:?}"),
            };
            assert_eq!(frontend.list, expected, "{kind} eTP {external} iTP {internal} {frontend:?}");
        }
        for (list, members) in [(Cluster, &port.cluster), (Local, &port.local)] {
            let asked_for = port.frontends.iter().any(|frontend| frontend.list == list);
            assert!(members.is_some() || !asked_for, "{kind} eTP {external} iTP {internal} {list:?}");
        }
    }
}

#[test]
fn an_address_that_is_given_twice_is_the_load_balancers() {
    let mut model = testing::model();
    let spec = json!({"externalIPs": ["198.51.100.1"], "loadBalancerSourceRanges": ["10.0.0.0/8"]});
    model.tell(service("LoadBalancer", &spec, &json!([{"ip": "198.51.100.1"}])));
    model.refresh();
    assert_eq!(served(&model, FrontendKind::LoadBalancer), ["198.51.100.1:80"]);
    assert_eq!(served(&model, FrontendKind::ExternalIp), [""; 0]);
}

#[test]
fn one_port_in_two_protocols_is_two_frontends() {
    let mut model = testing::model();
    let ports = json!([
        {"name": "t", "port": 53}, {"name": "u", "port": 53, "protocol": "UDP"},
        {"name": "s", "port": 53, "protocol": "SCTP"}, {"name": "again", "port": 53},
    ]);
    model.tell(service("ClusterIP", &json!({"clusterIPs": ["10.96.0.1"], "ports": ports}), &json!([])));
    model.refresh();
    let served = model.desired().ports.iter().filter(|(_, port)| !port.frontends.is_empty());
    let served: Vec<_> = served.map(|(key, port)| format!("{key} {}", port.protocol)).collect();
    // The first Service by name has it.
    assert_eq!(served, ["default/web:again TCP", "default/web:s SCTP", "default/web:u UDP"]);
}
