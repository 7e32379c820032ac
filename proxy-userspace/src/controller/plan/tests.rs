use serde_json::{Value, from_value, json};

use super::pool::POOL_LABEL;
use super::*;

const NODE_IP: &str = "millrace.dev/node-ip";

fn cluster() -> Cluster {
    Cluster::new(Classes { name: NODE_IP.to_owned(), is_default: true })
}

impl Cluster {
    fn tell(&mut self, manifest: Value) {
        let object = match manifest["kind"].as_str().unwrap() {
            "Service" => Object::Service(from_value(manifest).unwrap()),
            "EndpointSlice" => Object::EndpointSlice(from_value(manifest).unwrap()),
            "Node" => Object::Node(from_value(manifest).unwrap()),
            other => panic!("{other}"),
        };
        self.apply(Change::Upsert { object, file: None });
    }

    fn lose(&mut self, kind: Kind, name: &str) {
        let namespace = if kind == Kind::Node { "" } else { "default" };
        self.apply(Change::Delete(ObjectKey {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }));
    }

    fn of(&self, name: &str) -> Option<Wanted> {
        let key = ServiceKey { namespace: "default".to_owned(), name: name.to_owned() };
        self.wanted().remove(&key)
    }

    /// Returns the wanted addresses of a Service, separated by spaces; `-` = the present ones stay.
    fn addresses(&self, name: &str) -> String {
        let addresses = self.of(name).expect("it gets addresses from here").addresses;
        let text =
            |addresses: Vec<IpAddr>| addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        addresses.map_or_else(|| "-".to_owned(), text)
    }
}

