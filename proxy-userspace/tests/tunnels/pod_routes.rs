//! `--pod-routes ipip`: pods of a node behind a router are reached by a tunnel.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use millrace_lab::capture::{Capture, Tunnel};
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::frame::Frame;
use millrace_lab::manifests::nodes;
use millrace_lab::net::write_sysctl;
use millrace_lab::process::output;
use millrace_lab::routing::routes_to;
use millrace_lab::topology::{Bed, Family, Node, vip};
use millrace_lab::traffic::{Protocol, ask, ping, send_encapsulated};

use crate::lab::{BODY, Lab, ip};

/// More than the time of three looks at the routes.
const LIMIT: Duration = Duration::from_mins(2);
/// The flag's own number, which marks our routes.
const OURS: &str = "proto 109";

/// The other node.
const fn other(node: u8) -> u8 {
    3 - node
}

/// Takes the routes to pods away, as if no plugin had made them, and puts the router between the nodes.
fn part(bed: &Bed) -> Result<()> {
    bed.router().run(async || {
        for device in ["all", "lan"] {
            write_sysctl(&format!("net/ipv4/conf/{device}/send_redirects"), "0")?;
        }
        Ok(())
    })?;
    for number in [1, 2] {
        let (node, beyond) = (bed.node(number)?, bed.node(other(number))?);
        for range in beyond.pod_ranges() {
            let family = if range.addr().is_ipv4() { "-4" } else { "-6" };
            ip(node.namespace(), &format!("{family} route del {range}"))?;
        }
        change_routes(bed, number, "add")?;
    }
    Ok(())
}

/// Puts the router between a node and the other one (`add`), or takes it away (`del`).
fn change_routes(bed: &Bed, number: u8, verb: &str) -> Result<()> {
    for address in bed.node(other(number))?.addresses().both() {
        let (family, host) = match address {
            IpAddr::V4(_) => ("-4", format!("{address}/32")),
            IpAddr::V6(_) => ("-6", format!("{address}/128")),
        };
        let router = bed.lan_gateway_addresses().of(Family::of(address));
        let words = format!("{family} route {verb} {host} via {router}");
        ip(bed.node(number)?.namespace(), &words)?;
    }
    Ok(())
}

/// Waits for our routes from a node to the other one's pods, over a device or by a gateway.
fn wait_for_routes(cluster: &Cluster, number: u8, by: &str) -> Result<()> {
    let (node, beyond) = (cluster.bed().node(number)?, cluster.bed().node(other(number))?);
    for range in beyond.pod_ranges() {
        let shown = || routes_to(node.namespace(), &range.to_string());
        let proxy = cluster.proxy(number)?;
        let is_there = || Ok(shown()?.contains(OURS) && shown()?.contains(by));
        proxy
            .wait_until_within(LIMIT, &format!("node {number} has a route to {range} {by}"), is_there)
            .with_context(|| shown().unwrap_or_default())?;
    }
    Ok(())
}

fn tunnels(node: &Node) -> Result<String> {
    let shown = output(node.namespace(), &["/usr/sbin/ip", "-brief", "link", "show"])?;
    Ok(shown.lines().filter(|line| line.starts_with("mr-")).collect::<Vec<_>>().join("\n"))
}

/// Pods and processes of both nodes reach pods of the other one, and nothing of it is bare on the wire. Pods are seen with their
/// own addresses, a node with that of its bridge.
fn pods_are_reached(cluster: &Cluster) -> Result<()> {
    let bed = cluster.bed();
    for (family, from) in Family::ALL.into_iter().flat_map(|family| [1, 2].map(|node| (family, node))) {
        let node = bed.node(from)?;
        let (pod, target) = (bed.pod(&format!("pod-{from}a"))?, bed.pod(&format!("pod-{}a", other(from)))?);
        let (pod, own, target) = (pod, pod.addresses().of(family), target.addresses().of(family));
        let mut capture = Capture::start(bed.router(), &["node1", "node2"])?;
        ping(pod.namespace(), target, b"through the tunnel")?;
        for protocol in Protocol::ALL {
            let target = SocketAddr::new(target, TARGET_PORT);
            let answer = ask(pod.namespace(), protocol, target)?;
            ensure!(answer.sighting.peer.ip() == own, "{answer:?}");
            let answer = ask(node.namespace(), protocol, target)?;
            let peer = answer.sighting.peer.ip();
            ensure!(node.pod_ranges().iter().any(|range| range.contains(&peer)), "{answer:?}");
        }
        expect_all_encapsulated(bed, &mut capture, family)?;
    }
    Ok(())
}

/// Expects that every packet from or to a pod was in IPIP between the two nodes.
fn expect_all_encapsulated(bed: &Bed, capture: &mut Capture, family: Family) -> Result<()> {
    let mut ranges = Vec::new();
    let mut nodes = Vec::new();
    for number in [1, 2] {
        ranges.extend(bed.node(number)?.pod_ranges());
        nodes.push(bed.node(number)?.addresses().of(family));
    }
    let of_pod = |address| ranges.iter().any(|range| range.contains(&address));
    let mut seen = 0;
    for captured in capture.packets()? {
        let packet = captured.packet;
        if Family::of(packet.source) != family || !of_pod(packet.source) && !of_pod(packet.destination) {
            continue;
        }
        let Some(Tunnel { source, destination, udp: None }) = packet.tunnel else {
            bail!("not in IPIP: {packet:?}");
        };
        ensure!(
            source != destination && nodes.contains(&source) && nodes.contains(&destination),
            "{packet:?}"
        );
        seen += 1;
    }
    ensure!(seen > 0, "nothing was captured");
    Ok(())
}

