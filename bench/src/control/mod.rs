//! The cost of the control plane, from the API server's objects to programmed maps.
//!
//! The bench measures stages in CPU time of the thread that does the work, including the kernel's
//! part. Other work on the machine has little effect on it. The latency of a change can only be
//! measured in elapsed time, with its CPU time beside it. All stages run the agent's own code. Each
//! measurement ends with a check of the state.

mod changes;
mod clock;
mod cluster;
mod driver;
mod listing;
pub mod memory;
pub mod objects;
pub mod pins;
mod report;
mod server;
mod source;
mod stages;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use changes::Pace;
use objects::Scale;

use crate::report::Output;

/// The measurements, the size of the cluster, and the output.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Services and endpoints of each, such as 1000x10; may be given several times
    #[arg(long = "scale", value_name = "SERVICESxENDPOINTS", value_parser = Scale::parse)]
    scales: Vec<Scale>,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Every Service has both families
    #[arg(long)]
    dual_stack: bool,
    /// Runs of the stages; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// EndpointSlices that change one at a time
    #[arg(long, default_value_t = 2_000)]
    changes: u32,
    /// Let changes come for a minute
    #[arg(long, conflicts_with = "seconds")]
    long: bool,
    /// Seconds for which changes come
    #[arg(long, default_value_t = 10)]
    seconds: u32,
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// From listed to programmed
    Stages,
    /// One changed EndpointSlice
    One,
    /// A thousand changes a second
    Stream,
    /// Memory of the agent
    Memory,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    let numbers = [arguments.runs, arguments.changes as usize, arguments.seconds as usize];
    ensure!(!numbers.contains(&0), "--runs, --changes and --seconds take positive numbers");
    let mut section = report::section();
    for scale in arguments.scales() {
        for part in arguments.parts() {
            eprintln!("{} x {}: {part:?} ...", scale.services, scale.endpoints);
            let figures = match part {
                Part::Stages => stages::measure(scale, arguments.runs)?,
                Part::One => changes::measure(scale, Pace::OneByOne(arguments.changes))?,
                Part::Stream => changes::measure(
                    scale,
                    Pace::Stream(if arguments.long { 60 } else { arguments.seconds }),
                )?,
                Part::Memory => memory::measure(scale)?,
            };
            report::add(&mut section, scale, figures)?;
        }
    }
    arguments.output.write(vec![section])
}

impl Arguments {
    fn scales(&self) -> Vec<Scale> {
        let usual = [(10_000, 10), (50_000, 5)].map(|(services, endpoints)| Scale {
            services,
            endpoints,
            dual_stack: false,
        });
        let scales = if self.scales.is_empty() { usual.to_vec() } else { self.scales.clone() };
        scales.into_iter().map(|scale| Scale { dual_stack: self.dual_stack, ..scale }).collect()
    }

    fn parts(&self) -> Vec<Part> {
        let all = Part::value_variants().iter().copied();
        all.filter(|part| self.only.is_empty() || self.only.contains(part)).collect()
    }
}
