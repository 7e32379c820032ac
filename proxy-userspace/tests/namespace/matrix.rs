//! The rows of the reachability matrix between nodes, and the rows without a Service, between
//! containers and hosts. `inside` has the rows within a node.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family};
use millrace_lab::traffic::{Protocol, ask};

use crate::fixture::{own, shared};

/// Asks over both families and protocols. The answer must come from this backend, and the backend
/// must see this source: the client, or its translated address.
fn is_served(from: &Namespace, address: Dual, port: u16, backend: &str, seen: Option<Dual>) -> Result<()> {
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let target = SocketAddr::new(address.of(family), port);
        let answer = ask(from, protocol, target)?;
        let is_right = match seen {
            Some(source) => answer.sighting.peer.ip() == source.of(family),
            None => answer.kept_client(),
        };
        ensure!(
            is_right && answer.sighting.backend == backend,
            "{} asked {} {target}: {answer:?}",
            from.name(),
            protocol.name()
        );
    }
    Ok(())
}

/// Returns the namespaces of a pod on the first node and of that node.
fn inside(cluster: &Cluster) -> Result<[&Namespace; 2]> {
    Ok([cluster.bed().pod("pod-1a")?.namespace(), cluster.bed().node(1)?.namespace()])
}

#[test]
fn pods_and_hosts_reach_each_other_on_one_node_and_across_as_if_there_was_no_proxy() -> Result<()> {
    const HOST_PORT: u16 = 9100;
    let mut cluster = own(2, 2)?;
    for node in [1, 2] {
        cluster.start_host_server(node, HOST_PORT)?;
    }
    let service = cluster.service("beside", 1, &["pod-1a", "pod-2a"])?.node_ports(31900);
    cluster.apply(&service, &[1, 2])?;
    for from in inside(&cluster)? {
        for pod in ["pod-1a", "pod-1b", "pod-2a"] {
            is_served(from, cluster.bed().pod(pod)?.addresses(), TARGET_PORT, pod, None)?;
        }
        for node in [1, 2] {
            let host = cluster.bed().node(node)?;
            is_served(from, host.addresses(), HOST_PORT, &format!("host-node{node}"), None)?;
        }
    }
    Ok(())
}

/// The other node takes the client for one outside. It serves its own pods without translation, and
/// all others by SNAT. The asking pod is one of the others.
#[test]
fn a_node_port_of_another_node_leads_to_its_pods_to_the_clients_node_and_to_the_client() -> Result<()> {
    let cluster = shared();
    let other = cluster.bed().node(2)?.addresses();
    for (number, port, backend, seen) in [
        (245, 32450, "pod-2a", None),
        (246, 32460, "pod-1b", Some(other)),
        (247, 32470, "pod-1a", Some(other)),
        (248, 32480, "pod-3a", Some(other)),
    ] {
        let service = cluster.service(&format!("node-port-{number}"), number, &[backend])?.node_ports(port);
        cluster.apply(&service, &[2])?;
        for from in inside(&cluster)? {
            is_served(from, other, port, backend, seen)?;
        }
    }
    Ok(())
}
