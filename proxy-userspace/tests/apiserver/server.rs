//! The test bed's API server by itself.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_lab::apiserver::{ApiServer, Kube};
use millrace_lab::manifests::{Service, nodes};
use millrace_lab::topology::{Bed, Shape};

use crate::fixture::RETURN_LIMIT;

#[test]
fn the_server_takes_objects_and_keeps_them_over_a_crash_and_a_compaction() -> Result<()> {
    let bed = Bed::new(Shape { nodes: 1, pods: 1, ..Shape::default() })?;
    let mut server = ApiServer::start(&bed)?;
    server.kube().put_all(nodes(&bed))?;
    let node = bed.node(1)?;
    let service = Service::new("web", 10).port(80, 8080).node_ports(30080).pod(node, node.pod(0)?);
    server.kube().put_all(service.objects())?;
    server.compact()?;
    server.kill_server()?;
    server.kill_etcd()?;
    server.start_etcd()?;
    server.start_server()?;
    // The server creates the Service `kubernetes` some time after its start.
    let end = Instant::now() + RETURN_LIMIT;
    while names_of_services(&server)?.len() < 2 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(names_of_services(&server)?, ["kubernetes", "web"]);
    server.kube().delete("v1", "Service", "default", "web")?;
    assert_eq!(names_of_services(&server)?, ["kubernetes"]);
    Ok(())
}

fn names_of_services(server: &ApiServer) -> Result<Vec<String>> {
    let services = server.kube().list("v1", "Service", "default")?;
    services
        .iter()
        .map(|service| {
            Ok(service["metadata"]["name"].as_str().context("a Service without a name")?.to_owned())
        })
        .collect()
}

#[test]
fn the_agents_account_may_read_what_it_follows_and_no_more() -> Result<()> {
    let bed = Bed::new(Shape { nodes: 1, pods: 0, ..Shape::default() })?;
    let server = ApiServer::start(&bed)?;
    let agent = Kube::connect(bed.node(1)?.namespace(), server.kubeconfig())?;
    for (version, kind) in [("v1", "Service"), ("v1", "Node"), ("discovery.k8s.io/v1", "EndpointSlice")] {
        agent.list(version, kind, "")?;
    }
    let refused = agent.list("v1", "Secret", "").unwrap_err();
    assert!(format!("{refused:#}").contains("secrets is forbidden"), "{refused:#}");
    assert!(agent.delete("v1", "Service", "default", "kubernetes").is_err());
    Ok(())
}
