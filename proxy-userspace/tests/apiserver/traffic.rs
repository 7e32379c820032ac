//! Traffic to Services that came through the API.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::capture::Trail;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};
use millrace_lab::walk::Walk;

use crate::fixture::{remove, shared};

#[test]
fn every_kind_of_frontend_leads_its_client_to_a_pod_that_sees_it() -> Result<()> {
    let cluster = shared();
    let pods = ["pod-1a", "pod-1b"];
    let service =
        cluster.service("walked", 20, &pods)?.node_ports(30120).external(vip(120)).load_balancer(vip(121));
    cluster.apply(&service, &[1])?;
    let node = cluster.bed().node(1)?.addresses();
    for (address, port) in [(node, 30120), (vip(120), 80), (vip(121), 80)] {
        cluster.expect(&Walk::to(service.name(), address, port, &pods, Trail::local("node1")))?;
    }
    // A socket inside the cluster is connected to the pod itself.
    let inside = Walk::to(service.name(), service.cluster_ips(), 80, &pods, Trail::default());
    cluster.expect(&Walk { from: Some("pod-1a".to_owned()), ..inside })?;
    remove(&cluster, &service)
}

#[test]
fn direct_return_reaches_pods_of_another_node() -> Result<()> {
    let cluster = shared();
    let direct = cluster.service("direct", 21, &["pod-2a", "pod-2b"])?.load_balancer(vip(122));
    let direct = direct.annotation("millrace.dev/forwarding", "dsr");
    cluster.apply(&direct, &[1, 2])?;
    let trail = Trail::direct_return("node1", "node2");
    cluster.expect(&Walk::to(direct.name(), vip(122), 80, &["pod-2a", "pod-2b"], trail))?;
    remove(&cluster, &direct)
}

#[test]
fn policy_local_is_served_where_the_endpoints_are() -> Result<()> {
    let cluster = shared();
    let local = cluster.service("local", 22, &["pod-1a", "pod-2a"])?.node_ports(30122).local();
    cluster.apply(&local, &[1, 2])?;
    for (node, pod) in [(1, "pod-1a"), (2, "pod-2a")] {
        let address = cluster.bed().node(node)?.addresses();
        cluster.expect(&Walk::to(
            local.name(),
            address,
            30122,
            &[pod],
            Trail::local(&format!("node{node}")),
        ))?;
    }
    remove(&cluster, &local)
}

#[test]
fn a_service_that_scales_is_followed_by_traffic_at_once() -> Result<()> {
    let cluster = shared();
    for pods in [&["pod-1a"][..], &["pod-1a", "pod-1b"], &["pod-1b"]] {
        let scaled = cluster.service("scaled", 23, pods)?.external(vip(123));
        cluster.apply(&scaled, &[1])?;
        cluster.expect(&Walk::to(scaled.name(), vip(123), 80, pods, Trail::local("node1")))?;
    }
    remove(&cluster, &cluster.service("scaled", 23, &[])?)
}

#[test]
fn session_affinity_keeps_a_client_with_its_pod() -> Result<()> {
    let cluster = shared();
    let sticky = cluster.service("sticky", 24, &["pod-1a", "pod-1b"])?.external(vip(124));
    cluster.apply(&sticky, &[1])?;
    let affinity = serde_json::json!({"spec": {"sessionAffinity": "ClientIP"}});
    cluster.api_server()?.kube().patch("v1", "Service", "default", "sticky", affinity)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("the affinity is in the maps", || {
        let rows = proxy.services()?.into_iter().filter(|row| row.name == "sticky");
        let mut frontends = rows.flat_map(|row| row.frontends);
        Ok(frontends.all(|frontend| frontend.affinity_seconds == 10_800))
    })?;
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let target = SocketAddr::new(vip(124).of(family), 80);
        let first = ask(cluster.bed().client(), protocol, target)?.sighting.backend;
        for _ in 0..20 {
            assert_eq!(ask(cluster.bed().client(), protocol, target)?.sighting.backend, first, "{family}");
        }
    }
    remove(&cluster, &sticky)
}
