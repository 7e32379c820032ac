//! The agent's own source on a thread of its own, for its CPU time.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace::agent::BATCHES;
use millrace::model::Model;
use millrace::source::kubernetes::{KubernetesSettings, NodeParts, connect, watch};
use millrace::source::{Batch, Listing, Signs, SourceEvent};
use nix::unistd::{Pid, gettid};
use tokio::sync::{mpsc, oneshot};

use super::clock::timed;
use super::objects::NODE;
use super::server::Server;

/// The thread. It ends when the receiver of its events is gone.
pub struct Source {
    thread: Pid,
    _handle: JoinHandle<Result<()>>,
}

impl Source {
    /// Starts the source.
    pub fn start(server: &Server) -> Result<(Self, mpsc::Receiver<Batch>)> {
        let (sender, receiver) = mpsc::channel(BATCHES);
        let (name_sender, name) = oneshot::channel();
        let kubeconfig = server.kubeconfig().to_owned();
        let handle = std::thread::spawn(move || {
            let _ = name_sender.send(gettid());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(follow(kubeconfig, sender))
        });
        let thread = name.blocking_recv().context("the source's thread can't be started")?;
        Ok((Self { thread, _handle: handle }, receiver))
    }

    /// Returns its CPU time so far.
    pub fn cpu(&self) -> Result<Duration> {
        let path = PathBuf::from(format!("/proc/self/task/{}/schedstat", self.thread));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let nanoseconds = text.split_whitespace().next().context("schedstat is empty")?;
        Ok(Duration::from_nanos(nanoseconds.parse()?))
    }
}

/// Follows the server until the receiver is gone.
pub async fn follow(kubeconfig: impl AsRef<Path>, events: mpsc::Sender<Batch>) -> Result<()> {
    let connection = connect(Some(kubeconfig.as_ref()), Signs::default()).await?;
    let settings = KubernetesSettings { nodes: NodeParts::OfOne(NODE.to_owned()), service_proxy_name: None };
    watch(connection, settings, events).await?;
    Ok(())
}

/// Applies events to the model until everything was listed. Returns the model's CPU time.
pub fn list(events: &mut mpsc::Receiver<Batch>, model: &mut Model) -> Result<Duration> {
    let mut spent = Duration::ZERO;
    let mut listed = false;
    while !listed {
        let batch = events.blocking_recv().context("the source has ended")?;
        let (result, took) =
            timed(|| batch.into_iter().try_for_each(|event| take(event, model, &mut listed)));
        result?;
        spent += took;
    }
    Ok(spent)
}

fn take(event: SourceEvent, model: &mut Model, listed: &mut bool) -> Result<()> {
    match event {
        SourceEvent::Change(change) => model.apply(change),
        SourceEvent::Problem(problem) => anyhow::bail!("{problem}"),
        SourceEvent::Listed(Listing::Complete) => *listed = true,
        SourceEvent::Listed(listing) => anyhow::bail!("{listing:?}"),
    }
    Ok(())
}
