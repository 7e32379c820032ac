//! The time from an EndpointSlice written at the API server to the first packet that the new
//! endpoint gets: Millrace beside the real kube-proxy.
//!
//! A client sends a datagram of a new flow every 200 microseconds to a NodePort. The endpoint of
//! its Service is replaced by another pod. The time begins before the request to the API server,
//! and ends when the new pod receives its first datagram. Each proxy has a node of its own and runs
//! alone.

mod objects;
mod traffic;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::kube_proxy::{KubeProxy, Mode};
use millrace_lab::topology::{Family, Shape};

use crate::report::{Figure, Group, MILLRACE, Output, Section, Unit};
use crate::{others, peers};
use traffic::{Receiver, Sender};

/// The longest time until a proxy with ten thousand Services serves.
const START_LIMIT: Duration = Duration::from_mins(5);
/// The longest time of a change.
const CHANGE_LIMIT: Duration = Duration::from_mins(1);

/// The settings of the measurement and of the output.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Services in the cluster
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000])]
    services: Vec<u32>,
    /// Changes of each proxy
    #[arg(long, default_value_t = 30)]
    changes: u32,
    /// Milliseconds between two changes; kube-proxy does not write twice within a second
    #[arg(long, default_value_t = 1_500)]
    pause: u32,
    /// Leave kube-proxy out
    #[arg(long)]
    no_peers: bool,
}

/// A proxy, by the number of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Millrace = 1,
    Iptables = 2,
    Nftables = 3,
}

/// The times of a side.
#[derive(Debug, Default)]
struct Times {
    /// From before the request to the arrival, in milliseconds.
    arrivals: Vec<f64>,
    /// The request itself.
    requests: Vec<f64>,
}

impl Side {
    const ALL: [Self; 3] = [Self::Millrace, Self::Iptables, Self::Nftables];

    const fn subject(self) -> &'static str {
        match self {
            Self::Millrace => MILLRACE,
            Self::Iptables => "kube-proxy, iptables",
            Self::Nftables => "kube-proxy, nftables",
        }
    }
}

/// Measures all sizes and prints the times.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.changes > 0, "--changes takes a positive number");
    ensure!(arguments.services.iter().all(|number| *number <= 60_000), "--services takes at most 60000");
    let method = format!(
        "A client sends a datagram of a new flow every 200 µs. {} times, the Service's only endpoint is \
         replaced. The time begins before the request to the API server.",
        arguments.changes
    );
    let mut section = Section::new("change", "From EndpointSlice to first packet", &method);
    let has_peers = !arguments.no_peers && peers::are_there(&mut section);
    if peers::api_server_is_missing() {
        section.leave_out("a real API server", "its programs are missing; a directory takes its place");
    }
    let mut group = Group::new("an endpoint is replaced", Unit::Milliseconds).over("Services");
    for services in &arguments.services {
        for side in Side::ALL.into_iter().filter(|side| has_peers || *side == Side::Millrace) {
            eprintln!("{services} Services, {} ...", side.subject());
            let times = measure(arguments, *services, side)?;
            group.add(times.figure(side, *services)?);
        }
    }
    section.add(group);
    arguments.output.write(vec![section])
}

/// Measures a proxy in a cluster of its own.
fn measure(arguments: &Arguments, services: u32, side: Side) -> Result<Times> {
    let node = side as u8;
    let shape = Shape { nodes: 3, pods: 2, ..Shape::default() };
    let mut cluster = if peers::api_server_is_missing() {
        Cluster::without_agents(shape, "native")?
    } else {
        Cluster::with_api_server(shape, "native")?
    };
    traffic::add_addresses(cluster.bed())?;
    others::put(&cluster, services.saturating_sub(1), "node3")?;
    objects::put_service(&cluster)?;
    let receivers =
        cluster.bed().node(node)?.pods().iter().map(Receiver::start).collect::<Result<Vec<_>>>()?;
    let sender = Sender::start(cluster.bed(), node)?;
    set_endpoint(&cluster, node, 0)?;
    let peer = match side {
        Side::Millrace => {
            cluster.start_agent(node)?;
            cluster.wait_for_hooks(node)?;
            None
        }
        Side::Iptables => Some(start(&cluster, node, Mode::Iptables)?),
        Side::Nftables => Some(start(&cluster, node, Mode::Nftables)?),
    };
    sender.set(1);
    first_of(&receivers, 0, 1, START_LIMIT).with_context(|| format!("{} does not serve", side.subject()))?;
    sender.set(0);
    let times = replace(arguments, &cluster, node, &receivers, &sender);
    drop(peer);
    times
}

/// Replaces the endpoint again and again.
fn replace(
    arguments: &Arguments,
    cluster: &Cluster,
    node: u8,
    receivers: &[Receiver],
    sender: &Sender,
) -> Result<Times> {
    let mut times = Times::default();
    for change in 2..arguments.changes + 2 {
        // The rest differs from change to change, so that changes meet timers at any point.
        let jitter = change.wrapping_mul(7_919) % 200;
        std::thread::sleep(Duration::from_millis(u64::from(arguments.pause + jitter)));
        let next = usize::from(change % 2 == 0);
        sender.set(change);
        let began = Instant::now();
        set_endpoint(cluster, node, next)?;
        times.requests.push(milliseconds(began.elapsed()));
        let arrived = first_of(receivers, next, change, CHANGE_LIMIT)?;
        times.arrivals.push(milliseconds(arrived.saturating_duration_since(began)));
        sender.set(0);
    }
    Ok(times)
}

fn start(cluster: &Cluster, node: u8, mode: Mode) -> Result<KubeProxy> {
    KubeProxy::start(cluster.bed(), cluster.bed().node(node)?, cluster.api_server()?, mode)
}

fn set_endpoint(cluster: &Cluster, node: u8, pod: usize) -> Result<()> {
    let node = cluster.bed().node(node)?;
    objects::set_endpoint(cluster, node, node.pod(pod)?)
}

fn first_of(receivers: &[Receiver], pod: usize, change: u32, limit: Duration) -> Result<Instant> {
    receivers.get(pod).context("the node has too few pods")?.first(change, limit)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Times {
    fn figure(&self, side: Side, services: u32) -> Result<Figure> {
        let name = format!("{services} Services, {}", Family::V4);
        let figure = Figure::new(name, side.subject(), &self.arrivals)?.at(f64::from(services));
        let figure = figure.detail("p99, ms", peers::quantile(&self.arrivals, 0.99));
        Ok(figure.detail("request, ms", peers::quantile(&self.requests, 0.5)))
    }
}
