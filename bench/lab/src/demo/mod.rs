//! The demonstration: example Services, real traffic, and a table of the results.

mod plan;
mod report;

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;

use crate::agent::binary;
use crate::capture::Capture;
use crate::cluster::{Cluster, TARGET_PORT};
use crate::topology::{Node, Shape};
use crate::trace::Tracer;
use plan::Example;

/// The choices of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agents' `--xdp`.
    pub xdp: String,
    /// Whether the steps of each packet are printed.
    pub trace: bool,
}

/// Runs the demonstration and prints it. Returns the problems.
///
/// Calls `stay` while everything is still up, with commands that a person could try.
pub fn run(options: &Options, stay: impl FnOnce(&str)) -> Result<Vec<String>> {
    let began = Instant::now();
    println!("Building a client, a router, three nodes with their pods, and an agent on each node ...");
    let cluster = Cluster::start(Shape::default(), &options.xdp)?;
    for (name, text) in plan::MANIFESTS {
        cluster.manifests().put(name, text)?;
    }
    let examples = plan::examples();
    wait_until_served(&cluster, &examples)?;

    let traces = options.trace.then(|| Tracer::start(cluster.proxies())).transpose()?;
    println!("Sending HTTP and UDP requests ...\n");
    let ports: Vec<&str> = cluster.bed().nodes().iter().map(Node::name).collect();
    let mut capture = Capture::start(cluster.bed().router(), &ports)?;
    let mut problems = Vec::new();
    let mut table = Vec::new();
    for example in &examples {
        let outcome = example.walk.run(cluster.bed(), &mut capture)?;
        problems.extend(outcome.problems);
        table.extend(outcome.rows.into_iter().map(|row| (example, row)));
    }
    report::print_rows(&table);
    report::print_nodes(cluster.proxies(), &mut problems)?;
    println!("\n{} after {:.1} s", verdict(&problems), began.elapsed().as_secs_f32());
    for problem in &problems {
        println!("OFF: {problem}");
    }
    stay(&report::hints(&cluster, &binary()?));
    drop(traces);
    Ok(problems)
}

fn verdict(problems: &[String]) -> String {
    match problems.len() {
        0 => "Everything went as it should".to_owned(),
        count => format!("{count} things are off"),
    }
}

/// Waits until each node's maps have each service with all its backends.
fn wait_until_served(cluster: &Cluster, examples: &[Example]) -> Result<()> {
    for Example { endpoints, walk, .. } in examples {
        let mut backends = Vec::new();
        for name in *endpoints {
            let addresses = cluster.bed().pod(name)?.addresses().both();
            backends.extend(addresses.map(|address| SocketAddr::new(address, TARGET_PORT)));
        }
        for proxy in cluster.proxies() {
            proxy.wait_for_hooks("cgroup", &["cg_connect6", "cg_sendmsg6"])?;
            proxy.wait_for_backends(&walk.service, &backends)?;
        }
    }
    Ok(())
}
