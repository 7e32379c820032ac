//! A cluster with both modes: the director and the backends' node have different ones.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::capture::Trail;
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, Shape, vip};
use millrace_lab::traffic::{Connection, LongConnections};
use millrace_lab::walk::Walk;

use crate::direct::{direct, wait_for_places};
use crate::fixture::{self, Altered, FLAGS, end_agent, start_agent};

#[test]
fn a_director_in_ipvs_mode_reaches_pods_of_a_node_in_ebpf_mode() -> Result<()> {
    let mut cluster = Altered::new(|cluster| end_agent(cluster, 2));
    start_agent(&mut cluster, 2, &["--proxy-mode", "ebpf"])?;
    cluster.wait_for_hooks(2)?;
    let service = direct(&cluster, "both-modes", 66, &["pod-2a", "pod-2b"])?.node_ports(31566);
    cluster.apply(&service, &[2])?;
    wait_for_places(&cluster, 1, "marks", 66, 80)?;
    let straight = || Trail::direct_return("node1", "node2");
    cluster.expect(&Walk::to("both-modes", vip(66), 80, &["pod-2a", "pod-2b"], straight()))?;
    let node = cluster.bed().node(1)?.addresses();
    cluster.expect(&Walk::to("both-modes", node, 31566, &["pod-2a", "pod-2b"], straight()))?;
    // The port of the endpoints differs from the Service's, and segments fit the tunnel.
    let targets = Family::ALL.map(|family| SocketAddr::new(vip(66).of(family), 80));
    let mut all = Vec::new();
    for target in targets {
        let answer = cluster
            .bed()
            .client()
            .run(async move || Connection::open(target).await?.upload(100_000).await)?;
        assert!(answer.sighting.received == 100_000 && answer.kept_client(), "{answer:?}");
        all.push(LongConnections::open(cluster.bed().client(), target, 3, 2)?);
    }
    // Restarts of both agents cut no connection.
    start_agent(&mut cluster, 2, &["--proxy-mode", "ebpf"])?;
    start_agent(&mut cluster, 1, &FLAGS)?;
    for connections in all {
        assert_eq!(connections.stop()?, 5);
    }
    Ok(())
}

#[test]
fn a_director_in_ebpf_mode_that_addresses_pods_reaches_pods_of_a_node_in_ipvs_mode() -> Result<()> {
    let _turn = fixture::shared();
    let mut cluster = Cluster::without_agents(Shape { nodes: 2, pods: 1, ..Shape::default() }, "off")?;
    cluster.start_agent_with(1, &["--proxy-mode", "ebpf", "--dsr-dispatch", "pod"])?;
    cluster.start_agent_with(2, &FLAGS)?;
    cluster.wait_for_hooks(1)?;
    cluster.proxy(2)?.wait_for_start(1)?;
    let service = Service::new("modes", 60).port(TARGET_PORT, TARGET_PORT);
    let service = service.pod(cluster.bed().node(2)?, cluster.bed().pod("pod-2a")?);
    cluster.apply(&service.load_balancer(vip(60)).annotation("millrace.dev/forwarding", "dsr"), &[1])?;
    cluster.wait_for_ways(1)?;
    wait_for_places(&cluster, 2, "targets", 60, TARGET_PORT)?;
    let straight = Trail::direct_return("node1", "node2");
    cluster.expect(&Walk::to("modes", vip(60), TARGET_PORT, &["pod-2a"], straight))
}
