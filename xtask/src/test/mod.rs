//! The layers of tests, in order. Each one can run alone.

mod ahead;
mod layer;
mod libtest;
mod prepare;
mod tally;

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use ahead::{Ahead, Dependencies};
use anyhow::{Context, Result};
use layer::Layer;
pub use prepare::{PrepareArgs, prepare};
use serde_json::Value;
pub use tally::Tally;

use crate::build::{self, Warnings};
use crate::workspace::Workspace;
use crate::{command, setup};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Run this layer only; may be given several times
    #[arg(long, value_enum, value_name = "NAME")]
    layer: Vec<Layer>,
    /// Run the randomised tests much longer, and all tests on all kernels
    #[arg(long)]
    long: bool,
    /// Random frames for each program in the layer fuzz [default: 500000, with --long 20000000]
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Show what the tests print, whole frames included
    #[arg(long)]
    verbose: bool,
}

impl Args {
    /// Returns whether a layer was named, or the long run of all was asked for.
    fn asks_for(&self, layer: Layer) -> bool {
        self.long || self.layer.contains(&layer)
    }
}

/// The outcome of a test or a layer.
pub enum Outcome {
    /// It ran.
    Ran(Tally),
    /// This machine can't run it, for this reason.
    Unable(String),
    /// It is left out on purpose, for this reason. It counts as no test, also under CI=true.
    LeftOut(String),
}

struct Row {
    title: &'static str,
    tally: Tally,
    duration: Duration,
}

/// Runs the layers. The last line printed is `N passed, N failed, N skipped`.
pub fn test(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let layers = if args.layer.is_empty() { Layer::ALL.to_vec() } else { args.layer.clone() };
    let needs: Vec<_> = layers.iter().flat_map(|layer| layer.needs()).copied().collect();
    let dependencies = Dependencies::start(workspace, &layers);
    setup::ensure(workspace, &needs)?;
    let targets = test_targets(workspace)?;
    let mut rows = Vec::new();
    for target in layer::without_layer(&targets) {
        eprintln!("error: no layer runs the test target `{target}`");
        rows.push(Row { title: "no layer", tally: Tally::FAILED, duration: Duration::ZERO });
    }
    if let Err(error) = build::bpf_object(workspace, Warnings::Allowed) {
        eprintln!("error: {error:#}");
        rows.push(Row { title: "build", tally: Tally::FAILED, duration: Duration::ZERO });
        return Ok(report(&rows, start.elapsed()));
    }
    if let Some(dependencies) = dependencies {
        dependencies.wait();
    }
    let mut ahead = Ahead::start(workspace, &layers);
    thread::scope(|scope| {
        let mut machines = None;
        for (place, layer) in layers.iter().enumerate() {
            let is_ahead = layers.get(place + 1..).is_some_and(|later| later.contains(&Layer::Vm));
            // With --long, other layers leave machines nothing for hours.
            if layer.leaves_processors() && is_ahead && !args.long && machines.is_none() {
                machines = Some(scope.spawn(|| ahead::machines(workspace, args)));
            }
            for pass in layer.passes() {
                eprintln!("\n== {}", pass.title);
                let begin = Instant::now();
                ahead.wait_for(*layer);
                let outcome = match machines.take_if(|_| pass.is_emulated()) {
                    Some(machines) => machines.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    None => layer::perform(workspace, *layer, pass, &targets, args),
                };
                rows.push(Row {
                    title: pass.title,
                    tally: count(pass.title, outcome),
                    duration: begin.elapsed(),
                });
            }
        }
    });
    Ok(report(&rows, start.elapsed()))
}

/// Returns the names of all packages' test targets.
fn test_targets(workspace: &Workspace) -> Result<Vec<String>> {
    let metadata =
        command::output(workspace.cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("can't read cargo's metadata")?;
    let list =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let targets = list(&metadata, "packages").into_iter().flat_map(|package| list(&package, "targets"));
    let tests = targets.filter(|target| list(target, "kind").contains(&Value::from("test")));
    Ok(tests.filter_map(|target| Some(target.get("name")?.as_str()?.to_owned())).collect())
}

/// Returns the count of an outcome. A run without a test has failed. Under CI=true a test that
/// can't run has failed as well, so that its absence is noticed.
pub fn count(title: &str, outcome: Result<Outcome>) -> Tally {
    match outcome {
        Ok(Outcome::Ran(tally)) if tally == Tally::default() => {
            eprintln!("error: {title} has no test");
            Tally::FAILED
        }
        Ok(Outcome::Ran(tally)) => tally,
        Ok(Outcome::Unable(reason)) if is_ci() => {
            eprintln!("error: {title} can't run here: {reason}");
            Tally::FAILED
        }
        Ok(Outcome::Unable(reason)) => {
            eprintln!("{title} is skipped: {reason}");
            Tally::SKIPPED
        }
        Ok(Outcome::LeftOut(reason)) => {
            eprintln!("{title} is left out: {reason}");
            Tally::default()
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

/// Prints a row for each pass, and one for all, with the time for what they need. The emulated machines begin long before
/// their pass, whose row has the time that they take alone.
fn report(rows: &[Row], whole: Duration) -> ExitCode {
    println!("\n{:<24}{:>8}{:>8}{:>9}{:>9}", "layer", "passed", "failed", "skipped", "minutes");
    let total: Tally = rows.iter().map(|row| row.tally).sum();
    let last = Row { title: "all", tally: total, duration: whole };
    for Row { title, tally, duration } in rows.iter().chain([&last]) {
        let Tally { passed, failed, skipped } = tally;
        println!("{title:<24}{passed:>8}{failed:>8}{skipped:>9}{:>9.2}", duration.as_secs_f64() / 60.0);
    }
    println!("\n{total}");
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_test_has_failed() {
        assert_eq!(count("nothing", Ok(Outcome::Ran(Tally::default()))), Tally::FAILED);
        let passed = Tally { passed: 1, ..Tally::default() };
        assert_eq!(count("something", Ok(Outcome::Ran(passed))), passed);
    }

    #[test]
    fn the_cluster_runs_if_it_is_named_and_in_a_long_run() {
        let asks = |layers: &[Layer], long| {
            Args { layer: layers.to_vec(), long, frames: None, verbose: false }.asks_for(Layer::Cluster)
        };
        assert!(asks(&[Layer::Unit, Layer::Cluster], false) && asks(&[], true));
        assert!(!asks(&[], false) && !asks(&[Layer::Unit], false));
    }

    #[test]
    fn a_layer_that_is_left_out_counts_nothing() {
        assert_eq!(count("cluster", Ok(Outcome::LeftOut("no programs".to_owned()))), Tally::default());
    }
}
