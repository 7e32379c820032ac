//! Manifests.

use serde_json::{Value, json};

/// The image of backends and clients.
const IMAGE: &str = "millrace/agnhost:1";
/// The port of clients in pods.
pub const POD_CLIENT_PORT: u16 = 8080;
/// The port of clients in the nodes' network.
pub const NODE_CLIENT_PORT: u16 = 9080;
/// The number of seconds for which a backend goes on serving after it was asked to end.
const DRAIN: u8 = 5;

/// Returns a deployment of servers, spread over the nodes: HTTP at 8080, UDP at 8081.
pub fn backends(name: &str, replicas: u32) -> Vec<Value> {
    let mut pod = pod(name, &["netexec", "--http-port=8080", "--udp-port=8081"]);
    let spec = &mut pod["spec"];
    spec["terminationGracePeriodSeconds"] = 30.into();
    spec["containers"][0]["args"].as_array_mut().unwrap().push(format!("--delay-shutdown={DRAIN}").into());
    spec["containers"][0]["readinessProbe"] =
        json!({"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 1});
    spec["topologySpreadConstraints"] = json!([{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": name}},
    }]);
    vec![json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": {"app": name}},
            "template": pod,
        },
    })]
}

/// Returns a single server on one node.
pub fn backend_on(name: &str, node: &str) -> Value {
    let mut pod = pod(name, &["netexec", "--http-port=8080", "--udp-port=8081"]);
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["namespace"] = "default".into();
    pod["spec"]["nodeName"] = node.into();
    pod
}

/// Returns the clients: on every node one in a pod, and one in the node's own network.
pub fn clients() -> Vec<Value> {
    let daemon_set = |name: &str, port: u16, host_network: Value| {
        let mut pod = pod(name, &["netexec", &format!("--http-port={port}"), "--udp-port=-1"]);
        pod["spec"]["hostNetwork"] = host_network;
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": name}}, "template": pod},
        })
    };
    vec![
        daemon_set("pod-client", POD_CLIENT_PORT, false.into()),
        daemon_set("node-client", NODE_CLIENT_PORT, true.into()),
    ]
}

/// Returns a Service of both families for an app, with the ports `http` (80) and `udp` (81). `spec` is
/// merged into its spec.
pub fn service(name: &str, app: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"app": app},
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [
                {"name": "http", "port": 80, "targetPort": 8080},
                {"name": "udp", "port": 81, "protocol": "UDP", "targetPort": 8081},
            ],
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

fn pod(app: &str, arguments: &[&str]) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "dnsPolicy": "Default",
            "containers": [{
                "name": "agnhost",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "args": arguments,
            }],
        },
    })
}
