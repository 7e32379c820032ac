//! Encapsulated packets with sources of a prefix, so that receive queues are spread.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use ipnet::IpNet;
use millrace_lab::capture::{Capture, Trail};
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, Shape, vip};
use millrace_lab::traffic::{LongConnections, Protocol, Stream, ask};
use millrace_lab::walk::Walk;

use crate::fixture::{counted, expect_large_bodies, own_without_agents, xdp};

const LIMIT: Duration = Duration::from_secs(2);
const PREFIXES: [&str; 2] = ["100.64.16.0/20", "2001:db8:f0:40::/58"];

/// Returns the outer source of the next connection's packets to another node.
fn source_of_tunnel(cluster: &Cluster, family: Family) -> Result<IpAddr> {
    let frontend = SocketAddr::new(vip(1).of(family), 80);
    let mut capture = Capture::start(cluster.bed().router(), &["node1"])?;
    let client = ask(cluster.bed().client(), Protocol::Tcp, frontend)?.client;
    let sent_on = capture.wait_for(LIMIT, |captured| {
        captured.packet.is_between(client, frontend) && captured.packet.tunnel.is_some()
    })?;
    Ok(sent_on.packet.tunnel.expect("it was chosen by that").source)
}

#[test]
fn nodes_change_to_a_prefix_in_two_steps_without_losing_a_connection() -> Result<()> {
    let mut cluster = Cluster::start(Shape { nodes: 2, pods: 2, ..Shape::default() }, &xdp())?;
    let service = cluster.service("spread", 1, &["pod-2a", "pod-2b"])?.load_balancer(vip(1));
    cluster.apply(&service.clone().annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    let mut traffic = Vec::new();
    for family in Family::ALL {
        let (client, target) = (cluster.bed().client(), SocketAddr::new(vip(1).of(family), 80));
        let connections = LongConnections::open(client, target, 20, 20)?;
        traffic.push((connections, Stream::start(client, target, Duration::from_millis(1))?));
    }
    let director = cluster.bed().node(1)?.addresses();
    let prefixes = PREFIXES.join(",");
    for (step, sources) in [format!("node,{prefixes}"), prefixes].into_iter().enumerate() {
        for node in [1, 2] {
            cluster.start_agent_with(node, &["--dsr-outer-source", &sources])?;
            cluster.proxy(node)?.wait_for_start(step + 2)?;
        }
        for (family, prefix) in Family::ALL.into_iter().zip(PREFIXES) {
            let prefix: IpNet = prefix.parse()?;
            let found = (0..8).map(|_| source_of_tunnel(&cluster, family));
            let found = found.collect::<Result<BTreeSet<IpAddr>>>()?;
            if step == 0 {
                assert_eq!(found, BTreeSet::from([director.of(family)]));
            } else {
                assert!(found.len() > 4 && found.iter().all(|source| prefix.contains(source)), "{found:?}");
            }
        }
    }
    cluster.expect(&Walk::to(
        service.name(),
        vip(1),
        80,
        &["pod-2a", "pod-2b"],
        Trail::direct_return("node1", "node2"),
    ))?;
    expect_large_bodies(&cluster, vip(1))?;
    for (connections, stream) in traffic {
        assert_eq!(connections.stop()?, 40);
        let delivery = stream.stop()?;
        assert!(delivery.lost.is_empty(), "{delivery:?}");
    }
    assert_eq!(counted(&cluster, 2, "not_peer")?, 0);
    Ok(())
}

#[test]
fn a_prefix_with_a_nodes_address_is_refused_and_both_are_named() -> Result<()> {
    let cluster = own_without_agents(2, 1)?;
    for (prefix, address) in [("172.30.0.12/31", "172.30.0.12"), ("2001:db8:a::/64", "2001:db8:a::11")] {
        let output = cluster.proxy(1)?.refused_agent(&["--dsr-outer-source", prefix])?;
        assert_eq!(output.status.code(), Some(2));
        let told = String::from_utf8(output.stderr)?;
        let line = told.lines().last().unwrap_or_default();
        let node = if prefix.contains(':') { "node1" } else { "node2" };
        let reason =
            format!("--dsr-outer-source: {prefix} holds {address} of node {node}; takes unused addresses");
        assert!(line.ends_with(&reason), "{told}");
    }
    Ok(())
}
