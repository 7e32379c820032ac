//! Manifests of Namespaces, pods and NetworkPolicies.

use serde_json::{Value, json};

/// Returns a Namespace.
pub fn namespace(name: &str, labels: Value) -> Value {
    let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    namespace["metadata"]["labels"] = labels;
    namespace
}

/// Returns a pod, named `namespace/name`, whose ports are those of its only container.
pub fn pod(name: &str, node: &str, addresses: &[&str], labels: Value, ports: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}")},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "podIPs": addresses},
    });
    pod["metadata"]["labels"] = labels;
    pod["spec"]["containers"][0]["ports"] = ports;
    pod
}

/// Returns a policy, named `namespace/name`.
pub fn policy(name: &str, spec: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    let metadata = json!({"namespace": namespace, "name": name});
    let mut policy =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata});
    policy["spec"] = spec;
    policy
}
