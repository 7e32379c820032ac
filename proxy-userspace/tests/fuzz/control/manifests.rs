//! Manifests with faults, through the source, the model and the plans of both modes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::node::{KEPT, Node, Served, Told};
use super::{assert_is_one_line, mutate, play};
use crate::random::Random;

/// Inputs of a usual run.
const INPUTS: u64 = 60;

/// The Service and the node that no input changes. The Service is the oldest, so no other takes its addresses.
const UNTOUCHED: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: kept, namespace: kept, creationTimestamp: "1980-01-01T00:00:00Z"}
spec:
  type: NodePort
  clusterIP: 10.77.0.77
  ports: [{name: http, port: 77, targetPort: 8077, nodePort: 30777}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kept-1, namespace: kept, labels: {kubernetes.io/service-name: kept}}
addressType: IPv4
ports: [{name: http, port: 8077}]
endpoints: [{addresses: [10.77.1.5], nodeName: node-1}, {addresses: [10.77.2.5], nodeName: node-7}]
---
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24, "2001:db8:a::/64"]}
status: {addresses: [{type: InternalIP, address: 172.16.0.1}, {type: Hostname, address: node-1}]}
"#;

const ORIGINALS: [&str; 3] = [
    r#"
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels: {app: web}
  annotations:
    millrace.dev/forwarding: dsr
    millrace.dev/algorithm: maglev
    millrace.dev/maglev-size: "251"
    service.kubernetes.io/topology-mode: Auto
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "2001:db8:c::10"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: PreferDualStack
  externalIPs: [198.51.100.7]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Cluster
  healthCheckNodePort: 30200
  loadBalancerSourceRanges: [192.0.2.0/24, "2001:db8:1::/48"]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}
  ports:
  - {name: http, port: 80, targetPort: 8080, nodePort: 30080, protocol: TCP}
  - {name: dns, port: 53, targetPort: 5353, nodePort: 30053, protocol: UDP}
  - {name: sig, port: 36412, nodePort: 30412, protocol: SCTP}
status:
  loadBalancer:
    ingress: [{ip: 203.0.113.7}, {ip: "2001:db8:f::7", ipMode: VIP}, {hostname: lb.example}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: dns, port: 5353, protocol: UDP}]
endpoints:
- {addresses: [10.244.1.5], nodeName: node-1, zone: a, conditions: {ready: true, serving: true}}
- {addresses: [10.244.2.5], nodeName: node-2, hints: {forZones: [{name: a}]}}
- {addresses: [10.244.2.6], nodeName: node-2, conditions: {ready: false, serving: true, terminating: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["2001:db8:a::5"], nodeName: node-1}]
---
apiVersion: v1
kind: Node
metadata: {name: node-3, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDR: 10.244.3.0/24, podCIDRs: [10.244.3.0/24, "2001:db8:b::/64"]}
status: {addresses: [{type: InternalIP, address: 172.16.0.3}, {type: Hostname, address: node-3}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-2, annotations: {"node.kubernetes.io/note": "&a *a"}}
spec: {podCIDR: 10.244.2.0/24}
status: {addresses: [{type: InternalIP, address: 172.16.0.2}, {type: ExternalIP, address: 198.51.100.2}]}
"#,
    r#"{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api", "annotations": {"kube-router.io/service.dsr": "tunnel",
 "kube-router.io/service.scheduler": "sh"}},
 "spec": {"clusterIP": "10.96.0.20", "externalIPs": ["198.51.100.20", "10.96.0.20"], "ports": [{"port": 443, "targetPort": "tls"}]}},
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "ports": [{"port": 1}]}},
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "alias"}, "spec": {"type": "ExternalName", "externalName": "x.example"}},
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
 "metadata": {"name": "api-1", "labels": {"kubernetes.io/service-name": "api"}},
 "ports": [{"port": 6443}], "endpoints": [{"addresses": ["172.16.0.2"]}, {"addresses": ["172.16.0.1"], "nodeName": "node-1"}]},
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "not-read"}, "data": {"a": "b"}}
]}"#,
    r#"
