//! What each layer is and how it is run.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::Value;

use super::libtest::{self, Output};
use super::{Args, Outcome};
use crate::setup::{self, Need};
use crate::workspace::Workspace;
use crate::{command, lint, vm};

/// What a layer may take, its build included; more is a hang.
const BOUND: Duration = Duration::from_mins(20);
/// The same with `--long`.
const LONG_BOUND: Duration = Duration::from_hours(3);

/// A kind of tests, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layer {
    /// Formatting, clippy, documentation, dependencies, spelling
    Lint,
    /// Beside the code, all crates
    Unit,
    /// Manifests in, expected desired state and maps out
    Scenario,
    /// The real programs on whole frames
    Packet,
    /// The test bed: real agents and real sockets, through XDP and again through TC
    Namespace,
    /// Random and mutated input
    Fuzz,
    /// Every program loaded by other kernels, within its instruction budget
    Vm,
}

/// One run of a layer.
#[derive(Clone, Copy)]
pub struct Pass {
    /// The row's name.
    pub title: &'static str,
    xdp: Option<&'static str>,
}

impl Layer {
    /// All, in the order in which they run.
    pub const ALL: [Self; 7] =
        [Self::Lint, Self::Unit, Self::Scenario, Self::Packet, Self::Namespace, Self::Fuzz, Self::Vm];

    /// What the machine must have.
    pub fn needs(self) -> &'static [Need] {
        match self {
            Self::Lint => &[Need::Build, Need::Lint],
            Self::Unit | Self::Scenario => &[Need::Build],
            Self::Packet | Self::Namespace | Self::Fuzz => &[Need::Build, Need::Run, Need::Test],
            Self::Vm => &[Need::Build, Need::Vm],
        }
    }

    /// How often it runs, and with what.
    pub fn passes(self) -> &'static [Pass] {
        match self {
            Self::Lint => &[Pass { title: "lint", xdp: None }],
            Self::Unit => &[Pass { title: "unit", xdp: None }],
            Self::Scenario => &[Pass { title: "scenario", xdp: None }],
            Self::Packet => &[Pass { title: "packet", xdp: None }],
            Self::Namespace => &[
                Pass { title: "namespace", xdp: None },
                Pass { title: "namespace, --xdp off", xdp: Some("off") },
            ],
            Self::Fuzz => &[Pass { title: "fuzz", xdp: None }],
            Self::Vm => &[Pass { title: "vm", xdp: None }],
        }
    }
}

/// Runs one pass of a layer.
pub fn perform(workspace: &Workspace, layer: Layer, pass: &Pass, args: &Args) -> Result<Outcome> {
    match layer {
        Layer::Lint => Ok(Outcome::Ran(lint::check_all(workspace))),
        Layer::Unit => {
            let mut cargo = cargo_test(workspace, pass, args);
            cargo.args(["--lib", "--bins"]);
            run(cargo, args)
        }
        Layer::Scenario => integration(workspace, "scenario", pass, args),
        Layer::Packet => privileged(workspace, "packet", pass, args),
        Layer::Namespace => privileged(workspace, "namespace", pass, args),
        Layer::Fuzz => privileged(workspace, "fuzz", pass, args),
        Layer::Vm => vm::load_everywhere(workspace).map(Outcome::Ran),
    }
}

/// As [`integration`], for tests that load programs.
fn privileged(workspace: &Workspace, target: &str, pass: &Pass, args: &Args) -> Result<Outcome> {
    if !setup::is_root()? {
        return Ok(Outcome::Unable("loading BPF programs takes root".to_owned()));
    }
    integration(workspace, target, pass, args)
}

/// One of the agent's test targets.
fn integration(workspace: &Workspace, target: &str, pass: &Pass, args: &Args) -> Result<Outcome> {
    if !has_test_target(workspace, target)? {
        return Ok(Outcome::Unable(format!("the workspace has no test target `{target}`")));
    }
    let mut cargo = cargo_test(workspace, pass, args);
    cargo.args(["--test", target]);
    run(cargo, args)
}

/// The whole workspace each time, so that every layer finds its dependencies built with the same features.
fn cargo_test(workspace: &Workspace, pass: &Pass, args: &Args) -> Command {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    cargo.env("MILLRACE_BIN", workspace.target().join("debug/millrace"));
    if let Some(xdp) = pass.xdp {
        cargo.env("MILLRACE_XDP", xdp);
    }
    if args.long {
        cargo.env("MILLRACE_LONG", "1");
    }
    if args.verbose {
        cargo.env("MILLRACE_VERBOSE", "1");
    }
    cargo
}

fn run(mut cargo: Command, args: &Args) -> Result<Outcome> {
    if args.verbose {
        cargo.args(["--", "--nocapture"]);
    }
    let output = if args.verbose { Output::Shown } else { Output::OnFailure };
    let bound = if args.long { LONG_BOUND } else { BOUND };
    libtest::run(&mut cargo, output, bound).map(Outcome::Ran)
}

fn has_test_target(workspace: &Workspace, name: &str) -> Result<bool> {
    let metadata =
        command::output(workspace.cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("can't read cargo's metadata")?;
    let list =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut targets = list(&metadata, "packages").into_iter().flat_map(|package| list(&package, "targets"));
    Ok(targets.any(|target| {
        target.get("name") == Some(&Value::from(name)) && list(&target, "kind").contains(&Value::from("test"))
    }))
}
