//! Tests that the state depends only on the present objects: not on former ones, on the order of
//! changes or on repetitions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{from_value, json};

use super::*;

/// Few names and addresses, so that objects collide.
const SERVICES: [&str; 4] = ["web", "shop", "dns", "kubernetes"];
const SLICES: [&str; 5] = ["s1", "s2", "s3", "s4", "s5"];
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const VIPS: [&str; 6] = ["198.51.100.1", "198.51.100.2", "192.0.2.1", "192.0.2.2", "2001:db8:e::1", "bad"];
const RANGES: [&str; 6] = ["192.0.2.0/24", "10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0", " ", "bad"];
const NODE_ADDRESSES: [&str; 4] = ["192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1"];

#[derive(Clone, Debug)]
enum Event {
    Upsert(Object),
    Delete(ObjectKey),
    Addresses(BTreeSet<IpAddr>),
    /// The source begins again: it deletes the objects that are gone, and repeats the others.
    Relist,
    Refresh,
}

fn service() -> impl Strategy<Value = Object> {
    let ports = btree_set((select(&["a", "b"][..]), 80..83, select(&[0, 30080, 30081, 70000][..])), 1..3);
    let kind = select(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"][..]);
    let cluster_ip = select(&["10.96.0.1", "10.96.0.2", "None", "bad"][..]);
    let vips = || vec(select(&VIPS[..]), 0..3);
    let age = proptest::option::of(select(&["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"][..]));
    let policies = (select(&["Local", "Cluster"][..]), select(&["Local", "Cluster"][..]));
    let affinity = select(&["None", "ClientIP"][..]);
    let ranges = vec(select(&RANGES[..]), 0..3);
    let facts = (policies, affinity, ranges, select(&[0, 32000, 32001, 70000][..]), annotations());
    (select(&SERVICES[..]), kind, cluster_ip, ports, vips(), vips(), age, facts).prop_map(
        |(name, kind, cluster_ip, ports, external_ips, ingress, age, facts)| {
            let ((external, internal), affinity, ranges, health_check, annotations) = facts;
            let ports: Vec<_> = ports
                .iter()
                .map(|(name, port, node_port)| json!({"name": name, "port": port, "nodePort": node_port}))
                .collect();
            let ingress: Vec<_> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
            let service = json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "creationTimestamp": age, "annotations": annotations},
                "spec": {
                    "type": kind, "clusterIPs": [cluster_ip, "2001:db8:c::1"], "ports": ports,
                    "externalIPs": external_ips, "externalTrafficPolicy": external,
                    "internalTrafficPolicy": internal, "sessionAffinity": affinity,
                    "loadBalancerSourceRanges": ranges, "healthCheckNodePort": health_check,
                },
                "status": {"loadBalancer": {"ingress": ingress}},
            });
            Object::Service(from_value(service).unwrap())
        },
    )
}

fn annotations() -> impl Strategy<Value = BTreeMap<&'static str, &'static str>> {
    let pairs = [
        ("millrace.dev/forwarding", "dsr"),
        ("millrace.dev/algorithm", "maglev"),
        ("millrace.dev/maglev-size", "x"),
    ];
    vec(select(pairs.to_vec()), 0..2).prop_map(|pairs| pairs.into_iter().collect())
}

fn slice() -> impl Strategy<Value = Object> {
    let address =
        select(&["10.244.1.1", "10.244.1.2", "192.0.2.2", "198.51.100.2", "2001:db8:a::1", "bad"][..]);
    let zones = || vec(select(&["a", "b"][..]), 0..2);
    let hints = (zones(), vec(select(&NODES[..]), 0..2));
    let endpoint = (address, select(&NODES[..]), any::<[bool; 3]>(), hints);
    let ports = btree_set((select(&["a", "b", "c"][..]), 8080..8082), 0..3);
    let service = proptest::option::of(select(&SERVICES[..]));
    let family = prop_oneof![3 => Just("IPv4"), 1 => Just("IPv6"), 1 => Just("FQDN")];
    (select(&SLICES[..]), service, family, ports, vec(endpoint, 0..4)).prop_map(
        |(name, service, family, ports, endpoints)| {
            let ports: Vec<_> =
                ports.iter().map(|(name, port)| json!({"name": name, "port": port})).collect();
            let endpoints: Vec<_> = endpoints
                .iter()
                .map(|(address, node, [ready, serving, terminating], (zones, nodes))| {
                    let named =
                        |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
                    json!({
                        "addresses": [address], "nodeName": node,
                        "hints": {"forZones": named(zones), "forNodes": named(nodes)},
                        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                    })
                })
                .collect();
            let labels = service.map_or(json!({}), |service| json!({"kubernetes.io/service-name": service}));
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "labels": labels},
                "addressType": family, "ports": ports, "endpoints": endpoints,
            });
            Object::EndpointSlice(from_value(slice).unwrap())
        },
    )
}

fn node() -> impl Strategy<Value = Object> {
    let address = (select(&["InternalIP", "ExternalIP"][..]), select(&NODE_ADDRESSES[..]));
    let taints = vec(select(&["ToBeDeletedByClusterAutoscaler", "other"][..]), 0..2);
    let deleted = proptest::option::weighted(0.1, Just("2026-01-01T00:00:00Z"));
    let ready = select(&["True", "False"][..]);
    let facts = (select(&["", "a", "b"][..]), taints, deleted, ready);
    (select(&NODES[..]), facts, vec(address, 0..3)).prop_map(|(name, facts, addresses)| {
        let (zone, taints, deleted, ready) = facts;
        let addresses: Vec<_> =
            addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
        let taints: Vec<_> = taints.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "labels": {"topology.kubernetes.io/zone": zone}, "deletionTimestamp": deleted,
            },
            "spec": {"taints": taints},
            "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": ready}]},
        });
        Object::Node(from_value(node).unwrap())
    })
}

