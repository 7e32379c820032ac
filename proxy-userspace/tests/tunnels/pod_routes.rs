//! `--pod-routes ipip`: pods of a node behind a router are reached by a tunnel.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::capture::{Capture, Tunnel};
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::manifests::nodes;
use millrace_lab::net::write_sysctl;
use millrace_lab::process::output;
use millrace_lab::routing::routes_to;
use millrace_lab::topology::{Bed, Family, Node, vip};
use millrace_lab::traffic::{Protocol, ask, ping};

use crate::lab::{BODY, Lab, ip};

/// More than the time between two looks at the routes.
const LIMIT: Duration = Duration::from_secs(60);
/// The flag's own number, which marks our routes.
const OURS: &str = "proto 109";

/// The other node.
const fn other(node: u8) -> u8 {
    3 - node
}

fn host(address: IpAddr) -> (&'static str, String) {
    match address {
        IpAddr::V4(_) => ("-4", format!("{address}/32")),
        IpAddr::V6(_) => ("-6", format!("{address}/128")),
    }
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
        for (range, address) in beyond.pod_ranges().into_iter().zip(beyond.addresses().both()) {
            let (family, host) = host(address);
            ip(node.namespace(), &format!("{family} route del {range}"))?;
            let router = bed.lan_gateway_addresses().of(Family::of(address));
            ip(node.namespace(), &format!("{family} route add {host} via {router}"))?;
        }
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

/// Pods of both nodes reach each other with their own addresses, and nothing of it is bare on the wire.
fn pods_reach_each_other(cluster: &Cluster) -> Result<()> {
    let bed = cluster.bed();
    for (family, from) in Family::ALL.into_iter().flat_map(|family| [1, 2].map(|node| (family, node))) {
        let (pod, target) = (bed.pod(&format!("pod-{from}a"))?, bed.pod(&format!("pod-{}a", other(from)))?);
        let mut capture = Capture::start(bed.router(), &["node1", "node2"])?;
        let target = target.addresses().of(family);
        ping(pod.namespace(), target, b"through the tunnel")?;
        for protocol in Protocol::ALL {
            let answer = ask(pod.namespace(), protocol, SocketAddr::new(target, TARGET_PORT))?;
            ensure!(answer.sighting.peer.ip() == pod.addresses().of(family), "{answer:?}");
        }
        let of_pods = |address| address == target || address == pod.addresses().of(family);
        let seen: Vec<_> = capture.packets()?.iter().map(|captured| captured.packet).collect();
        let seen: Vec<_> = seen.into_iter().filter(|packet| of_pods(packet.destination)).collect();
        ensure!(!seen.is_empty(), "nothing was captured");
        let ends = [1, 2].map(|number| bed.node(number).map(|node| node.addresses().of(family)));
        let [one, two] = ends;
        let (one, two) = (one?, two?);
        for packet in seen {
            let Some(Tunnel { source, destination, udp: None }) = packet.tunnel else {
                anyhow::bail!("not in IPIP: {packet:?}");
            };
            ensure!([(one, two), (two, one)].contains(&(source, destination)), "{packet:?}");
        }
    }
    Ok(())
}

/// A Service at node 1 with its backend on node 2, by SNAT: large bodies, so that the tunnel's MTU counts.
fn a_service_is_served_through_the_tunnel(cluster: &Cluster) -> Result<()> {
    let service = cluster.service("beyond", 1, &["pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1, 2])?;
    let bed = cluster.bed();
    for family in Family::ALL {
        let target = SocketAddr::new(vip(1).of(family), 80);
        for protocol in Protocol::ALL {
            let answer = ask(bed.client(), protocol, target)?;
            ensure!(answer.sighting.backend == "pod-2a", "{answer:?}");
        }
        cluster.exchange(target, BODY)?;
        let from_pod = ask(bed.pod("pod-1a")?.namespace(), Protocol::Tcp, target)?;
        ensure!(from_pod.sighting.backend == "pod-2a", "{from_pod:?}");
    }
    Ok(())
}

#[test]
fn pods_of_a_node_behind_a_router_are_reached_by_ipip() -> Result<()> {
    let mut lab = Lab::without_agents(1, "native")?;
    part(lab.cluster.bed())?;
    for node in [1, 2] {
        lab.start_agent(node, &["--pod-routes", "ipip"])?;
    }
    for node in [1, 2] {
        lab.cluster.wait_for_hooks(node)?;
        wait_for_routes(&lab.cluster, node, "dev mr-")?;
    }
    pods_reach_each_other(&lab.cluster)?;
    a_service_is_served_through_the_tunnel(&lab.cluster)?;

    // A person removes the tunnels: they come back, with their routes.
    let bed = lab.cluster.bed();
    for line in tunnels(bed.node(1)?)?.lines() {
        let device = line.split(['@', ' ']).next().unwrap_or_default();
        ip(bed.node(1)?.namespace(), &format!("link del {device}"))?;
    }
    wait_for_routes(&lab.cluster, 1, "dev mr-")?;
    pods_reach_each_other(&lab.cluster)?;

    // The nodes are on one subnet again: no tunnel is needed, nor stays.
    for number in [1, 2] {
        for address in bed.node(other(number))?.addresses().both() {
            let (family, host) = host(address);
            ip(bed.node(number)?.namespace(), &format!("{family} route del {host}"))?;
        }
    }
    for number in [1, 2] {
        wait_for_routes(&lab.cluster, number, "via")?;
        let node = bed.node(number)?;
        let proxy = lab.cluster.proxy(number)?;
        proxy.wait_until_within(LIMIT, "the tunnels are gone", || Ok(tunnels(node)?.is_empty()))?;
    }
    for family in Family::ALL {
        ping(bed.pod("pod-1a")?.namespace(), bed.pod("pod-2a")?.addresses().of(family), b"directly")?;
    }

    // Cleanup takes tunnels and routes of an agent that has ended.
    let node = bed.node(1)?.namespace().clone();
    for (address, range) in bed.node(2)?.addresses().both().into_iter().zip(bed.node(2)?.pod_ranges()) {
        let (family, host) = host(address);
        let router = bed.lan_gateway_addresses().of(Family::of(address));
        ip(&node, &format!("{family} route add {host} via {router}"))?;
        let shown = || routes_to(&node, &range.to_string());
        let proxy = lab.cluster.proxy(1)?;
        proxy.wait_until_within(LIMIT, "the tunnel is back", || Ok(shown()?.contains("dev mr-")))?;
    }
    lab.cluster.take_agent(1)?.stop()?;
    ensure!(tunnels(lab.cluster.bed().node(1)?)?.lines().count() == 2, "an ended agent leaves its tunnels");
    let said = lab.cluster.proxy(1)?.command(&["cleanup"])?;
    ensure!(said.status.success(), "{said:?}");
    ensure!(tunnels(lab.cluster.bed().node(1)?)?.is_empty(), "cleanup leaves tunnels");
    for range in lab.cluster.bed().node(2)?.pod_ranges() {
        ensure!(routes_to(&node, &range.to_string())?.is_empty(), "cleanup leaves the route to {range}");
    }

    // Without the Node, node 2 has no route to its pods.
    let all = nodes(lab.cluster.bed());
    let left: Vec<_> = all.into_iter().skip(1).collect();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": left});
    lab.cluster.manifests().put("nodes.yaml", &list.to_string())?;
    let two = lab.cluster.bed().node(2)?.namespace().clone();
    for range in lab.cluster.bed().node(1)?.pod_ranges() {
        let is_gone = || Ok(routes_to(&two, &range.to_string())?.is_empty());
        lab.cluster.proxy(2)?.wait_until_within(LIMIT, "the route is gone", is_gone)?;
    }
    Ok(())
}
