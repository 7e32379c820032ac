//! The pod firewall beside the proxy.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;

use futures_util::future::try_join;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{info, warn};

use super::BATCHES;
use crate::config::Settings;
use crate::dataplane::Mode;
use crate::dataplane::ebpf::firewall::remove;
use crate::firewall::{FirewallSettings, Inputs, PolicyProblem, Statuses, keep_firewall};
use crate::node::Topology;
use crate::source::{PolicyBatch, SourceError};

/// The two ends of the channel for policies; none without `--network-policy`.
pub type PolicyChannel = (Option<mpsc::Sender<PolicyBatch>>, Option<mpsc::Receiver<PolicyBatch>>);

/// Returns the channel.
pub fn channel(settings: &Settings) -> PolicyChannel {
    let channel = settings.network_policy.then(|| mpsc::channel(BATCHES));
    channel.map_or((None, None), |(sender, receiver)| (Some(sender), Some(receiver)))
}

/// What the firewall follows beside the policies.
pub struct Surroundings {
    pub topology: watch::Receiver<Option<Topology>>,
    pub nodes: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    pub mode: watch::Receiver<Option<Mode>>,
    pub problems: mpsc::Sender<PolicyProblem>,
}

/// Starts the firewall, in a thread of its own since its system calls block. Without policies, removes what an earlier
/// agent has left.
pub fn start(
    settings: &Settings,
    policies: Option<mpsc::Receiver<PolicyBatch>>,
    around: Surroundings,
    mut stopped: watch::Receiver<()>,
    statuses: Statuses,
) -> JoinHandle<()> {
    let wanted = FirewallSettings {
        bpffs: settings.bpffs.clone(),
        node: settings.model.node_name.clone(),
        pod_interfaces: settings.pod_interfaces.clone(),
    };
    let Some(events) = policies else {
        return spawn_blocking(move || match remove(&wanted.bpffs) {
            Ok(removed) if removed.is_empty() => {}
            Ok(_) => info!("--network-policy is off: the firewall of an earlier agent is removed"),
            Err(error) => warn!(%error, "the firewall of an earlier agent can't be removed and goes on"),
        });
    };
    let Surroundings { topology, nodes, mode, problems } = around;
    let runtime = Handle::current();
    spawn_blocking(move || {
        runtime.block_on(async move {
            tokio::select! {
                _ = stopped.changed() => {}
                () = keep_firewall(wanted, Inputs { events, topology, nodes, mode }, statuses, problems) => {}
            }
        });
    })
}

/// Starts the watch of Services, and that of policies if there is one.
pub fn watch_both(
    services: impl Future<Output = Result<(), SourceError>> + Send + 'static,
    policies: Option<impl Future<Output = Result<(), SourceError>> + Send + 'static>,
) -> JoinHandle<Result<(), SourceError>> {
    match policies {
        Some(policies) => tokio::spawn(async move { try_join(services, policies).await.map(drop) }),
        None => tokio::spawn(services),
    }
}
