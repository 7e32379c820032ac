//! A node changes from the kernel's rules to eBPF, or back. Both translate clients to the same backend, from the same ports.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use millrace_lab::cluster::Cluster;
use millrace_lab::process::output;
use millrace_lab::topology::{Dual, Family, vip};
use millrace_lab::traffic::{LongConnections, Protocol, ask};

use crate::fixture::own_without_agents;

/// The ports of both: 64 for 30 connections each.
const PORTS: &str = "61000-61063";
const FLAGS: [&str; 2] = ["--snat-ports", PORTS];
const GIVES_BACK: [&str; 4] = ["--snat-ports", PORTS, "--proxy-mode", "none"];
/// Connections of each side in each family, half of them silent.
const CONNECTIONS: usize = 30;

fn cluster() -> Result<Cluster> {
    let cluster = own_without_agents(2, 1)?;
    cluster.apply(&cluster.service("web", 1, &["pod-2a"])?.load_balancer(vip(1)), &[])?;
    Ok(cluster)
}

/// Serves as kube-proxy does, and masquerades as it does: the kernel takes any free port, here one of `PORTS`.
fn serve_by_rules(cluster: &Cluster) -> Result<()> {
    let pod = cluster.bed().pod("pod-2a")?.addresses();
    for (family, ip) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        let [from, pod] = [vip(1), pod].map(|both: Dual| both.of(family));
        let to = SocketAddr::new(pod, 8080);
        let rules = format!(
            "table {ip} kube-proxy {{\n\
             chain to {{ type nat hook prerouting priority -100; {ip} daddr {from} tcp dport 80 dnat to {to}; }}\n\
             chain from {{ type nat hook postrouting priority 100; {ip} daddr {pod} tcp dport 8080 \
             masquerade to :{PORTS} fully-random; }}\n}}"
        );
        output(cluster.bed().node(1)?.namespace(), &["nft", &rules])?;
    }
    Ok(())
}

fn start(cluster: &mut Cluster, flags: &[&str], until: &str) -> Result<()> {
    cluster.start_agent_with(1, flags)?;
    cluster.wait_for_hooks(1)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until(until, || Ok(proxy.log().contains(until)))
}

fn open(cluster: &Cluster) -> Result<Vec<LongConnections>> {
    let of_family = |family: Family| {
        let target = SocketAddr::new(vip(1).of(family), 80);
        ask(cluster.bed().client(), Protocol::Tcp, target)?;
        LongConnections::open(cluster.bed().client(), target, CONNECTIONS / 2, CONNECTIONS / 2)
    };
    Family::ALL.into_iter().map(of_family).collect()
}

fn expect_all(connections: Vec<LongConnections>, of: &str) -> Result<()> {
    for connections in connections {
        assert_eq!(connections.stop().with_context(|| format!("connections of {of}"))?, CONNECTIONS);
    }
    Ok(())
}

#[test]
fn ebpf_takes_no_port_that_a_connection_of_the_kernels_rules_has() -> Result<()> {
    let mut cluster = cluster()?;
    serve_by_rules(&cluster)?;
    let of_rules = open(&cluster)?;
    start(&mut cluster, &FLAGS, "eBPF serves new connections and datagrams")?;
    let of_ebpf = open(&cluster)?;
    expect_all(of_rules, "the rules")?;
    expect_all(of_ebpf, "eBPF")
}

#[test]
fn the_kernels_rules_take_no_port_that_a_connection_of_ebpf_has() -> Result<()> {
    let mut cluster = cluster()?;
    start(&mut cluster, &FLAGS, "this node is ready")?;
    cluster.proxy(1)?.wait_for_backends("web", &cluster.service("web", 1, &["pod-2a"])?.backends())?;
    let of_ebpf = open(&cluster)?;
    serve_by_rules(&cluster)?;
    cluster.take_agent(1)?.stop()?;
    start(&mut cluster, &GIVES_BACK, "kube-proxy serves new connections and datagrams")?;
    let of_rules = open(&cluster)?;
    expect_all(of_ebpf, "eBPF")?;
    expect_all(of_rules, "the rules")
}
