//! What a ClusterIP costs a pod that connects to it, beside connecting to the backend itself.
//!
//! Both are measured in turn, in short spells, and each spell is compared with its neighbour: whatever else the machine does, it
//! does to both. The figure is the median of these ratios.

mod measure;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, Shape};
use serde::Serialize;

use measure::{Server, connect_for, exchange_for};

/// Port of the server in the pod, which answers nothing but bytes.
const PORT: u16 = 7000;

/// How to measure, and how to print it.
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
}

/// One figure.
#[derive(Debug, Serialize)]
struct Figure {
    what: &'static str,
    family: String,
    /// By the ClusterIP, a second: the median.
    service: f64,
    /// By the pod's own address, a second: the median.
    direct: f64,
    /// The median of the pairs' ratios.
    ratio: f64,
    /// What the ratio has to be at least.
    target: f64,
}

/// What is done in a spell: returns how often it could be done.
type Spell = fn(&Cluster, SocketAddr, Duration) -> Result<usize>;

const MEASURED: [(&str, Spell, f64); 2] =
    [("new TCP connections", connect_for, 0.97), ("requests of one connection", exchange_for, 0.98)];

/// Measures both families and prints the figures.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        arguments.pairs > 0 && arguments.milliseconds > 0,
        "--pairs and --milliseconds take positive numbers"
    );
    let cluster = Cluster::start(Shape { nodes: 1, pods: 2, ..Shape::default() }, "native")?;
    let (node, pod) = (cluster.bed().node(1)?, cluster.bed().pod("pod-1b")?);
    let service = Service::new("measured", 1).port(80, PORT).pod(node, pod);
    cluster.apply(&service, &[1])?;
    cluster.proxy(1)?.wait_for_hooks("cgroup", &["cg_connect4", "cg_connect6"])?;
    let mut figures = Vec::new();
    for family in Family::ALL {
        let direct = SocketAddr::new(pod.addresses().of(family), PORT);
        let _server = Server::start(pod, direct)?;
        let frontend = SocketAddr::new(service.cluster_ips().of(family), 80);
        for (what, spell, target) in MEASURED {
            eprintln!("{what}, {family} ...");
            let figure = pairs(arguments, |target, time| spell(&cluster, target, time), frontend, direct)?;
            figures.push(Figure { what, family: family.to_string(), target, ..figure });
        }
    }
    print(arguments, &figures)
}

fn pairs(
    arguments: &Arguments,
    spell: impl Fn(SocketAddr, Duration) -> Result<usize>,
    frontend: SocketAddr,
    direct: SocketAddr,
) -> Result<Figure> {
    let time = Duration::from_millis(arguments.milliseconds);
    // Once for nothing: caches, neighbours.
    spell(frontend, time)?;
    let mut rates = [Vec::new(), Vec::new()];
    let mut ratios = Vec::new();
    for pair in 0..arguments.pairs {
        // Who comes first has it harder, or easier: each in turn.
        let order = if pair % 2 == 0 { [frontend, direct] } else { [direct, frontend] };
        let [first, second] = [rate(&spell, order[0], time)?, rate(&spell, order[1], time)?];
        let [by_service, by_itself] = if pair % 2 == 0 { [first, second] } else { [second, first] };
        ensure!(by_service > 0.0 && by_itself > 0.0, "nothing was done in a spell of {time:?}");
        rates[0].push(by_service);
        rates[1].push(by_itself);
        ratios.push(by_service / by_itself);
    }
    let [service, direct] = rates.map(median);
    Ok(Figure { what: "", family: String::new(), service, direct, ratio: median(ratios), target: 0.0 })
}

#[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
fn rate(
    spell: &impl Fn(SocketAddr, Duration) -> Result<usize>,
    target: SocketAddr,
    time: Duration,
) -> Result<f64> {
    Ok(spell(target, time)? as f64 / time.as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print(arguments: &Arguments, figures: &[Figure]) -> Result<()> {
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(figures).context("figures are numbers")?);
        return Ok(());
    }
    println!(
        "{:<28}{:<8}{:>14}{:>14}{:>9}{:>9}",
        "A SECOND", "OVER", "CLUSTER IP", "DIRECT", "RATIO", "TARGET"
    );
    for Figure { what, family, service, direct, ratio, target } in figures {
        println!("{what:<28}{family:<8}{service:>14.0}{direct:>14.0}{ratio:>9.3}{target:>9.2}");
    }
    Ok(())
}
