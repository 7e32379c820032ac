//! The demonstration: example services, real traffic, and a table of what became of it.

mod plan;
mod report;
mod traffic;

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;

use crate::agent::{Agent, Proxy, binary};
use crate::capture::Capture;
use crate::manifests::Manifests;
use crate::topology::{Bed, Node, Shape, Wire};
use crate::traffic::Server;
use plan::Walk;

/// What the command line chooses.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agents' `--xdp`.
    pub xdp: String,
}

/// Runs the demonstration and prints it; calls `stay` while everything is still up. Returns what was off.
pub fn run(options: &Options, stay: impl FnOnce()) -> Result<Vec<String>> {
    let began = Instant::now();
    println!("Building a client, a router, three nodes and their pods ...");
    let wire = if options.xdp == "off" { Wire::Offloaded } else { Wire::Plain };
    let bed = Bed::new(Shape { wire, ..Shape::default() })?;
    let manifests = Manifests::create(&bed)?;
    for (name, text) in plan::EXAMPLES {
        manifests.put(name, text)?;
    }
    let _servers = start_servers(&bed)?;

    println!("Starting an agent on each node (--xdp {}) ...", options.xdp);
    let proxies: Vec<Proxy> = bed
        .nodes()
        .iter()
        .map(|node| Proxy::new(&bed, node, &manifests, &options.xdp))
        .collect::<Result<_>>()?;
    let _agents: Vec<Agent> = proxies.iter().map(Proxy::start).collect::<Result<_>>()?;
    let walks = plan::walks();
    wait_until_served(&bed, &proxies, &walks, &options.xdp)?;

    println!("Sending HTTP and UDP requests ...\n");
    let ports: Vec<&str> = bed.nodes().iter().map(Node::name).collect();
    let mut capture = Capture::start(bed.router(), &ports)?;
    let mut problems = Vec::new();
    let rows = traffic::exercise(&bed, &walks, &mut capture, &mut problems)?;
    report::print_rows(&rows);
    report::print_nodes(&proxies, &mut problems)?;
    println!("\n{} after {:.1} s", verdict(&problems), began.elapsed().as_secs_f32());
    for problem in &problems {
        println!("OFF: {problem}");
    }
    report::print_hints(&bed, &proxies, &manifests, &binary()?);
    stay();
    Ok(problems)
}

fn verdict(problems: &[String]) -> String {
    match problems.len() {
        0 => "Everything went as it should".to_owned(),
        count => format!("{count} things are off"),
    }
}

fn start_servers(bed: &Bed) -> Result<Vec<Server>> {
    bed.pods().map(|pod| Server::in_pod(pod, plan::TARGET_PORT)).collect()
}

/// Waits until each node's maps have each service with all its backends, and the programs are on the uplink.
fn wait_until_served(bed: &Bed, proxies: &[Proxy], walks: &[Walk], xdp: &str) -> Result<()> {
    let hooks: &[&str] = if xdp == "off" { &["tc_ingress", "tc_egress"] } else { &["xdp", "tc_egress"] };
    for proxy in proxies {
        proxy.wait_for_hooks("eth0", hooks)?;
        for walk in walks {
            let mut backends = Vec::new();
            for name in walk.all_backends {
                let addresses = bed.pod(name)?.addresses().both();
                backends.extend(addresses.map(|address| SocketAddr::new(address, plan::TARGET_PORT)));
            }
            proxy.wait_for_backends(walk.service, &backends)?;
        }
    }
    Ok(())
}