apiVersion: v1
kind: ServiceList
items:
- &one
  metadata: {name: one, labels: &labels {a: b, service.kubernetes.io/service-proxy-name: ""}}
  spec: &spec
    clusterIP: 10.96.0.31
    ports: [{port: 80}]
    internalTrafficPolicy: Local
- metadata: {name: two, labels: *labels}
  spec: {clusterIP: 10.96.0.32, ports: [{port: 80, appProtocol: h2}], trafficDistribution: PreferClose}
- metadata: {name: three, namespace: ""}
  spec: {clusterIP: "2001:db8:c::33", type: NodePort, ports: [{port: 80, nodePort: 30033}], publishNotReadyAddresses: true}
"#,
];

/// Flags that change how the model computes.
const FLAGS: [&[&str]; 4] = [
    &[],
    &["--forwarding", "dsr", "--algorithm", "maglev"],
    &["--nodeport-addresses", "172.16.0.0/16", "--service-external-ip-range", "198.51.100.0/24"],
    &["--cluster-cidr", "10.244.0.0/16"],
];

#[test]
fn a_faulty_manifest_leaves_all_others_served_and_is_named_once() {
    play(INPUTS, |random, given| {
        let mut node = Node::new(FLAGS[random.below(FLAGS.len())]);
        node.give(&path("/manifests/a.yaml"), UNTOUCHED.into());
        let original = *random.pick(&ORIGINALS);
        let file = path(if original.starts_with('{') { "/manifests/b.json" } else { "/manifests/b.yaml" });
        let good = node.give(&file, original.into());
        assert!(good.is_complete, "the original");
        let served = node.served();
        assert_eq!(served.unserved(), []);
        for _ in 0..=random.below(3) {
            let text = mutated(random, original, &file);
            given.note(String::from_utf8_lossy(&text));
            let before = node.served();
            let told = node.give(&file, text.clone());
            check(&told, &before, &node.served());
            let again = node.give(&file, text);
            assert!(again.changes == 0 && again.problems.is_empty(), "named again: {:?}", again.problems);
        }
        let repaired = node.give(&file, original.into());
        assert!(repaired.is_complete, "the original after its faults");
        assert_eq!(node.served(), served, "the original after its faults");
    });
}

fn path(path: &str) -> Arc<Path> {
    Path::new(path).into()
}

/// Returns the text with faults in its letters, or in its values.
fn mutated(random: &mut Random, original: &str, file: &Path) -> Vec<u8> {
    if random.one_in(2) {
        return mutate::text(random, original);
    }
    let is_json = file.extension().is_some_and(|extension| extension == "json");
    let documents =
        serde_norway::Deserializer::from_str(original).map(|one| Value::deserialize(one).unwrap());
    let documents: Vec<Value> = documents.map(|one| mutate::value(random, one)).collect();
    let texts = documents.iter().map(|one| {
        // JSON is YAML, too.
        if is_json || random.one_in(3) {
            serde_json::to_string(one).unwrap()
        } else {
            serde_norway::to_string(one).unwrap()
        }
    });
    let texts: Vec<String> = texts.collect();
    texts.join(if is_json { "\n" } else { "\n---\n" }).into_bytes()
}

/// Checks the problems, and what is served after a faulty text.
fn check(told: &Told, before: &Served, after: &Served) {
    let messages: Vec<String> = told.problems.iter().map(ToString::to_string).collect();
    for message in &messages {
        assert_is_one_line(message);
    }
    let distinct: BTreeSet<&String> = messages.iter().collect();
    assert_eq!(distinct.len(), messages.len(), "a fault is named twice: {messages:?}");
    let is_unreadable =
        messages.iter().any(|message| message.ends_with("last readable contents stay in force"));
    if is_unreadable {
        assert_eq!((messages.len(), told.changes), (1, 0), "{messages:?}");
        assert_eq!(before, after, "an unreadable file keeps what it said before");
    }
    // An input may reach the other file's Service only by a claim on one of its addresses.
    if !messages.iter().any(|message| message.contains(KEPT)) {
        assert_eq!(before.kept(), after.kept());
    }
    assert_eq!(after.unserved(), []);
}
