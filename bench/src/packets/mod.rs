//! The cost of a packet, measured in the kernel by `BPF_PROG_TEST_RUN` around a wrapper that
//! restores the frame.
//!
//! Samples of the program alternate with samples of an empty one. A sample is the kernel's own mean
//! over hundreds of thousands of rounds. A figure is the median of the differences of neighbours. It
//! stands only if every sample ended with the expected action and frame.

mod addresses;
mod case;
mod figures;
mod firewall;
mod frames;
mod measure;
mod network;
mod rounds;
mod scene;
mod walk;
mod watched;
mod wrapper;

use anyhow::{Result, ensure};

use crate::report::Output;

/// The settings of the measurement, the cases, and the output.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Measure only cases whose name contains this text
    #[arg(long, default_value = "")]
    case: String,
    /// Rounds in a sample; fewer than 300000 give no useful figures
    #[arg(long, default_value_t = 300_000)]
    rounds: u32,
    /// Pairs of samples; the median of their differences counts
    #[arg(long, default_value_t = 9)]
    samples: usize,
}

/// Measures all cases and prints them.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.samples > 0 && arguments.rounds > 0, "--rounds and --samples take positive numbers");
    let (mut section, mut measured) = (figures::section(), Vec::new());
    for case in case::all().into_iter().filter(|case| case.name().contains(&arguments.case)) {
        eprintln!("{} ...", case.name());
        let samples = measure::measure(&case, arguments.rounds, arguments.samples)?;
        figures::add(&mut section, &case, &samples)?;
        if case.walk == walk::Walk::Dropped {
            let ratios = watched::measure(&case, arguments.rounds, arguments.samples)?;
            watched::add(&mut section, &case, &ratios)?;
        }
        measured.push((case, samples));
    }
    figures::add_ratios(&mut section, &measured)?;
    firewall::measure(&mut section, &arguments.case, arguments.rounds, arguments.samples)?;
    ensure!(section.figures() > 0, "--case {}: no case has that in its name", arguments.case);
    arguments.output.write(vec![section])
}