/// Returns a ready node with the InternalIPs 10.0.0.N and fd00::N, and one change.
fn node(number: u8, change: &[(&str, Value)]) -> Value {
    let mut node = json!({
        "kind": "Node",
        "metadata": { "name": format!("node-{number}"), "labels": {} },
        "status": {
            "addresses": [
                { "type": "Hostname", "address": format!("node-{number}") },
                { "type": "InternalIP", "address": format!("10.0.0.{number}") },
                { "type": "InternalIP", "address": format!("fd00::{number}") },
            ],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    for (pointer, value) in change {
        set(&mut node, pointer, value.clone());
    }
    node
}

/// Returns a Service of type LoadBalancer that is `age` days old, with ports 80 TCP and 443 TCP.
fn service(name: &str, age: u8, change: &[(&str, Value)]) -> Value {
    let mut service = json!({
        "kind": "Service",
        "metadata": {
            "name": name, "namespace": "default", "labels": {},
            "creationTimestamp": format!("2026-01-{:02}T00:00:00Z", 30 - age),
        },
        "spec": {
            "type": "LoadBalancer", "ipFamilies": ["IPv4"],
            "ports": [{ "name": "http", "port": 80 }, { "name": "https", "port": 443 }],
        },
    });
    for (pointer, value) in change {
        set(&mut service, pointer, value.clone());
    }
    service
}

fn slice(name: &str, service: &str, endpoints: &[(&str, Option<bool>)]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(node, ready)| json!({ "addresses": ["10.1.0.1"], "nodeName": node, "conditions": { "ready": ready } }))
        .collect();
    json!({
        "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": { "name": name, "namespace": "default", "labels": { SERVICE_NAME_LABEL: service } },
    })
}

/// Sets a member by its path, such as `spec ports`. A label's name may have slashes.
fn set(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    for part in path.split(' ') {
        place = &mut place[part];
    }
    *place = value;
}

fn label(name: &str) -> String {
    format!("metadata labels {name}")
}

#[test]
fn a_service_gets_the_internal_addresses_of_all_nodes_in_the_order_of_its_families() {
    let mut cluster = cluster();
    for number in [3, 1, 2] {
        cluster.tell(node(number, &[]));
    }
    cluster.tell(service("web", 1, &[]));
    assert_eq!(cluster.addresses("web"), "10.0.0.1 10.0.0.2 10.0.0.3");
    cluster.tell(service("web", 1, &[("spec ipFamilies", json!(["IPv6", "IPv4"]))]));
    assert_eq!(cluster.addresses("web"), "fd00::1 fd00::2 fd00::3 10.0.0.1 10.0.0.2 10.0.0.3");
}

#[test]
fn one_external_address_keeps_all_internal_ones_away_as_in_k3s() {
    let mut cluster = cluster();
    cluster.tell(node(1, &[]));
    let public = json!([
        { "type": "InternalIP", "address": "10.0.0.2" }, { "type": "ExternalIP", "address": "203.0.113.2" },
    ]);
    cluster.tell(node(2, &[("status addresses", public)]));
    cluster.tell(service("web", 1, &[("spec ipFamilies", json!(["IPv4", "IPv6"]))]));
    assert_eq!(cluster.addresses("web"), "203.0.113.2");
    cluster.lose(Kind::Node, "node-2");
    assert_eq!(cluster.addresses("web"), "10.0.0.1 fd00::1");
}

#[test]
fn only_nodes_that_may_have_clients_count() {
    let taint = json!({ "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] });
    let cordon = json!({ "unschedulable": true, "taints": [{ "key": "node.kubernetes.io/unschedulable" , "effect": "NoSchedule" }] });
    for (change, serves) in [
        (vec![("status conditions", json!([{ "type": "Ready", "status": "Unknown" }]))], false),
        (vec![("status conditions", json!([{ "type": "Ready", "status": "False" }]))], false),
        (vec![("status conditions", json!([]))], false),
        (vec![("metadata labels node.kubernetes.io/exclude-from-external-load-balancers", json!(""))], false),
        (vec![("metadata deletionTimestamp", json!("2026-01-01T00:00:00Z"))], false),
        (vec![("spec", taint)], false),
        // A cordoned node keeps its clients: its pods still run.
        (vec![("spec", cordon)], true),
    ] {
        let mut cluster = cluster();
        cluster.tell(node(1, &[]));
        cluster.tell(node(2, &change));
        cluster.tell(service("web", 1, &[]));
        let expected = if serves { "10.0.0.1 10.0.0.2" } else { "10.0.0.1" };
        assert_eq!(cluster.addresses("web"), expected, "{change:?}");
    }
}

#[test]
fn addresses_stay_while_no_node_is_ready_and_go_if_no_node_may_serve() {
    let mut cluster = cluster();
    cluster.tell(service("web", 1, &[]));
    assert_eq!(cluster.addresses("web"), "");
    assert_eq!(cluster.of("web").unwrap().shortage, Some(Shortage::NoNode));
    let failed = ("status conditions", json!([{ "type": "Ready", "status": "Unknown" }]));
    for number in [1, 2] {
        cluster.tell(node(number, std::slice::from_ref(&failed)));
    }
    assert_eq!(cluster.addresses("web"), "-");
    assert_eq!(cluster.of("web").unwrap().shortage, Some(Shortage::NoReadyNode));
    cluster.tell(node(2, &[]));
    assert_eq!(cluster.addresses("web"), "10.0.0.2");
    assert_eq!(cluster.of("web").unwrap().shortage, None);
}

#[test]
fn classes_and_types_decide_which_services_get_addresses() {
    let cases = [
        (json!(null), true, true),
        (json!(""), true, true),
        (json!(null), false, false),
        (json!(NODE_IP), false, true),
        (json!(NODE_IP), true, true),
        (json!("metallb.io/metallb"), true, false),
    ];
    for (class, is_default, gets) in cases {
        let mut cluster = Cluster::new(Classes { name: NODE_IP.to_owned(), is_default });
        cluster.tell(node(1, &[]));
        cluster.tell(service("web", 1, &[("spec loadBalancerClass", class.clone())]));
        assert_eq!(cluster.of("web").is_some(), gets, "{class} {is_default}");
        cluster.tell(service("web", 1, &[("spec type", json!("NodePort"))]));
        assert_eq!(cluster.of("web"), None);
    }
}

#[test]
fn with_policy_local_only_nodes_with_a_ready_endpoint_count() {
    let mut cluster = cluster();
    for number in [1, 2, 3] {
        cluster.tell(node(number, &[]));
    }
    cluster.tell(service("web", 1, &[("spec externalTrafficPolicy", json!("Local"))]));
    assert_eq!(cluster.addresses("web"), "");
    assert_eq!(cluster.of("web").unwrap().shortage, None, "nobody has to do anything about it");
    cluster.tell(slice("web-1", "web", &[("node-1", Some(true)), ("node-2", Some(false))]));
    assert_eq!(cluster.addresses("web"), "10.0.0.1");
    // By the API's definition an endpoint without the condition is ready.
    cluster.tell(slice("web-2", "web", &[("node-3", None)]));
    cluster.tell(slice("other-1", "other", &[("node-2", Some(true))]));
    assert_eq!(cluster.addresses("web"), "10.0.0.1 10.0.0.3");
    cluster.lose(Kind::EndpointSlice, "web-1");
    assert_eq!(cluster.addresses("web"), "10.0.0.3");
    // A slice may be given to another Service.
    cluster.tell(slice("web-2", "other", &[("node-3", None)]));
    assert_eq!(cluster.addresses("web"), "");
}

#[test]
fn with_policy_local_addresses_stay_too_while_no_node_is_ready() {
    let mut cluster = cluster();
    cluster.tell(node(1, &[]));
    cluster.tell(service("web", 1, &[("spec externalTrafficPolicy", json!("Local"))]));
    cluster.tell(slice("web-1", "web", &[("node-1", Some(true))]));
    assert_eq!(cluster.addresses("web"), "10.0.0.1");
    // Kubernetes takes its pods for not ready, too.
    cluster.tell(node(1, &[("status conditions", json!([{ "type": "Ready", "status": "Unknown" }]))]));
    cluster.tell(slice("web-1", "web", &[("node-1", Some(false))]));
    assert_eq!(cluster.addresses("web"), "-");
    assert_eq!(cluster.of("web").unwrap().shortage, Some(Shortage::NoReadyNode));
}

#[test]
fn a_service_of_a_family_that_no_node_has_an_address_of_is_told() {
    let mut cluster = cluster();
    let public = json!([{ "type": "InternalIP", "address": "fd00::1" }, { "type": "ExternalIP", "address": "203.0.113.1" }]);
    cluster.tell(node(1, &[("status addresses", public)]));
    cluster.tell(service("web", 1, &[("spec ipFamilies", json!(["IPv6"]))]));
    assert_eq!(cluster.addresses("web"), "");
    assert_eq!(cluster.of("web").unwrap().shortage, Some(Shortage::NoAddress));
}

#[test]
fn pools_are_chosen_by_labels_and_those_of_k3s_have_its_meaning() {
    let own = label(POOL_LABEL);
    let k3s = label("svccontroller.k3s.cattle.io/lbpool");
    let enable = label("svccontroller.k3s.cattle.io/enablelb");
    let mut cluster = cluster();
    cluster.tell(node(1, &[(&own, json!("edge")), (&k3s, json!("a"))]));
    cluster.tell(node(2, &[(&k3s, json!("b"))]));
    cluster.tell(node(3, &[]));
    cluster.tell(service("plain", 4, &[("spec ports", json!([{ "port": 1 }]))]));
    cluster.tell(service("edge", 3, &[(&own, json!("edge")), ("spec ports", json!([{ "port": 2 }]))]));
    cluster.tell(service("b", 2, &[(&k3s, json!("b")), ("spec ports", json!([{ "port": 3 }]))]));
    cluster.tell(service("none", 1, &[(&own, json!("nowhere")), ("spec ports", json!([{ "port": 4 }]))]));
    assert_eq!(cluster.addresses("plain"), "10.0.0.1 10.0.0.2 10.0.0.3");
    assert_eq!(cluster.addresses("edge"), "10.0.0.1");
    // Without a node that has its other label, k3s ignores pools.
    assert_eq!(cluster.addresses("b"), "10.0.0.1 10.0.0.2 10.0.0.3");
    assert_eq!(cluster.of("none").unwrap().shortage, Some(Shortage::NoNode));
    cluster.tell(node(1, &[(&own, json!("edge")), (&k3s, json!("a")), (&enable, json!("true"))]));
    cluster.tell(node(2, &[(&k3s, json!("b")), (&enable, json!("true"))]));
    assert_eq!(cluster.addresses("plain"), "10.0.0.1 10.0.0.2");
    assert_eq!(cluster.addresses("b"), "10.0.0.2");
    cluster.tell(node(1, &[(&own, json!("edge")), (&enable, json!("false"))]));
    assert_eq!(cluster.addresses("plain"), "10.0.0.2");
    assert_eq!(cluster.addresses("edge"), "");
}

#[test]
fn of_two_services_with_one_port_the_older_has_it_and_the_other_is_told() {
    let mut cluster = cluster();
    for number in [1, 2] {
        cluster.tell(node(number, &[]));
    }
    cluster.tell(service("young", 1, &[]));
    cluster.tell(service("old", 9, &[("spec ports", json!([{ "port": 443 }]))]));
    assert_eq!(cluster.addresses("old"), "10.0.0.1 10.0.0.2");
    assert_eq!(cluster.addresses("young"), "");
    assert_eq!(
        cluster.of("young").unwrap().conflict.unwrap(),
        "port 443 TCP is Service default/old's on all nodes; the older one has it, or the first by name"
    );
    assert_eq!(cluster.of("old").unwrap().conflict, None);
    // Another protocol is another port.
    cluster.tell(service("old", 9, &[("spec ports", json!([{ "port": 443, "protocol": "UDP" }]))]));
    assert_eq!(
        (cluster.addresses("young").as_str(), cluster.of("young").unwrap().conflict),
        ("10.0.0.1 10.0.0.2", None)
    );
}

#[test]
fn a_service_that_lost_its_nodes_holds_no_port_there() {
    let mut cluster = cluster();
    cluster.tell(node(1, &[]));
    let ports = |ports: &[u16]| {
        ("spec ports", json!(ports.iter().map(|port| json!({ "port": port })).collect::<Vec<_>>()))
    };
    cluster.tell(service("first", 9, &[ports(&[80])]));
    cluster.tell(service("second", 8, &[ports(&[80, 443])]));
    cluster.tell(service("third", 7, &[ports(&[443])]));
    let all = |cluster: &Cluster| ["first", "second", "third"].map(|name| cluster.addresses(name));
    assert_eq!(all(&cluster), ["10.0.0.1", "", "10.0.0.1"]);
    cluster.lose(Kind::Service, "first");
    assert_eq!(["second", "third"].map(|name| cluster.addresses(name)), ["10.0.0.1", ""]);
}

#[test]
fn a_conflict_does_not_depend_on_readiness_or_endpoints() {
    let mut cluster = cluster();
    for number in [1, 2] {
        cluster.tell(node(number, &[]));
    }
    cluster.tell(service("old", 9, &[("spec externalTrafficPolicy", json!("Local"))]));
    cluster.tell(service("young", 1, &[]));
    assert_eq!((cluster.addresses("old"), cluster.addresses("young")), (String::new(), String::new()));
    cluster.tell(slice("old-1", "old", &[("node-1", Some(true))]));
    cluster.tell(node(1, &[("status conditions", json!([]))]));
    assert_eq!(cluster.addresses("young"), "");
}

#[test]
fn pools_that_overlap_in_part_share_by_node() {
    let mut cluster = cluster();
    let own = label(POOL_LABEL);
    cluster.tell(node(1, &[(&own, json!("edge"))]));
    cluster.tell(node(2, &[]));
    cluster.tell(service("edge", 9, &[(&own, json!("edge"))]));
    cluster.tell(service("all", 1, &[]));
    assert_eq!(
        (cluster.addresses("edge").as_str(), cluster.addresses("all").as_str()),
        ("10.0.0.1", "10.0.0.2")
    );
    let conflict = cluster.of("all").unwrap().conflict.unwrap();
    assert!(
        conflict.starts_with("port 80 TCP is Service default/edge's on node-1, port 443 TCP"),
        "{conflict}"
    );
}

#[test]
fn an_older_services_node_port_is_taken_on_every_node() {
    let mut cluster = cluster();
    cluster.tell(node(1, &[]));
    let own = json!([{ "port": 30080, "nodePort": 30080 }]);
    cluster.tell(service("itself", 9, &[("spec ports", own)]));
    assert_eq!(cluster.addresses("itself"), "10.0.0.1", "its own NodePort is no conflict");
    let other =
        [("spec type", json!("NodePort")), ("spec ports", json!([{ "port": 80, "nodePort": 30081 }]))];
    cluster.tell(service("other", 8, &other));
    cluster.tell(service("late", 7, &[("spec ports", json!([{ "port": 30081 }]))]));
    assert_eq!(cluster.addresses("late"), "");
    let conflict = cluster.of("late").unwrap().conflict.unwrap();
    assert!(conflict.starts_with("port 30081 TCP is Service default/other's on all nodes"), "{conflict}");
}

#[test]
fn the_present_status_is_ours_only_if_each_entry_is_a_plain_address() {
    let current = |status: Value| {
        let mut cluster = cluster();
        cluster.tell(service("web", 1, &[("status", status)]));
        let key = ServiceKey { namespace: "default".to_owned(), name: "web".to_owned() };
        cluster.current(&key).unwrap().clone()
    };
    let ingress = |entries: Value| current(json!({ "loadBalancer": { "ingress": entries } })).addresses;
    assert_eq!(current(json!({ "loadBalancer": {} })).addresses, Some(Vec::new()));
    let plain = json!([{ "ip": "10.0.0.2", "ipMode": "VIP" }, { "ip": "10.0.0.1" }]);
    assert_eq!(ingress(plain), Some(vec!["10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap()]));
    assert_eq!(ingress(json!([{ "ip": "10.0.0.1", "ipMode": "Proxy" }])), None);
    assert_eq!(ingress(json!([{ "hostname": "lb.example.com" }])), None);
    let condition = |status: &str| {
        let condition = json!({
            "type": PORTS_CONDITION, "status": status, "reason": "x", "message": "port 80",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        current(json!({ "conditions": [condition] })).conflict
    };
    assert_eq!((condition("True").as_deref(), condition("False")), (Some("port 80"), None));
}

#[test]
fn thousands_of_services_on_many_nodes_are_decided_at_once() {
    let mut cluster = cluster();
    for number in 1..=100 {
        cluster.tell(node(number, &[]));
    }
    for index in 0..2_000_u32 {
        let port = json!([{ "port": 1 + index % 1_500 }]);
        cluster.tell(service(&format!("web-{index:04}"), 1, &[("spec ports", port)]));
    }
    let wanted = cluster.wanted();
    let served = wanted.values().filter(|wanted| wanted.conflict.is_none()).count();
    assert_eq!((wanted.len(), served), (2_000, 1_500));
}

#[test]
fn while_objects_are_unreadable_no_present_address_is_taken_away() {
    let addresses = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
    let kept = |wanted: &[&str], present: Option<&[&str]>| {
        let mut wanted = Wanted { addresses: Some(addresses(wanted)), conflict: None, shortage: None };
        wanted.keep(&Current { addresses: present.map(addresses), conflict: None });
        wanted.addresses
    };
    let (one, two) = (["10.0.0.1"].as_slice(), ["10.0.0.1", "10.0.0.2"].as_slice());
    assert_eq!(kept(one, Some(two)), Some(addresses(two)));
    assert_eq!(kept(two, Some(&["10.0.0.3"])), Some(addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.3"])));
    assert_eq!(kept(two, Some(one)), Some(addresses(two)));
    assert_eq!(kept(one, None), Some(addresses(one)));
}

#[test]
fn a_node_with_another_operating_system_gives_no_address() {
    let mut cluster = cluster();
    cluster.tell(node(1, &[]));
    cluster.tell(node(2, &[("metadata labels", json!({"kubernetes.io/os": "windows"}))]));
    cluster.tell(service("web", 1, &[]));
    assert_eq!(cluster.addresses("web"), "10.0.0.1");
}