/// A Service at node 1 with its backend on node 2, by SNAT: large bodies, so that the tunnel's MTU counts.
fn a_service_is_served_through_the_tunnel(cluster: &Cluster) -> Result<()> {
    let service = cluster.service("beyond", 1, &["pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1, 2])?;
    let bed = cluster.bed();
    for family in Family::ALL {
        let target = SocketAddr::new(vip(1).of(family), 80);
        let mut capture = Capture::start(bed.router(), &["node1", "node2"])?;
        for protocol in Protocol::ALL {
            let answer = ask(bed.client(), protocol, target)?;
            ensure!(answer.sighting.backend == "pod-2a", "{answer:?}");
        }
        expect_all_encapsulated(bed, &mut capture, family)?;
        cluster.exchange(target, BODY)?;
        let from_pod = ask(bed.pod("pod-1a")?.namespace(), Protocol::Tcp, target)?;
        ensure!(from_pod.sighting.backend == "pod-2a", "{from_pod:?}");
    }
    Ok(())
}

/// A pod of node 1 encapsulates a packet for a pod of node 2.
fn a_pods_own_tunnel_does_not_leave(cluster: &Cluster) -> Result<()> {
    let bed = cluster.bed();
    let (pod, target) = (bed.pod("pod-1a")?, bed.node(2)?.addresses().v4);
    let before = counted(cluster)?;
    let inner = Frame::ip(vip(9).v4.into(), bed.pod("pod-2a")?.addresses().v4.into()).payload(vec![0; 40]);
    let inner = inner.build();
    send_encapsulated(pod.namespace(), target.into(), inner.get(14..).unwrap_or_default())?;
    cluster.proxy(1)?.wait_until("the packet is dropped", || Ok(counted(cluster)? > before))
}

fn counted(cluster: &Cluster) -> Result<u64> {
    let counters = cluster.proxy(1)?.counters()?;
    let dropped = counters.iter().filter(|counter| counter.reason == "forged_tunnel");
    Ok(dropped.map(|counter| counter.packets).sum())
}

/// Starts both nodes' agents, with the router between the nodes.
fn start() -> Result<Lab> {
    let mut lab = Lab::without_agents(1, "native")?;
    part(lab.cluster.bed())?;
    for node in [1, 2] {
        lab.start_agent(node, &["--pod-routes", "ipip"])?;
    }
    for node in [1, 2] {
        lab.cluster.wait_for_hooks(node)?;
        wait_for_routes(&lab.cluster, node, "dev mr-")?;
    }
    Ok(lab)
}

fn wait_until_gone(cluster: &Cluster, number: u8) -> Result<()> {
    let node = cluster.bed().node(number)?;
    let proxy = cluster.proxy(number)?;
    proxy.wait_until_within(LIMIT, "the tunnels are gone", || Ok(tunnels(node)?.is_empty()))
}

#[test]
fn pods_of_a_node_behind_a_router_are_reached_by_ipip() -> Result<()> {
    let mut lab = start()?;
    pods_are_reached(&lab.cluster)?;
    a_service_is_served_through_the_tunnel(&lab.cluster)?;
    a_pods_own_tunnel_does_not_leave(&lab.cluster)?;

    // Without the Node, node 2 has neither route nor tunnel to its pods.
    let bed = lab.cluster.bed();
    let left: Vec<_> = nodes(bed).into_iter().skip(1).collect();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": left});
    lab.cluster.manifests().put("nodes.yaml", &list.to_string())?;
    let two = bed.node(2)?;
    for range in bed.node(1)?.pod_ranges() {
        let is_gone = || Ok(routes_to(two.namespace(), &range.to_string())?.is_empty());
        lab.cluster.proxy(2)?.wait_until_within(LIMIT, "the route is gone", is_gone)?;
    }
    wait_until_gone(&lab.cluster, 2)?;

    // Cleanup takes tunnels and routes of an agent that was killed.
    lab.cluster.take_agent(1)?.kill()?;
    let bed = lab.cluster.bed();
    ensure!(tunnels(bed.node(1)?)?.lines().count() == 2, "a killed agent leaves its tunnels");
    let said = lab.cluster.proxy(1)?.command(&["cleanup"])?;
    ensure!(said.status.success(), "{said:?}");
    ensure!(tunnels(bed.node(1)?)?.is_empty(), "cleanup leaves tunnels");
    for range in bed.node(2)?.pod_ranges() {
        let left = routes_to(bed.node(1)?.namespace(), &range.to_string())?;
        ensure!(left.is_empty(), "cleanup leaves {left}");
    }
    Ok(())
}

/// Each step takes a look at the routes, which is minutes of an emulated machine. So `--long` alone has this test.
#[test]
fn tunnels_come_back_and_go_with_the_router_between_the_nodes() -> Result<()> {
    let lab = start()?;
    let bed = lab.cluster.bed();
    // A person removes the tunnels: they come back, with their routes.
    for line in tunnels(bed.node(1)?)?.lines() {
        let device = line.split(['@', ' ']).next().unwrap_or_default();
        ip(bed.node(1)?.namespace(), &format!("link del {device}"))?;
    }
    wait_for_routes(&lab.cluster, 1, "dev mr-")?;
    pods_are_reached(&lab.cluster)?;
    // The nodes are on one subnet again: no tunnel is needed, nor stays.
    change_routes(bed, 1, "del")?;
    change_routes(bed, 2, "del")?;
    for number in [1, 2] {
        wait_for_routes(&lab.cluster, number, "via")?;
        wait_until_gone(&lab.cluster, number)?;
    }
    for family in Family::ALL {
        ping(bed.pod("pod-1a")?.namespace(), bed.pod("pod-2a")?.addresses().of(family), b"directly")?;
    }
    Ok(())
}
