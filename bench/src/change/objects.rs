//! The measured Service.

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, Node, Pod};
use serde_json::{Value, json};

use crate::others;

/// Its name.
const MEASURED: &str = "measured";
/// Its NodePort.
pub const NODE_PORT: u16 = 30_080;
/// Port of its endpoints.
pub const TARGET: u16 = 9_000;

/// Puts it, without an endpoint.
pub fn put_service(cluster: &Cluster) -> Result<()> {
    put(cluster, MEASURED, service())
}

/// Makes a pod its only endpoint.
pub fn set_endpoint(cluster: &Cluster, node: &Node, pod: &Pod) -> Result<()> {
    let address = pod.addresses().of(Family::V4);
    put(cluster, "endpoint", others::slice(MEASURED, address, TARGET, node.name()))
}

fn put(cluster: &Cluster, file: &str, object: Value) -> Result<()> {
    match cluster.api_server() {
        Ok(server) => server.kube().put(object),
        Err(_) => others::put_list(cluster, file, &[object]),
    }
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": MEASURED},
        "spec": {
            "type": "NodePort",
            "clusterIP": "10.96.0.200",
            "ports": [{"protocol": "UDP", "port": 80, "targetPort": TARGET, "nodePort": NODE_PORT}],
        },
    })
}
