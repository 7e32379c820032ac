//! The real cluster: its programs and images are made here, and `millrace-lab` runs it.

mod image;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::setup::Need;
use crate::workspace::Workspace;
use crate::{build, command, setup};

/// Arguments of `cargo xtask cluster`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Passed to `millrace-lab cluster`: `up`, `down`, `status`, `exec`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    lab: Vec<OsString>,
}

/// Builds what is missing, then runs the test bed's command.
pub fn cluster(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let makes_one = args.lab.first().is_some_and(|word| word == "up")
        && !args.lab.iter().any(|word| word == "--help" || word == "-h");
    if makes_one {
        setup::ensure(workspace, &[Need::Build, Need::Run, Need::Cluster])?;
        build::everything(workspace)?;
    } else {
        command::run(workspace.cargo().args(["build", "--quiet", "-p", "millrace-lab"]))?;
    }
    let mut lab = workspace.command(workspace.target().join("debug/millrace-lab"));
    lab.arg("cluster").args(&args.lab).env(STATE, state(workspace));
    if makes_one {
        add_assets(workspace, &mut lab)?;
    }
    let status = lab.status().context("can't start the test bed")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The variables that the test bed reads.
const PROGRAMS: &str = "MILLRACE_CLUSTER_PROGRAMS";
const IMAGES: &str = "MILLRACE_CLUSTER_IMAGES";
const STATE: &str = "MILLRACE_CLUSTER_STATE";

/// Sets the variables with programs, images and states for a command that starts a cluster. Needs the
/// agent's debug build.
pub fn add_assets(workspace: &Workspace, command: &mut Command) -> Result<()> {
    let programs = setup::ensure_cluster_programs(workspace)?;
    let images = images(workspace, &programs)?;
    command.env(PROGRAMS, env::join_paths(programs)?).env(IMAGES, env::join_paths(images)?);
    command.env(STATE, state(workspace));
    Ok(())
}

/// Returns the directory of clusters' states. All work trees share it, because namespaces have names
/// of the whole machine.
fn state(workspace: &Workspace) -> PathBuf {
    workspace.cache.join("clusters")
}

/// Packs the images that a cluster can't do without, and Millrace's. Returns their archives.
fn images(workspace: &Workspace, programs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let folder = workspace.target().join("cluster");
    std::fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let agnhost = programs.iter().map(|programs| programs.join("agnhost")).find(|path| path.is_file());
    let agnhost = agnhost.context("agnhost was not built")?;
    let pause = folder.join("pause");
    build_pause(workspace, &pause)?;
    let images = [
        image::Image {
            name: "docker.io/millrace/pause:1",
            programs: vec![(pause, "pause")],
            entry_point: &["/pause"],
            command: &[],
        },
        image::Image {
            name: "docker.io/millrace/agnhost:1",
            programs: vec![(agnhost, "agnhost")],
            entry_point: &["/agnhost"],
            command: &["pause"],
        },
        image::Image {
            name: MILLRACE,
            programs: vec![
                (workspace.target().join("debug/millrace"), "usr/local/bin/millrace"),
                (PathBuf::from("/usr/sbin/nft"), "usr/sbin/nft"),
            ],
            entry_point: &["/usr/local/bin/millrace"],
            command: &[],
        },
    ];
    images.iter().map(|image| image.pack(workspace, &folder)).collect()
}

/// The name of Millrace's image, as the container runtime completes `millrace:VERSION`.
const MILLRACE: &str = concat!("docker.io/library/millrace:", env!("CARGO_PKG_VERSION"));

fn build_pause(workspace: &Workspace, program: &Path) -> Result<()> {
    if program.is_file() {
        return Ok(());
    }
    let source = workspace.root.join("xtask/src/cluster/pause.c");
    command::run(workspace.command("gcc").args(["-static", "-Os", "-s", "-o"]).arg(program).arg(source))
}
