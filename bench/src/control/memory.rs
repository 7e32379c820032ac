//! The memory of an agent, in a process of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace::agent::BATCHES;
use millrace::model::Model;
use millrace::reconcile::{self, Channels, Observer, Reconciler, Synced};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use super::clock::process_cpu;
use super::driver::{INTERVALS, observers};
use super::listing;
use super::objects::Scale;
use super::pins::Pins;
use super::report::{Figure, Target};
use super::server::Server;
use super::source::follow;

/// The arguments of the child.
#[derive(clap::Args)]
pub struct Arguments {
    kubeconfig: PathBuf,
    scale: String,
    #[arg(long)]
    dual_stack: bool,
}

/// The output of the child, in bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Usage {
    resident: usize,
    mapped: usize,
    peak: usize,
    before: usize,
    cpu: Duration,
}

/// Measures for the bench of the control plane.
pub fn measure(scale: Scale) -> Result<Vec<Figure>> {
    let usage = in_child(scale)?;
    let held = Figure::megabytes("memory beside the mapped arrays", usage.held());
    Ok(vec![
        match (scale.services, scale.endpoints) {
            (10_000, 10) => held.at_most(150.0),
            _ => held,
        },
        Figure::megabytes("memory of the mapped arrays", usage.mapped),
        Figure::megabytes("memory before the first object", usage.before),
        Figure::megabytes("memory at its peak, all in all", usage.peak),
        Figure::cpu("the whole process until programmed", usage.cpu, Target::None),
    ])
}

/// Starts a child that holds the state, and reads its output.
pub fn in_child(scale: Scale) -> Result<Usage> {
    let mut child = Command::new(std::env::current_exe()?);
    let server = Server::start(scale)?;
    child.arg("control-memory").arg(server.kubeconfig());
    child.arg(format!("{}x{}", scale.services, scale.endpoints));
    child.args(scale.dual_stack.then_some("--dual-stack"));
    let output = child.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the child that holds the state: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs the child: source, loop and real data plane, as in the agent.
pub fn hold(arguments: &Arguments) -> Result<()> {
    let scale = Scale { dual_stack: arguments.dual_stack, ..Scale::parse(&arguments.scale)? };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let before = status("VmRSS")?;
    let (event_sender, events) = mpsc::channel(BATCHES);
    let (topology_sender, topology) = watch::channel(Some(listing::topology(scale)));
    let (stop_sender, stop) = watch::channel(());
    let (targets, _) = watch::channel(None);
    let (ready_sender, ready) = oneshot::channel();
    let pins = Pins::new();
    let kubeconfig = arguments.kubeconfig.clone();
    runtime.spawn(async move { follow(kubeconfig, event_sender).await });
    let handle = runtime.handle().clone();
    let channels = Channels { events, topology, targets, stop };
    std::thread::scope(|scope| {
        let pins = &pins;
        let task = scope.spawn(move || handle.block_on(serve(pins, channels, ready_sender)));
        let usage = runtime.block_on(ready).context("the loop ended before its first sync");
        let usage = usage.and_then(|()| Usage::now(before));
        drop((stop_sender, topology_sender));
        task.join().map_err(|_| anyhow::anyhow!("the loop panicked"))??;
        println!("{}", serde_json::to_string(&usage?)?);
        Ok(())
    })
}

impl Usage {
    /// Returns the memory beside the mapped arrays, in bytes.
    pub const fn held(&self) -> usize {
        self.resident.saturating_sub(self.mapped)
    }

    fn now(before: usize) -> Result<Self> {
        Ok(Self {
            resident: status("VmRSS")?,
            mapped: mapped()?,
            peak: status("VmHWM")?,
            before,
            cpu: process_cpu(),
        })
    }
}

async fn serve(pins: &Pins, mut channels: Channels, ready: oneshot::Sender<()>) -> Result<()> {
    let mut model = Model::new(listing::settings());
    let mut observers = observers();
    let listed = reconcile::list(&mut model, &mut channels, &mut observers)
        .await
        .context("the listing is incomplete")?;
    let dataplane = pins.open(model.desired())?;
    // The loop waits for a change of the topology.
    channels.topology.mark_changed();
    observers.push(Box::new(Ready(Some(ready))));
    // The future is large, and awaited once.
    Box::pin(Reconciler::new(model, listed, dataplane, channels, INTERVALS).observed_by(observers).run())
        .await;
    Ok(())
}

#[derive(Debug)]
struct Ready(Option<oneshot::Sender<()>>);

impl Observer for Ready {
    fn synced(&mut self, _synced: &Synced<'_>) {
        if let Some(ready) = self.0.take() {
            // The receiver may have given up.
            let _ = ready.send(());
        }
    }
}

/// Returns a value of /proc/self/status in bytes.
fn status(name: &str) -> Result<usize> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    kilobytes(line.with_context(|| format!("/proc/self/status has no {name}"))?)
}

/// Returns the part of the maps' memory that counts as this process's.
fn mapped() -> Result<usize> {
    let text = fs::read_to_string("/proc/self/smaps")?;
    let (mut is_map, mut total) = (false, 0);
    for line in text.lines() {
        match line.split_whitespace().next() {
            Some(first) if !first.ends_with(':') => {
                is_map = line.contains("bpf-map") || line.contains("/sys/fs/bpf");
            }
            Some("Rss:") if is_map => total += kilobytes(line.trim_start_matches("Rss:"))?,
            _ => {}
        }
    }
    Ok(total)
}

fn kilobytes(text: &str) -> Result<usize> {
    let number: usize = text.trim().trim_end_matches(" kB").parse()?;
    Ok(number * 1024)
}
