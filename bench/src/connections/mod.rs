//! The cost of a ClusterIP for a pod, beside the alternatives: the backend itself, kube-proxy's
//! rules, or the real kube-proxy.
//!
//! The bench measures the two of a pair alternately, in short spells. It compares each spell with
//! its neighbour, so other work on the machine affects both. The figure is the median of these
//! ratios, with the rates and the set-up times of both beside it.

mod awake;
mod figures;
mod kube_proxy;
mod measure;
mod nftables;
mod pairs;

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family, Pod, Shape};

use crate::peers;
use crate::report::{Output, Section};
use figures::Figures;
use kube_proxy::KubeProxies;
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
    #[command(flatten)]
    output: Output,
    /// Pairs of spells
    #[arg(long, default_value_t = 40)]
    pairs: usize,
    /// Milliseconds of a spell
    #[arg(long, default_value_t = 200)]
    milliseconds: u64,
    /// Services in the rules of nftables and kube-proxy
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000, 10_000])]
    services: Vec<u16>,
    /// Leave the real kube-proxy out
    #[arg(long)]
    no_peers: bool,
}

/// The measurements, and the least ratio to the backend itself.
const BY_SOCKETS: [(&str, Spell, f64); 2] =
    [(CONNECTIONS, connect_for, 0.97), ("requests of one connection", exchange_for, 0.98)];
const CONNECTIONS: &str = "new TCP connections";

/// Measures both families and prints the figures.
pub fn run(arguments: &Arguments) -> Result<()> {
    let pairs = Pairs::new(arguments.pairs, arguments.milliseconds)?;
    ensure!(
        arguments.services.iter().all(|number| (1..=nftables::MAX_SERVICES).contains(number)),
        "--services takes numbers from 1 to {}",
        nftables::MAX_SERVICES
    );
    let method = format!(
        "{} pairs of spells of {} ms, client and server on a processor each. A ratio compares a spell with its \
         neighbour.",
        arguments.pairs, arguments.milliseconds
    );
    let mut section = Section::new("connections", "Connections and requests", &method);
    let has_peers = !arguments.no_peers && peers::are_there(&mut section);
    let mut figures = Figures::default();
    by_sockets(arguments, &pairs, has_peers, &mut figures)?;
    per_packet(&pairs, &mut figures)?;
    figures.add_to(&mut section);
    arguments.output.write(vec![section])
}

/// Measures connections and requests through the socket hooks, beside the backend itself, nftables
/// and kube-proxy.
fn by_sockets(arguments: &Arguments, pairs: &Pairs, has_peers: bool, figures: &mut Figures) -> Result<()> {
    let cluster = Cluster::start(shape(1), "native")?;
    let service = measured(&cluster, "pod-1b", ECHO)?;
    cluster.proxy(1)?.wait_for_hooks("cgroup", &["cg_connect4", "cg_connect6"])?;
    let (client, server) = (pod(&cluster, "pod-1a")?, cluster.bed().pod("pod-1b")?);
    let _servers = start_servers(server)?;
    let ours = |family| Side::new(client, service.cluster_ips(), PORT, family);
    for family in Family::ALL {
        let direct = Side::new(client, server.addresses(), ECHO, family);
        for (what, spell, target) in BY_SOCKETS {
            let compared = pairs.compare(spell, ours(family), direct)?;
            figures.add(what, family, "the pod itself", target, &compared)?;
        }
    }
    for number in &arguments.services {
        let (bed, _servers, theirs) = beside_nftables(*number)?;
        for family in Family::ALL {
            let theirs = Side::new(pod(&bed, "pod-1a")?, theirs, PORT, family);
            let compared = pairs.compare(connect_for, ours(family), theirs)?;
            let beside = format!("nftables, {number} Services");
            figures.add(CONNECTIONS, family, &beside, 1.0, &compared)?;
        }
        if !has_peers {
            continue;
        }
        let peers = KubeProxies::start(u32::from(*number))?;
        for (name, theirs) in peers.sides()? {
            let compared = pairs.compare(connect_for, ours(Family::V4), theirs)?;
            let beside = format!("kube-proxy, {name}, {number} Services");
            figures.add(CONNECTIONS, Family::V4, &beside, 1.0, &compared)?;
        }
    }
    Ok(())
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
fn per_packet(pairs: &Pairs, figures: &mut Figures) -> Result<()> {
    let cluster = Cluster::start_with(shape(2), "native", &["--socket-lb", "off"])?;
    let service = measured(&cluster, "pod-2b", SOURCE)?;
    cluster.proxy(1)?.wait_for_hooks("veth-1a", &["tc_pod_in", "tc_pod_out"])?;
    let plain = Cluster::without_agents(shape(2), "native")?;
    let mut servers = Vec::new();
    for cluster in [&cluster, &plain] {
        servers.push(start_servers(cluster.bed().pod("pod-2b")?)?);
    }
    for family in Family::ALL {
        let ours = Side::new(pod(&cluster, "pod-1a")?, service.cluster_ips(), PORT, family);
        let target = plain.bed().pod("pod-2b")?.addresses();
        let theirs = Side::new(pod(&plain, "pod-1a")?, target, SOURCE, family);
        let compared = pairs.compare(receive_for, ours, theirs)?;
        figures.add("bytes, per packet", family, "plain forwarding", 0.75, &compared)?;
    }
    Ok(())
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
