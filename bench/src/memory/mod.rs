//! The memory of a node: what the agent takes for each Service and endpoint, and the maps for each
//! connection, frontend, endpoint, list and slot.
//!
//! Everything is measured at two sizes. The difference is the slope, and the rest is the base.

mod agent;
mod maps;

use anyhow::{Result, ensure};

use crate::report::{Output, Section};

/// The settings of the measurement and of the output.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Services at the smaller and the larger size
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    services: Vec<u32>,
    /// Endpoints of each Service at the smaller and the larger size
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10])]
    endpoints: Vec<u32>,
    /// Runs of the agent at each size
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (Ok(services), Ok(endpoints)) =
        (<[u32; 2]>::try_from(&*arguments.services), <[u32; 2]>::try_from(&*arguments.endpoints))
    else {
        anyhow::bail!("--services and --endpoints take two numbers each");
    };
    let grows = |[small, large]: [u32; 2]| 0 < small && small < large;
    ensure!(grows(services) && grows(endpoints), "the second of two sizes must be the larger one");
    ensure!(arguments.runs > 0, "--runs takes a positive number");
    let method = format!(
        "The agent at {} and {} Services of {} and {} endpoints, without its mapped arrays; the maps at the \
         default sizes and twice those, by the kernel's count.",
        services[0], services[1], endpoints[0], endpoints[1]
    );
    let mut section = Section::new("memory", "Memory", &method);
    section.add(agent::measure(services, endpoints, arguments.runs)?);
    section.add(maps::measure()?);
    arguments.output.write(vec![section])
}
