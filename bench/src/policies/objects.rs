//! A large cluster: a hundred namespaces with ten applications each, and policies of the kinds that clusters have.

use anyhow::Result;
use millrace::policy::{Change, Object};
use millrace::source::{PolicyBatch, PolicyEvent};
use serde_json::{Value, from_value, json};

/// The node whose tables are measured.
pub const NODE: &str = "node-1";
/// Its pods: the kubelet's usual limit.
const PODS_HERE: usize = 110;
const NAMESPACES: usize = 100;
const NODES: usize = 100;
const APPS: usize = 10;

/// The size of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub pods: usize,
    pub policies: usize,
}

/// Returns all objects, as a source lists them.
pub fn listed(sizes: Sizes) -> Result<PolicyBatch> {
    let mut batch = Vec::new();
    for number in 0..NAMESPACES {
        let labels = json!({"team": format!("t{}", number % 10)});
        let namespace = json!({"metadata": {"name": format!("ns{number}"), "labels": labels}});
        batch.push(PolicyEvent::Change(upsert(Object::Namespace(from_value(namespace)?))));
    }
    for number in 0..sizes.pods {
        batch.push(PolicyEvent::Change(any_pod(number)?));
    }
    for number in 0..sizes.policies {
        batch.push(PolicyEvent::Change(any_policy(number)?));
    }
    batch.push(PolicyEvent::Listed);
    Ok(batch)
}

/// Returns a pod of both families. The first ones are on the node, one or two of each namespace.
pub fn any_pod(number: usize) -> Result<Change> {
    let on = if number < PODS_HERE { 1 } else { 2 + number % (NODES - 1) };
    let app = number / NAMESPACES % APPS;
    let addresses =
        [format!("10.{}.{}.{}", 64 + on, number / 250, number % 250), format!("fd00:{on:x}::{number:x}")];
    let addresses = addresses.map(|ip| json!({"ip": ip}));
    // A ReplicaSet gives its pods a hash that no selector names.
    let labels = json!({"app": format!("a{app}"), "pod-template-hash": format!("h{}", number / 1_000)});
    let ports = json!([{"name": "http", "containerPort": 8_000 + app}]);
    Ok(upsert(Object::Pod(from_value(json!({
        "metadata": {"namespace": format!("ns{}", number % NAMESPACES), "name": format!("p{number}"), "uid": format!("{number}"), "labels": labels},
        "spec": {"nodeName": format!("node-{on}"), "containers": [{"name": "main", "ports": ports}]},
        "status": {"phase": "Running", "podIPs": addresses},
    }))?)))
}

fn any_policy(number: usize) -> Result<Change> {
    let (namespace, kind) = (number % NAMESPACES, number / NAMESPACES % 5);
    let next = json!({"matchLabels": {"kubernetes.io/metadata.name": format!("ns{}", (namespace + 1) % NAMESPACES)}});
    let team = json!({"matchLabels": {"team": format!("t{}", namespace % 10)}});
    let spec = match kind {
        0 => json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        1 => json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
            {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]},
            {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", format!("192.168.{namespace}.0/24")]}}]},
        ]}),
        2 => {
            json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": "http"}]}]})
        }
        3 => json!({"podSelector": app(number), "ingress": [{"from": [
            {"namespaceSelector": next, "podSelector": app(number + 1)},
        ], "ports": [{"port": 9_000, "endPort": 9_100}]}]}),
        _ => {
            json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": team}], "ports": [{"port": 9_100}]}]})
        }
    };
    policy(namespace, &format!("k{number}"), &spec)
}

/// Returns a policy for the pods of the node that no other one is like.
pub fn other_policy(number: usize) -> Result<Change> {
    let port = 10_000 + number;
    policy(
        0,
        &format!("other{number}"),
        &json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": app(number)}], "ports": [{"port": port}]}]}),
    )
}

fn app(number: usize) -> Value {
    json!({"matchLabels": {"app": format!("a{}", number % APPS)}})
}

fn policy(namespace: usize, name: &str, spec: &Value) -> Result<Change> {
    let policy = json!({"metadata": {"namespace": format!("ns{namespace}"), "name": name}, "spec": spec});
    Ok(upsert(Object::NetworkPolicy(from_value(policy)?)))
}

fn upsert(object: Object) -> Change {
    Change::Upsert { object, file: None }
}
