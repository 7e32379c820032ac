//! Connections that are cut while endpoints, nodes and directors come and go: Millrace's rules
//! beside those of others.
//!
//! Everything is simulated but the rules: the slots follow `proxy_common::rules`, the tables are the
//! plan's, and the hashes are those of the programs. A run follows from its seed.

mod balancer;
mod ecmp;
mod endpoints;
mod millrace;
mod peers;
mod random;
mod scenario;
#[cfg(test)]
mod tests;
mod world;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::report::{Figure, Group, MILLRACE, Output, Section, Unit};
use balancer::Balancer;
use ecmp::Hashing;
use scenario::Scenario;
use world::{Outcome, Size};

/// The settings of the simulation and of the output.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Nodes; each is a director
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    /// Connections that are open at any time
    #[arg(long, default_value_t = 100_000)]
    connections: usize,
    /// Slots of a Maglev table, a prime
    #[arg(long, default_value_t = 4_093)]
    slots: u32,
    /// The longest time in seconds until a node has seen a change
    #[arg(long, default_value_t = 2)]
    lag: usize,
    /// The seed; the same seed gives the same figures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Scenarios [default: all]
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<Scenario>,
    /// The router's ways to choose a director [default: all]
    #[arg(long, value_delimiter = ',')]
    hashing: Vec<Hashing>,
}

/// The rules that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Millrace,
    Maglev,
    MaglevWithFlows,
    KubeProxy,
}

/// The outcome under the rules of a kind.
#[derive(Debug)]
struct Row {
    rules: Rules,
    outcome: Outcome,
}

impl Rules {
    const ALL: [Self; 4] = [Self::Millrace, Self::Maglev, Self::MaglevWithFlows, Self::KubeProxy];

    const fn name(self) -> &'static str {
        match self {
            Self::Millrace => MILLRACE,
            Self::Maglev => "plain Maglev",
            Self::MaglevWithFlows => "Maglev with flow tables",
            Self::KubeProxy => "kube-proxy",
        }
    }

    fn balancer(self, size: Size) -> Box<dyn Balancer> {
        let Size { nodes, slots, seed, .. } = size;
        match self {
            Self::Millrace => Box::new(millrace::Millrace::new(nodes, slots)),
            Self::Maglev => Box::new(peers::Maglev::new(nodes, slots, peers::Memory::None)),
            Self::MaglevWithFlows => Box::new(peers::Maglev::new(nodes, slots, peers::Memory::Flows)),
            Self::KubeProxy => Box::new(peers::KubeProxy::new(nodes, seed)),
        }
    }
}

/// Runs all scenarios and prints the counts.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.nodes >= 200, "--nodes takes 200 and more: each endpoint has a node of its own");
    let Arguments { nodes, connections, slots, lag, seed, .. } = *arguments;
    let size = Size { nodes, connections, slots, lag, seed };
    let scenarios = chosen(&arguments.scenario, &Scenario::MEASURED);
    let hashings = chosen(&arguments.hashing, Hashing::value_variants());
    let method = format!(
        "{nodes} nodes behind a router, {connections} connections at any time, tables of {slots} slots. A \
         connection is cut if a packet of it gets to another endpoint while its own lives. Seed {seed}."
    );
    let mut section = Section::new("simulate", "Connections cut", &method);
    for scenario in scenarios {
        let mut group = Group::new(scenario.name(), Unit::Count);
        for hashing in &hashings {
            eprintln!("{}, {} ...", scenario.name(), hashing.name());
            for row in compare(scenario, *hashing, size) {
                group.add(row.figure(*hashing)?);
            }
        }
        section.add(group);
    }
    arguments.output.write(vec![section])
}

fn chosen<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
}

/// Runs a scenario under the rules of each kind, each in a thread of its own.
fn compare(scenario: Scenario, hashing: Hashing, size: Size) -> Vec<Row> {
    std::thread::scope(|scope| {
        let run = |rules: Rules| {
            scope.spawn(move || world::run(scenario, hashing, size, rules.balancer(size).as_mut()))
        };
        let runs = Rules::ALL.map(|rules| (rules, run(rules)));
        // A run has no reason to panic; `figures` of a row that is missing would be noticed.
        runs.into_iter().filter_map(|(rules, run)| Some(Row { rules, outcome: run.join().ok()? })).collect()
    })
}

impl Row {
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^52")]
    fn figure(&self, hashing: Hashing) -> Result<Figure> {
        let Outcome { connections, moved, cut, cut_unmoved, ended_with_pod, director_entries } = self.outcome;
        let per_million = 1e6 * cut as f64 / connections.max(1) as f64;
        let name = format!("{} router", hashing.name());
        let figure = Figure::new(name, self.rules.name(), &[cut as f64])?
            .detail("connections", connections as f64)
            .detail("moved", moved as f64)
            .detail("cut, not moved", cut_unmoved as f64)
            .detail("cut of a million", per_million.round())
            .detail("ended with their pod", ended_with_pod as f64)
            .detail("director entries", director_entries as f64);
        Ok(figure)
    }
}
