//! Builds what late layers need while early ones run, and runs emulated machines beside layers that wait.
//!
//! Tests wait for timers and for each other. Compilers and emulators that run at the least priority use that time, and don't
//! disturb them.

use std::ffi::OsStr;
use std::fs::{File, create_dir_all};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::layer::{self, Layer};
use super::{Args, Outcome};
use crate::workspace::Workspace;

/// The layers that take long to prepare, in the order in which they run: what Go builds, and what Rust builds. Both go
/// on at the same time, because a linker keeps one processor busy.
const QUEUES: [&[Layer]; 2] =
    [&[Layer::Apiserver, Layer::Manifests], &[Layer::Trace, Layer::Bench, Layer::Lint]];

/// Preparations that go on.
pub struct Ahead {
    /// The layers whose preparation has not ended.
    waiting: Vec<Layer>,
    /// A layer whose preparation has ended, well or not.
    ended: Receiver<Layer>,
}

impl Ahead {
    /// Starts with those of `layers` that are not the first.
    pub fn start(workspace: &Workspace, layers: &[Layer]) -> Self {
        let later = layers.get(1..).unwrap_or_default();
        let (sender, ended) = channel();
        let mut waiting = Vec::new();
        for queue in QUEUES {
            let queue = queue.iter().copied().filter(|layer| later.contains(layer));
            let jobs: Vec<_> = queue.map(|layer| (layer, preparation(workspace, layer))).collect();
            waiting.extend(jobs.iter().map(|(layer, _)| *layer));
            let sender = sender.clone();
            thread::spawn(move || work_through(jobs, &sender));
        }
        Self { waiting, ended }
    }

    /// Waits for the preparation of a layer, which then has all processors.
    pub fn wait_for(&mut self, layer: Layer) {
        while self.waiting.contains(&layer) {
            let Ok(ended) = self.ended.recv() else { return };
            self.waiting.retain(|one| *one != ended);
        }
    }
}

/// Runs the emulated machines of the layer `vm`.
pub fn machines(workspace: &Workspace, args: &Args) -> Result<Outcome> {
    // `emulate` builds what is missing then, and tells why that fails.
    if let Err(error) = preparation(workspace, Layer::Vm).and_then(run) {
        eprintln!("preparing the layer vm: {error:#}");
    }
    layer::emulate(workspace, args)
}

type Preparation = Result<(Command, PathBuf)>;

fn work_through(jobs: Vec<(Layer, Preparation)>, ended: &Sender<Layer>) {
    for (layer, job) in jobs {
        // The layer itself builds what is missing then, and tells why that fails.
        if let Err(error) = job.and_then(run) {
            eprintln!("preparing the layer {}: {error:#}", name(layer));
        }
        if ended.send(layer).is_err() {
            return;
        }
    }
}

/// Returns a call of this program that prepares a layer, and the file for its output.
fn preparation(workspace: &Workspace, layer: Layer) -> Preparation {
    let program = std::env::current_exe().context("this program's path is unknown")?;
    let mut command = idle(workspace, program);
    command.args(["prepare", "--layer", &name(layer)]);
    Ok((command, log(workspace, &name(layer))?))
}

fn run((mut command, log): (Command, PathBuf)) -> Result<()> {
    let status = with_output(&mut command, &log)?.status().context("can't run chrt")?;
    anyhow::ensure!(status.success(), "failed; see {}", log.display());
    Ok(())
}

/// A build of all that the tests depend on, which goes on while packages are installed and the BPF object is linked.
pub struct Dependencies {
    build: Child,
}

impl Dependencies {
    /// Begins, if one of these layers has tests of Rust and this machine has no BPF object yet. The agent can't be built
    /// without one, but all that it depends on can.
    pub fn start(workspace: &Workspace, layers: &[Layer]) -> Option<Self> {
        let has_tests = layers.iter().any(|layer| !matches!(layer, Layer::Lint | Layer::Manifests));
        if !has_tests || workspace.bpf_object().exists() {
            return None;
        }
        let mut cargo = idle(workspace, workspace.cargo().get_program());
        cargo.args(["build", "--workspace", "--tests", "--keep-going"]);
        cargo.env("CARGO_TARGET_DIR", workspace.target());
        // The layers build what is missing then, and tell why that fails.
        let log = log(workspace, "dependencies").ok()?;
        let build = with_output(&mut cargo, &log).ok()?.process_group(0).spawn().ok()?;
        Some(Self { build })
    }

    /// Waits until it has built what it can. It fails in any case, for the BPF object.
    pub fn wait(mut self) {
        let _ = self.build.wait();
    }
}

impl Drop for Dependencies {
    /// Ends a build that nobody waits for, and its compilers. It would hold cargo's lock.
    fn drop(&mut self) {
        if matches!(self.build.try_wait(), Ok(None)) {
            let _ = Command::new("kill").args(["--", &format!("-{}", self.build.id())]).status();
            let _ = self.build.wait();
        }
    }
}

/// Returns a call that gets only the time that others leave.
fn idle(workspace: &Workspace, program: impl AsRef<OsStr>) -> Command {
    let mut command = workspace.command("chrt");
    command.args(["--idle", "0", "nice", "-n", "19"]).arg(program);
    command
}

fn log(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let folder = workspace.target();
    create_dir_all(&folder).with_context(|| format!("can't create {}", folder.display()))?;
    Ok(folder.join(format!("prepare-{name}.log")))
}

fn with_output<'a>(command: &'a mut Command, log: &Path) -> Result<&'a mut Command> {
    let file = File::create(log).with_context(|| format!("can't create {}", log.display()))?;
    Ok(command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file))
}

fn name(layer: Layer) -> String {
    layer.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
