//! The layers of tests, in order, each runnable alone.

mod layer;
mod libtest;
mod tally;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
pub use layer::Layer;
pub use tally::Tally;

use crate::build::{self, Warnings};
use crate::setup;
use crate::workspace::Workspace;

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Run this layer only; may be given several times
    #[arg(long, value_enum, value_name = "NAME")]
    layer: Vec<Layer>,
    /// Run the randomised tests much longer
    #[arg(long)]
    long: bool,
    /// Show what the tests print, whole frames included
    #[arg(long)]
    verbose: bool,
}

/// What became of a test or a layer.
pub enum Outcome {
    /// It ran.
    Ran(Tally),
    /// This machine can't run it, and why.
    Unable(String),
}

struct Row {
    title: &'static str,
    tally: Tally,
    duration: Duration,
}

/// Runs the layers; the last line printed is `N passed, N failed, N skipped`.
pub fn test(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let layers = if args.layer.is_empty() { Layer::ALL.to_vec() } else { args.layer.clone() };
    let needs: Vec<_> = layers.iter().flat_map(|layer| layer.needs()).copied().collect();
    setup::ensure(workspace, &needs)?;
    let mut rows = Vec::new();
    if let Err(error) = build::bpf_object(workspace, Warnings::Allowed) {
        eprintln!("error: {error:#}");
        rows.push(Row { title: "build", tally: Tally::FAILED, duration: Duration::ZERO });
    } else {
        for layer in layers {
            for pass in layer.passes() {
                eprintln!("\n== {}", pass.title);
                let start = Instant::now();
                let tally = settle(pass.title, layer::perform(workspace, layer, pass, args));
                rows.push(Row { title: pass.title, tally, duration: start.elapsed() });
            }
        }
    }
    Ok(report(&rows))
}

/// Under CI=true what can't run has failed, so that nothing is left out unnoticed.
pub fn settle(title: &str, outcome: Result<Outcome>) -> Tally {
    match outcome {
        Ok(Outcome::Ran(tally)) => tally,
        Ok(Outcome::Unable(reason)) if is_ci() => {
            eprintln!("error: {title} can't run here: {reason}");
            Tally::FAILED
        }
        Ok(Outcome::Unable(reason)) => {
            eprintln!("{title} is skipped: {reason}");
            Tally::SKIPPED
        }
        Err(error) => {
            eprintln!("error: {title}: {error:#}");
            Tally::FAILED
        }
    }
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

fn report(rows: &[Row]) -> ExitCode {
    println!("\n{:<24}{:>8}{:>8}{:>9}{:>9}", "layer", "passed", "failed", "skipped", "minutes");
    for Row { title, tally, duration } in rows {
        let Tally { passed, failed, skipped } = tally;
        println!("{title:<24}{passed:>8}{failed:>8}{skipped:>9}{:>9.2}", duration.as_secs_f64() / 60.0);
    }
    let total: Tally = rows.iter().map(|row| row.tally).sum();
    println!("\n{total}");
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
