//! Backends on the client's director.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::capture::Trail;
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Dual, Family, vip};
use millrace_lab::traffic::{Protocol, ask, ask_here, send};
use millrace_lab::walk::Walk;

use crate::fixture::{counted, expect_large_bodies, shared};

#[test]
fn node_ports_external_ips_and_load_balancers_reach_local_pods_that_see_the_client() -> Result<()> {
    let cluster = shared();
    let service =
        cluster.service("reached", 1, &["pod-1a"])?.node_ports(31010).external(vip(1)).load_balancer(vip(2));
    cluster.apply(&service, &[1])?;
    let node = cluster.bed().node(1)?.addresses();
    for (address, port) in [(node, 31010), (vip(1), 80), (vip(2), 80)] {
        cluster.expect(&Walk::to(service.name(), address, port, &["pod-1a"], Trail::local("node1")))?;
    }
    Ok(())
}

#[test]
fn replies_of_two_local_backends_of_one_service_are_distinguished() -> Result<()> {
    let cluster = shared();
    let pods = ["pod-1a", "pod-1b"];
    let service = cluster.service("pair", 2, &pods)?.node_ports(31020);
    cluster.apply(&service, &[1])?;
    let node = cluster.bed().node(1)?.addresses();
    cluster.expect(&Walk::to(service.name(), node, 31020, &pods, Trail::local("node1")))
}

#[test]
fn policy_local_keeps_to_the_nodes_own_pods() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("own-pods", 3, &["pod-1b", "pod-2a", "pod-2b"])?.node_ports(31030).local();
    cluster.apply(&service, &[1, 2])?;
    let [first, second] = [cluster.bed().node(1)?.addresses(), cluster.bed().node(2)?.addresses()];
    cluster.expect(&Walk::to(service.name(), first, 31030, &["pod-1b"], Trail::local("node1")))?;
    cluster.expect(&Walk::to(service.name(), second, 31030, &["pod-2a", "pod-2b"], Trail::local("node2")))
}

#[test]
fn policy_local_drops_and_counts_where_no_endpoint_is_local() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("elsewhere", 4, &["pod-2a"])?.node_ports(31040).local();
    cluster.apply(&service, &[3])?;
    let node = cluster.bed().node(3)?.addresses();
    expect_counted(&cluster, 3, node, 31040, "no_local_endpoint")
}

/// Sends one packet of each kind to a node. None is answered, and each is counted for `reason`.
fn expect_counted(cluster: &Cluster, node: u8, address: Dual, port: u16, reason: &str) -> Result<()> {
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let before = counted(cluster, node, reason)?;
        let target = SocketAddr::new(address.of(family), port);
        let silent = send(cluster.bed().client(), protocol, target);
        let what = format!("{family} {} is counted as {reason}", protocol.name());
        cluster.proxy(node)?.wait_until(&what, || Ok(counted(cluster, node, reason)? > before))?;
        anyhow::ensure!(silent.is_silent(), "{what}, and answered");
    }
    Ok(())
}

#[test]
fn a_host_process_is_a_backend_on_a_port_of_its_own() -> Result<()> {
    let mut cluster = shared();
    cluster.start_host_server(2, 9090)?;
    let service = Service::new("host", 7).port(80, 9090).host(cluster.bed().node(2)?).node_ports(31070);
    cluster.apply(&service, &[2])?;
    let node = cluster.bed().node(2)?.addresses();
    cluster.expect(&Walk::to(service.name(), node, 31070, &["host-node2"], Trail::local("node2")))
}

#[test]
fn large_bodies_cross_in_both_directions() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("large", 8, &["pod-1a"])?.load_balancer(vip(8));
    cluster.apply(&service, &[1])?;
    expect_large_bodies(&cluster, vip(8))
}

#[test]
fn packets_to_a_pods_own_address_pass_untouched() -> Result<()> {
    let cluster = shared();
    let pod = cluster.bed().pod("pod-3a")?;
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let target = SocketAddr::new(pod.addresses().of(family), TARGET_PORT);
        let answer = ask(cluster.bed().client(), protocol, target)?;
        assert!(answer.kept_client() && answer.sighting.backend == "pod-3a", "{answer:?}");
        let other = cluster.bed().pod("pod-1a")?.namespace();
        let answer = other.run(async move || ask_here(protocol, target).await)?;
        assert!(answer.kept_client(), "{answer:?}");
    }
    Ok(())
}
