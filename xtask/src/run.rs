//! The demonstration and the drill: the test bed with real traffic.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::former::{self, LAYOUT_8};
use crate::setup::Need;
use crate::workspace::Workspace;
use crate::{build, command, setup};

/// The flag of the drill that takes an agent of a former version.
const UPGRADE: &str = "--upgrade";
/// The lab's variable with the path of that agent.
const FORMER: &str = "MILLRACE_FORMER_BIN";

/// Arguments of `cargo xtask run` and `cargo xtask drill`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Passed to the test bed: `--once`, `--xdp off`, `--trace`, `--only FAULT`, `--upgrade`, ...; `--help` lists
    /// them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    lab: Vec<OsString>,
}

impl Args {
    fn has(&self, flag: &str) -> bool {
        self.lab.iter().any(|word| word == flag)
    }
}

/// Builds everything, then becomes the demonstration. Returns only if it can't be started.
pub fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    become_lab(workspace, "run", args)
}

/// Builds everything, then becomes the drill. Returns only if it can't be started.
pub fn drill(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    become_lab(workspace, "drill", args)
}

fn become_lab(workspace: &Workspace, task: &str, args: &Args) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Run])?;
    build::everything(workspace)?;
    let debug = workspace.target().join("debug");
    let agent = if args.has("--trace") { build::tracing_agent(workspace)? } else { debug.join("millrace") };
    let mut lab = workspace.command(debug.join("millrace-lab"));
    lab.arg(task).args(&args.lab).env("MILLRACE_BIN", agent);
    if args.has(UPGRADE) {
        lab.env(FORMER, former_agent(workspace)?);
    }
    eprintln!("+ {}", command::display(&lab));
    Err(lab.exec()).context("can't start the test bed")
}

/// Builds the agent that an upgrade begins with, unless that was done. The first time takes minutes.
fn former_agent(workspace: &Workspace) -> Result<PathBuf> {
    build::agent(&former::check_out(workspace, LAYOUT_8)?)
}
