//! The soak: hours of traffic while Services, endpoints, nodes, settings and agents change.
//!
//! - `churn`: the changes, on a timetable.
//! - `sample`: what the agents hold and what the traffic takes, read every few seconds.
//! - `verdict`: the comparison of the end with the time after five minutes.
//! - `report`: the table of docs/soak.md, and the record that `cargo xtask soak` draws.

mod churn;
mod report;
mod sample;
mod verdict;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::drill::{Ground, Ledger, Rates, Traffic, settle};
use churn::Churn;
use sample::{Drops, Sample};
use verdict::Verdict;

/// The time between two samples, and between two changes.
const TICK: Duration = Duration::from_secs(10);

/// The choices of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The length in minutes.
    pub minutes: u64,
    /// The agents' `--xdp`.
    pub xdp: String,
    /// The file for the record of all samples.
    pub record: PathBuf,
    /// Whether the table of docs/soak.md is replaced.
    pub write: bool,
}

/// Runs the soak, and prints its table. Returns whether all is as it must be.
pub fn run(options: &Options) -> Result<bool> {
    println!("Building three nodes with an agent each, and the traffic ...");
    let (mut ground, ledger) = (Ground::start(&options.xdp)?, Ledger::default());
    let traffic = Traffic::start(&ground, &ledger, Rates::default())?;
    let (began, end) = (Instant::now(), Duration::from_secs(options.minutes * 60));
    let (before, mut churn, mut samples) = (Drops::read(&ground)?, Churn::default(), Vec::new());
    // The exchanges of the beginning wait for the machine that builds.
    drop(ledger.take_durations());
    let mut tick = |samples: &mut Vec<Sample>| {
        let tick = Instant::now();
        churn.step(&mut ground)?;
        std::thread::sleep(TICK.saturating_sub(tick.elapsed()));
        let sample = Sample::take(&ground, &ledger, began.elapsed())?;
        println!("{sample}");
        samples.push(sample);
        anyhow::Ok(())
    };
    while began.elapsed() < end {
        // What was seen until then is worth a picture.
        if let Err(error) = tick(&mut samples) {
            report::write_record(&options.record, &samples)?;
            return Err(error);
        }
    }
    ground.wait_until_followed()?;
    // What hangs must have had the time to fail.
    settle(&ledger)?;
    drop(traffic);
    let verdict = Verdict::of(&samples, &ledger.troubles_from(0), &Drops::read(&ground)?.since(&before));
    report::write_record(&options.record, &samples)?;
    let part = report::page_part(options.minutes, &samples, &verdict);
    println!("\n{part}");
    if options.write {
        println!("{} is written", report::write_page(&part)?.display());
    }
    Ok(verdict.faults.is_empty())
}
