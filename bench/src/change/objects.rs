//! The Services of the cluster: the measured one, and all others.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, Node, Pod};
use serde_json::{Value, json};

/// Name of the measured Service.
const MEASURED: &str = "measured";
/// Its NodePort.
pub const NODE_PORT: u16 = 30_080;
/// Port of its endpoints.
pub const TARGET: u16 = 9_000;
const SLICES: &str = "discovery.k8s.io/v1";

/// Puts the measured Service, and `others` further ones with an endpoint each.
pub fn fill(cluster: &Cluster, others: u32, node: &str) -> Result<()> {
    let services = (1..=others).map(other_service);
    let slices = (1..=others).map(|number| other_slice(number, node));
    let Ok(server) = cluster.api_server() else {
        let items: Vec<Value> = services.chain(slices).collect();
        put_list(cluster, "others", &items)?;
        return put_list(cluster, MEASURED, &[service()]);
    };
    let kube = server.kube();
    kube.create_all("/api/v1/namespaces/default/services", services.collect())?;
    kube.create_all("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slices.collect())?;
    kube.put(service())
}

/// Makes a pod the only endpoint of the measured Service.
pub fn set_endpoint(cluster: &Cluster, node: &Node, pod: &Pod) -> Result<()> {
    let address = pod.addresses().of(Family::V4);
    let object = slice(MEASURED, address, node.name());
    match cluster.api_server() {
        Ok(server) => server.kube().put(object),
        Err(_) => put_list(cluster, "endpoint", &[object]),
    }
}

fn put_list(cluster: &Cluster, name: &str, items: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    cluster.manifests().put(&format!("{name}.yaml"), &list.to_string()).context("the directory of manifests")
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

fn other_service(number: u32) -> Value {
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

fn other_slice(number: u32, node: &str) -> Value {
    slice(&name(number), at(Ipv4Addr::new(10, 250, 0, 0), number).into(), node)
}

fn slice(service: &str, address: IpAddr, node: &str) -> Value {
    json!({
        "apiVersion": SLICES,
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"protocol": "UDP", "port": TARGET}],
        "endpoints": [{"addresses": [address], "nodeName": node, "conditions": {"ready": true}}],
    })
}

fn name(number: u32) -> String {
    format!("other-{number}")
}

fn at(first: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first) + number)
}
