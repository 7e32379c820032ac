//! The real cluster: its programs and images are made here, and `millrace-lab` runs it.

mod former;
mod images;
mod shell;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::image::Variant;
use crate::setup::Need;
use crate::workspace::Workspace;
use crate::{command, setup};

/// Arguments of `cargo xtask cluster`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Passed to `millrace-lab cluster`: `up`, `down`, `status`, `exec`, `e2e`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    lab: Vec<OsString>,
}

/// Builds what is missing, then runs the test bed's command.
pub fn cluster(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let word = args.lab.first().and_then(|word| word.to_str()).unwrap_or_default();
    let asks_for_help = args.lab.iter().any(|word| word == "--help" || word == "-h");
    let task = if asks_for_help { "help" } else { word };
    // With its test, and for the workspace: alone, it would take other features of most dependencies, which
    // cargo would build once more.
    command::run(workspace.cargo().args([
        "test",
        "--quiet",
        "--workspace",
        "--no-run",
        "--test",
        "cluster",
    ]))?;
    let mut lab = workspace.command(workspace.target().join("debug/millrace-lab"));
    lab.arg("cluster").args(&args.lab).env(STATE, state(workspace));
    match task {
        "up" => {
            setup::ensure(workspace, &[Need::Build, Need::Run, Need::Cluster])?;
            let is_ipvs = args.lab.iter().any(|word| word == "ipvs");
            add_assets(workspace, if is_ipvs { Variant::Ipvs } else { Variant::Ebpf }, Vec::new(), &mut lab)?;
        }
        "e2e" => add_e2e_assets(workspace, &mut lab)?,
        _ => {}
    }
    let status = lab.status().context("can't start the test bed")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The variables that the test bed reads.
const PROGRAMS: &str = "MILLRACE_CLUSTER_PROGRAMS";
const IMAGES: &str = "MILLRACE_CLUSTER_IMAGES";
const STATE: &str = "MILLRACE_CLUSTER_STATE";

/// Sets the variables with programs, images and states for a command that starts a cluster. Builds what
/// is missing.
pub fn add_assets(
    workspace: &Workspace,
    variant: Variant,
    more_images: Vec<PathBuf>,
    command: &mut Command,
) -> Result<()> {
    let programs = setup::ensure_cluster_programs(workspace)?;
    let mut images = images::ensure(workspace, variant, &programs)?;
    images.extend(more_images);
    set_variables(workspace, programs, images, command)
}

/// Packs the images that only the long tests install, and returns their archives.
pub fn more_images(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    Ok(vec![former::ensure(workspace)?, images::millrace(workspace, Variant::Ipvs)?])
}

/// Sets the variables for a command that runs Kubernetes' specs.
fn add_e2e_assets(workspace: &Workspace, command: &mut Command) -> Result<()> {
    let mut programs = setup::ensure_cluster_programs(workspace)?;
    programs.extend(setup::ensure_e2e_programs(workspace)?);
    let images = images::ensure_e2e(workspace, &programs)?;
    set_variables(workspace, programs, images, command)
}

fn set_variables(
    workspace: &Workspace,
    programs: Vec<PathBuf>,
    images: Vec<PathBuf>,
    command: &mut Command,
) -> Result<()> {
    command.env(PROGRAMS, env::join_paths(programs)?).env(IMAGES, env::join_paths(images)?);
    command.env(STATE, state(workspace));
    Ok(())
}

/// Returns the directory of clusters' states. All work trees share it, because namespaces have names
/// of the whole machine.
fn state(workspace: &Workspace) -> PathBuf {
    workspace.cache.join("clusters")
}
