//! Whatever came before, in whatever order and however often: the state is that of the objects there are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{from_value, json};

use super::*;

/// Few names and addresses, so that objects meet.
const SERVICES: [&str; 4] = ["web", "shop", "dns", "kubernetes"];
const SLICES: [&str; 5] = ["s1", "s2", "s3", "s4", "s5"];
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const VIPS: [&str; 6] = ["198.51.100.1", "198.51.100.2", "192.0.2.1", "192.0.2.2", "2001:db8:e::1", "bad"];
const NODE_ADDRESSES: [&str; 4] = ["192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1"];

#[derive(Clone, Debug)]
enum Event {
    Upsert(Object),
    Delete(ObjectKey),
    Addresses(BTreeSet<IpAddr>),
    Refresh,
}

fn service() -> impl Strategy<Value = Object> {
    let ports = btree_set((select(&["a", "b"][..]), 80..83, select(&[0, 30080, 30081, 70000][..])), 1..3);
    let kind = select(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"][..]);
    let cluster_ip = select(&["10.96.0.1", "10.96.0.2", "None", "bad"][..]);
    let vips = || vec(select(&VIPS[..]), 0..3);
    let age = proptest::option::of(select(&["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"][..]));
    let policies = (select(&["Local", "Cluster"][..]), select(&["Local", "Cluster"][..]));
    (select(&SERVICES[..]), kind, cluster_ip, ports, vips(), vips(), age, policies).prop_map(
        |(name, kind, cluster_ip, ports, external_ips, ingress, age, (external, internal))| {
            let ports: Vec<_> = ports
                .iter()
                .map(|(name, port, node_port)| json!({"name": name, "port": port, "nodePort": node_port}))
                .collect();
            let ingress: Vec<_> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
            let service = json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "creationTimestamp": age},
                "spec": {
                    "type": kind, "clusterIPs": [cluster_ip, "2001:db8:c::1"], "ports": ports,
                    "externalIPs": external_ips, "externalTrafficPolicy": external,
                    "internalTrafficPolicy": internal,
                },
                "status": {"loadBalancer": {"ingress": ingress}},
            });
            Object::Service(from_value(service).unwrap())
        },
    )
}

fn slice() -> impl Strategy<Value = Object> {
    let address = select(&["10.244.1.1", "10.244.1.2", "192.0.2.2", "198.51.100.2", "bad"][..]);
    let endpoint = (address, select(&NODES[..]), any::<[bool; 3]>(), select(&["a", "b"][..]));
    let ports = btree_set((select(&["a", "b", "c"][..]), 8080..8082), 0..3);
    let service = proptest::option::of(select(&SERVICES[..]));
    (select(&SLICES[..]), service, ports, vec(endpoint, 0..4)).prop_map(
        |(name, service, ports, endpoints)| {
            let ports: Vec<_> =
                ports.iter().map(|(name, port)| json!({"name": name, "port": port})).collect();
            let endpoints: Vec<_> = endpoints
                .iter()
                .map(|(address, node, [ready, serving, terminating], zone)| {
                    json!({
                        "addresses": [address], "nodeName": node, "hints": {"forZones": [{"name": zone}]},
                        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                    })
                })
                .collect();
            let labels = service.map_or(json!({}), |service| json!({"kubernetes.io/service-name": service}));
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "labels": labels},
                "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
            });
            Object::EndpointSlice(from_value(slice).unwrap())
        },
    )
}

fn node() -> impl Strategy<Value = Object> {
    let address = (select(&["InternalIP", "ExternalIP"][..]), select(&NODE_ADDRESSES[..]));
    (select(&NODES[..]), select(&["a", "b"][..]), vec(address, 0..3)).prop_map(|(name, zone, addresses)| {
        let addresses: Vec<_> =
            addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {"addresses": addresses},
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
            external_ip_ranges: vec!["198.51.100.0/24".parse().unwrap(), range],
            ..ModelSettings::default()
        }
    })
}

/// A model and a copy of its state that is told of nothing but what each refresh names.
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
        if dirty.nodes {
            self.copy.nodes.clone_from(&desired.nodes);
        }
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
        for event in events {
            match event {
                Event::Upsert(object) => {
                    lived.upsert(&object);
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
                Event::Refresh => lived.refresh(),
            }
        }
        lived.refresh();

        let mut listed = Follower::new(settings);
        listed.model.set_node_addresses(addresses);
        for object in objects.values().rev() {
            listed.upsert(object);
        }
        listed.refresh();
        prop_assert_eq!(lived.model.desired(), listed.model.desired());
        prop_assert_eq!(lived.problems(), listed.problems());

        // Listed again: nothing is dirty, and nothing is wrong that was not wrong before.
        lived.model.take_problems();
        for object in objects.values() {
            lived.upsert(object);
        }
        prop_assert!(lived.model.refresh().is_empty());
        prop_assert!(lived.model.take_problems().is_empty());
    }
}
