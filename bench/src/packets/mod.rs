//! The cost of a packet, measured in the kernel by `BPF_PROG_TEST_RUN` around a wrapper that
//! restores the frame.
//!
//! Every figure is the median of several samples. A sample is the kernel's own mean over hundreds
//! of thousands of rounds. The same rounds around an empty program are measured right before, and
//! subtracted. The last round of a sample must end with the same action and frame as a single run.

mod case;
mod report;
mod rounds;
mod wrapper;

use anyhow::{Result, ensure};

use report::{Measurement, Report};
use wrapper::Plan;

/// The settings of the measurement, the cases, and the output.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Measure only cases whose name contains this text
    #[arg(long, default_value = "")]
    case: String,
    /// Rounds in a sample; fewer than 300000 give no useful figures
    #[arg(long, default_value_t = 300_000)]
    rounds: u32,
    /// Samples; the median counts
    #[arg(long, default_value_t = 9)]
    samples: usize,
}

/// Measures all cases and prints them.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.samples > 0 && arguments.rounds > 0, "--rounds and --samples take positive numbers");
    let cases = case::all().into_iter().filter(|case| case.name().contains(&arguments.case));
    let mut report = Report::default();
    for case in cases {
        eprintln!("{} ...", case.name());
        report.add(measure(&case, arguments)?);
    }
    ensure!(!report.is_empty(), "--case {}: no case has that in its name", arguments.case);
    if arguments.json {
        report.print_json()
    } else {
        report.print_table();
        Ok(())
    }
}

fn measure(case: &case::Case, arguments: &Arguments) -> Result<Measurement> {
    let mut prepared = case.prepare()?;
    let plan = Plan { repetition: case.repetition(), rounds: arguments.rounds, samples: arguments.samples };
    let empty = prepared.wrapper.median(&prepared.empty, plan)?;
    prepared.bed.beat();
    let program = prepared.wrapper.median(&prepared.target, plan)?;
    prepared.wrapper.check_last_round(&prepared.target)?;
    Ok(Measurement::new(case, empty, program))
}
