//! The size of a node's tables in a large cluster.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::{Value, json};

use super::testing::{namespace, node, pod, policy};
use super::{Compiled, Index, RuleKey, Site};

const NAMESPACES: usize = 100;
const NODES: usize = 100;
const PODS: usize = 10_000;
const POLICIES: usize = 1_000;
/// Pods on the node whose tables are measured: the kubelet's usual limit.
const PODS_HERE: usize = 110;
/// Applications in a namespace.
const APPS: usize = 10;

/// Bounds of the tables, with room of about a half.
const MOST_PEERS: usize = 30_000;
const MOST_RULES: usize = 400_000;

#[test]
fn tables_of_a_node_in_a_large_cluster_stay_small() {
    let begin = Instant::now();
    let mut index = Index::default();
    for number in 0..NAMESPACES {
        index.tell(namespace(&format!("ns{number}"), json!({"team": format!("t{}", number % 10)})));
    }
    for number in 0..PODS {
        index.tell(any_pod(number));
    }
    for number in 0..POLICIES {
        index.tell(any_policy(number));
    }
    println!("{PODS} pods and {POLICIES} policies read in {:?}", begin.elapsed());
    let site = Site { node: "node-1".to_owned(), addresses: node("node-1") };
    let begin = Instant::now();
    let compiled = index.compile(&site);
    println!("compiled in {:?}: {}", begin.elapsed(), size(&compiled));
    assert_eq!(index.pods_on("node-1").count(), PODS_HERE);
    assert_eq!(compiled.pods.len(), PODS_HERE);
    assert!(compiled.peers.len() < MOST_PEERS && compiled.rules.len() < MOST_RULES, "{}", size(&compiled));
    // Two for each pod, and those of single policies.
    assert!(
        compiled.profiles() <= 2 * PODS_HERE + POLICIES && compiled.classes() < PODS,
        "{}",
        size(&compiled)
    );
    // A pod comes: what stays keeps its numbers, and few entries are new.
    drop(index.take_changes());
    index.tell(any_pod(PODS));
    let mut stepped = compiled.clone();
    let changes = index.take_changes();
    let begin = Instant::now();
    let step = index.step(&site, &mut stepped, &changes).unwrap();
    println!("followed in {:?}", begin.elapsed());
    assert_eq!((step.addresses.len(), step.rules.len()), (2, 0));
    let begin = Instant::now();
    let next = index.compile_after(&site, &compiled);
    println!("compiled again in {:?}: {}", begin.elapsed(), size(&next));
    let former: BTreeSet<&RuleKey> = compiled.rules.iter().collect();
    let fresh = next.rules.iter().filter(|key| !former.contains(key)).count();
    assert_eq!(fresh, 0, "a pod like others adds addresses alone");
    assert!((1..=2).contains(&(next.peers.len() - compiled.peers.len())));
}

fn size(compiled: &Compiled) -> String {
    format!(
        "{} pods, {} profiles, {} classes, {} peers, {} rules",
        compiled.pods.len(),
        compiled.profiles(),
        compiled.classes(),
        compiled.peers.len(),
        compiled.rules.len()
    )
}

/// Returns a pod of both families. The first ones are on the node, one or two of each namespace.
fn any_pod(number: usize) -> Value {
    let on = if number < PODS_HERE { 1 } else { 2 + number % (NODES - 1) };
    let (namespace, app) = (number % NAMESPACES, number / NAMESPACES % APPS);
    let addresses =
        [format!("10.{}.{}.{}", 64 + on, number / 250, number % 250), format!("fd00:{on:x}::{number:x}")];
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let ports = json!([{"name": "http", "containerPort": 8000 + app}]);
    let labels = json!({"app": format!("a{app}"), "hash": format!("h{app}")});
    pod(&format!("ns{namespace}/p{number}"), &format!("node-{on}"), &addresses, labels, ports)
}

/// Returns one of the ten policies of a namespace, of the kinds that clusters have.
fn any_policy(number: usize) -> Value {
    let (namespace, kind) = (number % NAMESPACES, number / NAMESPACES);
    let app = |app: usize| json!({"matchLabels": {"app": format!("a{app}")}});
    let own = json!({"kubernetes.io/metadata.name": format!("ns{}", (namespace + 1) % NAMESPACES)});
    let both = json!(["Ingress", "Egress"]);
    let spec = match kind {
        0 => json!({"podSelector": {}, "policyTypes": both}),
        1 => json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
            {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]},
        ]}),
        2 => json!({"podSelector": app(0), "ingress": [{"ports": [{"port": "http"}]}]}),
        3 => json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}),
        4 => {
            json!({"podSelector": app(1), "ingress": [{"from": [{"podSelector": app(0)}], "ports": [{"port": 8001}]}]})
        }
        5 => json!({"podSelector": {}, "ingress": [{"from": [
            {"namespaceSelector": {"matchLabels": own}, "podSelector": app(2)},
        ], "ports": [{"port": "http"}]}]}),
        6 => json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
            {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", format!("192.168.{namespace}.0/24")]}}]},
        ]}),
        7 => json!({"podSelector": {}, "ingress": [{"from": [
            {"namespaceSelector": {"matchLabels": {"team": format!("t{}", namespace % 10)}}},
        ], "ports": [{"port": 9100, "endPort": 9200}]}]}),
        8 => json!({"podSelector": app(3), "policyTypes": ["Egress"], "egress": [
            {"to": [{"podSelector": app(4)}], "ports": [{"port": "http"}]},
        ]}),
        _ => json!({"podSelector": app(5), "ingress": [{"from": [
            {"ipBlock": {"cidr": format!("172.16.{namespace}.0/24")}},
        ]}]}),
    };
    policy(&format!("ns{namespace}/k{kind}"), spec)
}
