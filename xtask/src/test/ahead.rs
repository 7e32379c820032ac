//! Builds what late layers need while early ones run.
//!
//! Tests wait for timers and for each other. Compilers that run at the least priority use that time, and don't
//! disturb them.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::layer::Layer;
use crate::workspace::Workspace;

/// The layers that take long to prepare, in the order in which they run.
const LAYERS: [Layer; 3] = [Layer::Apiserver, Layer::Lint, Layer::Manifests];

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
        let waiting: Vec<Layer> = LAYERS.into_iter().filter(|layer| later.contains(layer)).collect();
        let (sender, ended) = channel();
        let jobs: Vec<_> = waiting.iter().map(|layer| (*layer, command(workspace, *layer))).collect();
        thread::spawn(move || {
            for (layer, command) in jobs {
                // The layer itself builds what is missing then, and tells why that fails.
                if let Err(error) = command.and_then(run) {
                    eprintln!("preparing the layer {}: {error:#}", name(layer));
                }
                if sender.send(layer).is_err() {
                    return;
                }
            }
        });
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

/// Returns a call of this program that prepares a layer, and the file for its output.
fn command(workspace: &Workspace, layer: Layer) -> Result<(Command, PathBuf)> {
    let program = std::env::current_exe().context("this program's path is unknown")?;
    let log = workspace.target().join(format!("prepare-{}.log", name(layer)));
    let mut command = workspace.command("chrt");
    command.args(["--idle", "0", "nice", "-n", "19"]).arg(program).args(["prepare", "--layer", &name(layer)]);
    Ok((command, log))
}

fn run((mut command, log): (Command, PathBuf)) -> Result<()> {
    let file = File::create(&log).with_context(|| format!("can't create {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let status = command.status().context("can't run chrt")?;
    anyhow::ensure!(status.success(), "failed; see {}", log.display());
    Ok(())
}

fn name(layer: Layer) -> String {
    layer.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
