//! Direct Server Return in UDP, for networks that do not carry IP in IP.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use millrace_lab::capture::{Capture, Trail};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::pool::{Pool, Taken};
use millrace_lab::topology::{Family, Shape, vip};
use millrace_lab::traffic::{LongConnections, Protocol, Stream, ask};
use millrace_lab::walk::Walk;

use crate::fixture::{expect_large_bodies, expect_no_loss, xdp};

const LIMIT: Duration = Duration::from_secs(2);
const FOU: [&str; 2] = ["--dsr-encap", "fou"];

fn direct(cluster: &Cluster, pods: &[&str]) -> Result<Service> {
    let service = cluster.service("direct", 1, pods)?.load_balancer(vip(1)).node_ports(31700);
    Ok(service.annotation("millrace.dev/forwarding", "dsr"))
}

/// Starts two nodes with these flags for their agents.
fn start(flags: &[&str]) -> Result<Cluster> {
    Cluster::start_with(Shape { nodes: 2, pods: 2, ..Shape::default() }, &xdp(), flags)
}

/// Returns such a cluster for tests that break nothing.
fn shared() -> Taken {
    static SHARED: Pool = Pool::new(1, || {
        let cluster = start(&FOU)?;
        cluster.apply(&direct(&cluster, &["pod-2a"])?, &[1, 2])?;
        Ok(cluster)
    });
    SHARED.take().unwrap()
}

/// Returns the outer source port of a client's next packet to a Service.
fn udp_of_tunnel(cluster: &Cluster, family: Family, protocol: Protocol) -> Result<Option<u16>> {
    let frontend = SocketAddr::new(vip(1).of(family), 80);
    let mut capture = Capture::start(cluster.bed().router(), &["node1"])?;
    let client = ask(cluster.bed().client(), protocol, frontend)?.client;
    let sent_on = capture.wait_for(LIMIT, |captured| {
        captured.packet.is_between(client, frontend) && captured.packet.tunnel.is_some()
    })?;
    Ok(sent_on.packet.tunnel.and_then(|tunnel| tunnel.udp))
}

#[test]
fn everything_that_leaves_for_another_node_travels_in_udp() -> Result<()> {
    let cluster = shared();
    let service = direct(&cluster, &["pod-2a"])?;
    let trail = || Trail::direct_return("node1", "node2");
    cluster.expect(&Walk::to(service.name(), vip(1), 80, &["pod-2a"], trail()))?;
    let node = cluster.bed().node(1)?.addresses();
    cluster.expect(&Walk::to(service.name(), node, 31700, &["pod-2a"], trail()))?;
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let port = udp_of_tunnel(&cluster, family, protocol)?;
        assert!(port.is_some_and(|port| port >= 0xc000), "{family} {protocol:?}: {port:?}");
    }
    Ok(())
}

#[test]
fn large_bodies_fit_the_tunnel_in_udp() -> Result<()> {
    let cluster = shared();
    expect_large_bodies(&cluster, vip(1))
}

#[test]
fn nodes_are_switched_one_by_one_without_losing_a_connection() -> Result<()> {
    let mut cluster = start(&[])?;
    cluster.apply(&direct(&cluster, &["pod-2a", "pod-2b"])?, &[1, 2])?;
    let mut traffic = Vec::new();
    for family in Family::ALL {
        let target = SocketAddr::new(vip(1).of(family), 80);
        let client = cluster.bed().client();
        let connections = LongConnections::open(client, target, 20, 20)?;
        traffic.push((connections, Stream::start(client, target, Duration::from_millis(1))?));
        assert_eq!(udp_of_tunnel(&cluster, family, Protocol::Tcp)?, None);
    }
    // First all nodes accept both, then each one sends the other, then they accept only that.
    let steps = [("ipip,fou", false), ("fou,ipip", true), ("fou", true)];
    for (start, (flag, is_udp)) in (2..).zip(steps) {
        for node in [1, 2] {
            cluster.start_agent_with(node, &["--dsr-encap", flag])?;
            cluster.proxy(node)?.wait_for_start(start)?;
            for family in Family::ALL {
                let port = udp_of_tunnel(&cluster, family, Protocol::Tcp)?;
                assert_eq!(port.is_some(), is_udp, "{flag} on node {node}, {family}");
            }
        }
    }
    for (connections, stream) in traffic {
        assert_eq!(connections.stop()?, 40);
        expect_no_loss(&cluster, stream)?;
    }
    Ok(())
}
