//! The cost of a ClusterIP for a pod, beside the alternatives: the backend itself, or kube-proxy's
//! rules.
//!
//! The bench measures the two of a pair alternately, in short spells. It compares each spell with
//! its neighbour, so other work on the machine affects both. The figure is the median of these
//! ratios.

mod awake;
mod measure;
mod nftables;
mod pairs;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family, Pod, Shape};
use serde::Serialize;

use measure::{Server, connect_for, exchange_for, receive_for};
use pairs::{Pairs, Side, Spell};

/// Port of the server that sends each byte back.
const ECHO: u16 = 7000;
/// Port of the server that sends as many bytes as it can.
const SOURCE: u16 = 7001;
/// Port of the measured Service.
const PORT: u16 = 80;

/// The settings of the measurement and of the output.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Pairs of spells
    #[arg(long, default_value_t = 40)]
    pairs: usize,
    /// Milliseconds of a spell
    #[arg(long, default_value_t = 200)]
    milliseconds: u64,
    /// Services in nftables' rules
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000, 10_000])]
    services: Vec<u16>,
}

/// One figure.
#[derive(Debug, Serialize)]
struct Figure {
    what: &'static str,
    beside: String,
    family: String,
    /// The median of the Service's rates, a second.
    service: f64,
    /// The median of the other side's rates, a second.
    other: f64,
    /// The median of the pairs' ratios.
    ratio: f64,
    /// The least ratio to reach.
    target: f64,
}

/// The measurements, and the least ratio to the backend itself.
const BY_SOCKETS: [(&str, Spell, f64); 2] =
    [("new TCP connections", connect_for, 0.97), ("requests of one connection", exchange_for, 0.98)];

/// Measures both families and prints the figures.
pub fn run(arguments: &Arguments) -> Result<()> {
    let pairs = Pairs::new(arguments.pairs, arguments.milliseconds)?;
    ensure!(
        arguments.services.iter().all(|number| (1..=nftables::MAX_SERVICES).contains(number)),
        "--services takes numbers from 1 to {}",
        nftables::MAX_SERVICES
    );
    let mut figures = by_sockets(arguments, &pairs)?;
    figures.extend(per_packet(&pairs)?);
    print(arguments, &figures)
}

/// Measures connections and requests through the socket hooks, beside the backend itself and beside
/// nftables.
fn by_sockets(arguments: &Arguments, pairs: &Pairs) -> Result<Vec<Figure>> {
    let cluster = Cluster::start(shape(1), "native")?;
    let service = measured(&cluster, "pod-1b", ECHO)?;
    cluster.proxy(1)?.wait_for_hooks("cgroup", &["cg_connect4", "cg_connect6"])?;
    let (client, server) = (pod(&cluster, "pod-1a")?, cluster.bed().pod("pod-1b")?);
    let _servers = start_servers(server)?;
    let mut figures = Vec::new();
    for family in Family::ALL {
        let ours = Side::new(client, service.cluster_ips(), PORT, family);
        let direct = Side::new(client, server.addresses(), ECHO, family);
        for (what, spell, target) in BY_SOCKETS {
            let beside = "the pod itself".to_owned();
            figures.push(Figure {
                target,
                ..figure(what, beside, family, &pairs.compare(spell, ours, direct)?)
            });
        }
    }
    for number in &arguments.services {
        let (bed, _servers, theirs) = beside_nftables(*number)?;
        for family in Family::ALL {
            let ours = Side::new(client, service.cluster_ips(), PORT, family);
            let theirs = Side::new(pod(&bed, "pod-1a")?, theirs, PORT, family);
            let beside = format!("nftables, {number} services");
            let compared = pairs.compare(connect_for, ours, theirs)?;
            figures.push(Figure { target: 1.0, ..figure("new TCP connections", beside, family, &compared) });
        }
    }
    Ok(figures)
}

/// Starts the same nodes without an agent, with kube-proxy's rules for `number` Services.
fn beside_nftables(number: u16) -> Result<(Cluster, Vec<Server>, Dual)> {
    let cluster = Cluster::without_agents(shape(1), "native")?;
    let server = cluster.bed().pod("pod-1b")?;
    let servers = start_servers(server)?;
    let frontend = nftables::write(cluster.bed().node(1)?.namespace(), number, server.addresses(), ECHO)?;
    Ok((cluster, servers, frontend))
}

/// Measures the bytes that a pod receives from a pod of another node. Each packet is translated,
/// beside plain forwarding.
fn per_packet(pairs: &Pairs) -> Result<Vec<Figure>> {
    let cluster = Cluster::start_with(shape(2), "native", &["--socket-lb", "off"])?;
    let service = measured(&cluster, "pod-2b", SOURCE)?;
    cluster.proxy(1)?.wait_for_hooks("veth-1a", &["tc_pod_in", "tc_pod_out"])?;
    let plain = Cluster::without_agents(shape(2), "native")?;
    let mut servers = Vec::new();
    for cluster in [&cluster, &plain] {
        servers.push(start_servers(cluster.bed().pod("pod-2b")?)?);
    }
    let mut figures = Vec::new();
    for family in Family::ALL {
        let ours = Side::new(pod(&cluster, "pod-1a")?, service.cluster_ips(), PORT, family);
        let target = plain.bed().pod("pod-2b")?.addresses();
        let theirs = Side::new(pod(&plain, "pod-1a")?, target, SOURCE, family);
        let compared = pairs.compare(receive_for, ours, theirs)?;
        let beside = "plain forwarding".to_owned();
        figures.push(Figure { target: 0.75, ..figure("bytes, per packet", beside, family, &compared) });
    }
    Ok(figures)
}

fn shape(nodes: u8) -> Shape {
    Shape { nodes, pods: 2, ..Shape::default() }
}

fn pod<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Namespace> {
    Ok(cluster.bed().pod(name)?.namespace())
}

/// Applies a Service with one backend on the first node.
fn measured(cluster: &Cluster, backend: &str, port: u16) -> Result<Service> {
    let service = Service::new("measured", 1).port(PORT, port);
    let service = service.pod(cluster.bed().node_of(backend)?, cluster.bed().pod(backend)?);
    cluster.apply(&service, &[1])?;
    Ok(service)
}

fn start_servers(pod: &Pod) -> Result<Vec<Server>> {
    let mut servers = Vec::new();
    for address in pod.addresses().both() {
        servers.push(Server::echo(pod, SocketAddr::new(address, ECHO))?);
        servers.push(Server::source(pod, SocketAddr::new(address, SOURCE))?);
    }
    Ok(servers)
}

fn figure(what: &'static str, beside: String, family: Family, compared: &pairs::Compared) -> Figure {
    let pairs::Compared { service, other, ratio } = *compared;
    eprintln!("{what}, {family}, beside {beside}: {ratio:.3}");
    Figure { what, beside, family: family.to_string(), service, other, ratio, target: 0.0 }
}

fn print(arguments: &Arguments, figures: &[Figure]) -> Result<()> {
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(figures).context("figures are numbers")?);
        return Ok(());
    }
    println!(
        "{:<28}{:<8}{:<28}{:>14}{:>14}{:>8}{:>8}",
        "A SECOND", "OVER", "BESIDE", "SERVICE", "THAT", "RATIO", "TARGET"
    );
    for Figure { what, beside, family, service, other, ratio, target } in figures {
        println!("{what:<28}{family:<8}{beside:<28}{service:>14.0}{other:>14.0}{ratio:>8.3}{target:>8.2}");
    }
    Ok(())
}
