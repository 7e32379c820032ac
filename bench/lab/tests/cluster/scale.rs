//! A thousand Services through the real API.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_lab::kubernetes::wait;
use serde_json::json;

use super::clients::{Client, Protocol};
use super::fixture::{NODES, Service, shared};
use super::objects::service;

const SERVICES: u16 = 1000;
const LABEL: &str = "scale=yes";
const SERVED_LIMIT: Duration = Duration::from_mins(1);

#[test]
fn a_thousand_services_are_served_on_every_node() {
    let cluster = shared();
    let kubectl = cluster.kubectl();
    let object = |number: u16| {
        let mut object = service(&format!("scale-{number}"), "web", json!({}));
        object["metadata"]["labels"] = json!({"scale": "yes"});
        object
    };
    let start = Instant::now();
    let objects: Vec<_> = (1..SERVICES).map(object).collect();
    kubectl.create(&objects).unwrap();
    let created = start.elapsed();
    let last = Service::put(&kubectl, object(SERVICES), &[]).unwrap();
    // The controller writes an EndpointSlice of each family. The agents are not asked before.
    let name = format!("kubernetes.io/service-name=scale-{SERVICES}");
    wait("EndpointSlices", SERVED_LIMIT, || {
        let slices = kubectl.json(&["get", "endpointslices", "--selector", &name])?;
        ensure!(slices["items"].as_array().map(Vec::len) == Some(2), "they are not there");
        Ok(())
    })
    .unwrap();
    let (published, start) = (start.elapsed(), Instant::now());
    for number in 1..=NODES {
        let client = Client::on_node(&cluster, number).unwrap();
        for address in last.cluster_ips() {
            let target = SocketAddr::new(address.parse().unwrap(), 80);
            wait("the last Service", SERVED_LIMIT, || client.ask(Protocol::Http, target, "hostname"))
                .unwrap();
        }
    }
    let served = start.elapsed();
    println!(
        "{SERVICES} Services created in {created:.1?}, their endpoints published after {published:.1?}; \
         the last one was served on all nodes {served:.1?} later"
    );
    let sample = kubectl.json(&["get", "services", "--selector", LABEL]).unwrap();
    let sample = sample["items"].as_array().unwrap();
    assert_eq!(sample.len(), usize::from(SERVICES));
    let client = Client::in_pod(&cluster, 1).unwrap();
    for found in sample.iter().step_by(50) {
        let address = found["spec"]["clusterIP"].as_str().unwrap();
        let target = SocketAddr::new(address.parse().unwrap(), 80);
        wait("a Service", SERVED_LIMIT, || client.ask(Protocol::Http, target, "hostname")).unwrap();
    }
    kubectl.run(&["delete", "services", "--selector", LABEL, "--wait=false"]).unwrap();
}
