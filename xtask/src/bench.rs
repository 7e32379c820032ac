//! The benchmarks, built in release.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::setup::Need;
use crate::workspace::Workspace;
use crate::{build, command, setup};

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Passed to `millrace-bench`: a benchmark's name, `--json`, ...; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<OsString>,
}

/// Builds in release, then becomes the bench. Returns only if the bench can't be started.
pub fn bench(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    setup::ensure(workspace, &[Need::Build, Need::Run])?;
    build::bpf_object(workspace, build::Warnings::Allowed)?;
    build::bench_object(workspace)?;
    command::run(workspace.cargo().args(["build", "--release", "-p", "millrace", "-p", "millrace-bench"]))?;
    let release = workspace.target().join("release");
    let mut bench = workspace.command(release.join("millrace-bench"));
    bench.args(&args.bench).env("MILLRACE_BIN", release.join("millrace"));
    setup::add_built(workspace, &mut bench);
    eprintln!("+ {}", command::display(&bench));
    Err(bench.exec()).context("can't start the bench")
}
