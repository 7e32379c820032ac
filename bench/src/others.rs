//! Services that nobody asks, so that a proxy has many.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use millrace_lab::cluster::Cluster;
use serde_json::{Value, json};

/// Port of their endpoints, which do not exist.
const TARGET: u16 = 9_000;

/// Puts `number` Services with an endpoint each on a node.
pub fn put(cluster: &Cluster, number: u32, node: &str) -> Result<()> {
    let services: Vec<Value> = (1..=number).map(service).collect();
    let address = |number| at(Ipv4Addr::new(10, 250, 0, 0), number).into();
    let slices = (1..=number).map(|number| slice(&name(number), address(number), TARGET, node));
    let slices: Vec<Value> = slices.collect();
    let Ok(server) = cluster.api_server() else {
        return put_list(cluster, "others", &[services, slices].concat());
    };
    let kube = server.kube();
    kube.create_all("/api/v1/namespaces/default/services", services)?;
    kube.create_all("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slices)
}

/// Writes objects to a file of the directory that the agents follow.
pub fn put_list(cluster: &Cluster, name: &str, items: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    cluster.manifests().put(&format!("{name}.yaml"), &list.to_string()).context("the directory of manifests")
}

/// Returns an IPv4 EndpointSlice with one endpoint and a port over UDP.
pub fn slice(service: &str, address: IpAddr, port: u16, node: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"protocol": "UDP", "port": port}],
        "endpoints": [{"addresses": [address], "nodeName": node, "conditions": {"ready": true}}],
    })
}

fn service(number: u32) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": name(number)},
        "spec": {
            "clusterIP": at(Ipv4Addr::new(10, 96, 1, 0), number),
            "ports": [{"protocol": "UDP", "port": 80, "targetPort": TARGET}],
        },
    })
}

fn name(number: u32) -> String {
    format!("other-{number}")
}

fn at(first: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first) + number)
}