fn event() -> impl Strategy<Value = Event> {
    let object = || prop_oneof![3 => service(), 4 => slice(), 2 => node()];
    let addresses = btree_set(select(&NODE_ADDRESSES[..]), 0..3)
        .prop_map(|texts| Event::Addresses(texts.iter().map(|text| text.parse().unwrap()).collect()));
    prop_oneof![
        6 => object().prop_map(Event::Upsert),
        3 => object().prop_map(|object| Event::Delete(object.key())),
        1 => addresses,
        1 => Just(Event::Relist),
        2 => Just(Event::Refresh),
    ]
}

fn settings() -> impl Strategy<Value = ModelSettings> {
    any::<bool>().prop_map(|within| {
        let range: IpNet = "192.0.2.0/24".parse().unwrap();
        let node_ports =
            if within { NodePortAddresses::Within(vec![range]) } else { NodePortAddresses::Primary };
        ModelSettings {
            node_name: "node-1".to_owned(),
            node_ports,
            cluster_ranges: vec!["10.244.0.0/16".parse().unwrap()],
            external_ip_ranges: vec!["198.51.100.0/24".parse().unwrap(), range],
            ..ModelSettings::default()
        }
    })
}

fn own_node_key() -> ObjectKey {
    ObjectKey { kind: Kind::Node, namespace: String::new(), name: "node-1".to_owned() }
}

/// A model, and a copy of its state that is updated only where a refresh says so.
struct Follower {
    model: Model,
    copy: Desired,
}

impl Follower {
    fn new(settings: ModelSettings) -> Self {
        let model = Model::new(settings);
        Self { copy: model.desired().clone(), model }
    }
    fn upsert(&mut self, object: &Object) {
        self.model.apply(Change::Upsert { object: object.clone(), file: None });
    }
    fn refresh(&mut self) {
        let dirty = self.model.refresh();
        let desired = self.model.desired();
        for key in &dirty.ports {
            match desired.ports.get(key) {
                Some(port) => {
                    assert_ne!(self.copy.ports.insert(key.clone(), port.clone()).as_ref(), Some(port));
                }
                None => assert!(self.copy.ports.remove(key).is_some(), "{key} was never there"),
            }
        }
        let facts =
            |state: &Desired| (state.nodes.clone(), state.cluster_sources.clone(), state.own_sources.clone());
        assert_eq!(dirty.nodes, facts(&self.copy) != facts(desired));
        let health =
            |of: &Desired| (of.health_checks.clone(), of.health_check_addresses.clone(), of.eligibility);
        assert_eq!(dirty.health, health(&self.copy) != health(desired));
        self.copy.nodes.clone_from(&desired.nodes);
        self.copy.cluster_sources.clone_from(&desired.cluster_sources);
        self.copy.own_sources.clone_from(&desired.own_sources);
        self.copy.health_checks.clone_from(&desired.health_checks);
        self.copy.health_check_addresses.clone_from(&desired.health_check_addresses);
        self.copy.eligibility = desired.eligibility;
        // No data plane asks for these.
        self.copy.without_clients.clone_from(&desired.without_clients);
        self.copy.not_ready.clone_from(&desired.not_ready);
        assert_eq!(&self.copy, desired, "what changed was named");
    }
    fn problems(&self) -> BTreeSet<Problem> {
        self.model.problems().cloned().collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_order_of_events_ends_in_the_state_of_the_final_listing_alone(
        settings in settings(),
        events in vec(event(), 0..60),
    ) {
        let mut lived = Follower::new(settings.clone());
        let mut addresses = BTreeSet::new();
        let mut objects: BTreeMap<ObjectKey, Object> = BTreeMap::new();
        let mut own_node = None;
        for event in events {
            match event {
                Event::Upsert(object) => {
                    lived.upsert(&object);
                    if object.key() == own_node_key() {
                        own_node = Some(object.clone());
                    }
                    objects.insert(object.key(), object);
                }
                Event::Delete(key) => {
                    lived.model.apply(Change::Delete(key.clone()));
                    objects.remove(&key);
                }
                Event::Addresses(new) => {
                    lived.model.set_node_addresses(new.clone());
                    addresses = new;
                }
                Event::Relist => {
                    for name in SERVICES.iter().chain(&SLICES).chain(&NODES) {
                        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
                            let namespace = if kind == Kind::Node { "" } else { "default" }.to_owned();
                            let key = ObjectKey { kind, namespace, name: (*name).to_owned() };
                            if !objects.contains_key(&key) {
                                lived.model.apply(Change::Delete(key));
                            }
                        }
                    }
                    for object in objects.values() {
                        lived.upsert(object);
                    }
                }
                Event::Refresh => lived.refresh(),
            }
        }
        lived.refresh();
        // Until then, addresses that have left a status are served.
        lived.model.forget_former(u64::MAX);
        lived.refresh();

        let mut listed = Follower::new(settings);
        listed.model.set_node_addresses(addresses);
        // The state of this node's last Node object stays when the object is gone.
        if let Some(own_node) = own_node.filter(|node| !objects.contains_key(&node.key())) {
            listed.upsert(&own_node);
            listed.model.apply(Change::Delete(own_node.key()));
        }
        for object in objects.values().rev() {
            listed.upsert(object);
        }
        listed.refresh();
        prop_assert_eq!(lived.model.desired(), listed.model.desired());
        prop_assert_eq!(lived.problems(), listed.problems());

        // After a new listing nothing is dirty, and no problem is new.
        lived.model.take_problems();
        for object in objects.values() {
            lived.upsert(object);
        }
        prop_assert!(lived.model.refresh().is_empty());
        prop_assert!(lived.model.take_problems().is_empty());
    }
}
