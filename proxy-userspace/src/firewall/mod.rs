//! Keeps the pod firewall at the cluster's NetworkPolicies.
//!
//! One task owns the index of policies and the firewall's maps. A change of a policy, a pod, a Namespace or a device
//! makes it compute the tables of this node and write what differs.

mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

pub use status::{FirewallStatus, Statuses};

use crate::dataplane::ebpf::OpenError;
use crate::dataplane::ebpf::firewall::{Applied, Firewall, LocalPod, Wanted};
use crate::node::{FarEnd, Hook, NodeError, PodDevices, Topology};
use crate::policy::{Compiled, Index, Problem, Site};
use crate::source::{PolicyBatch, PolicyEvent};

/// The settings of the firewall.
#[derive(Clone, Debug)]
pub struct FirewallSettings {
    /// The BPF file system.
    pub bpffs: PathBuf,
    /// The name of this node.
    pub node: String,
}

/// The reasons why the firewall can't work.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// Its programs and maps can't be opened.
    #[error("--network-policy: {0}")]
    Open(#[from] OpenError),
    /// The devices of pods can't be asked for.
    #[error("--network-policy: {0}")]
    Node(#[from] NodeError),
}

/// Time between two looks at links, and at devices whose pod is not known.
const LOOK: Duration = Duration::from_secs(1);
/// The shortest time between two computations. A program that read a number before a change has ended by then.
const PAUSE: Duration = Duration::from_millis(20);
/// Batches that are taken before a computation.
const BATCHES: usize = 1_000;

/// Keeps the firewall, until a channel is closed. What it has attached stays in force.
///
/// Nothing changes before everything was listed once: until then, the tables of an earlier agent judge.
pub async fn keep_firewall(
    settings: FirewallSettings,
    mut events: mpsc::Receiver<PolicyBatch>,
    mut topology: watch::Receiver<Option<Topology>>,
    statuses: Statuses,
) -> Result<(), FirewallError> {
    let firewall = Firewall::open(&settings.bpffs)?;
    let mut keeper = Keeper {
        settings,
        firewall,
        pod_devices: PodDevices::open()?,
        index: Index::default(),
        is_listed: false,
        compiled: Compiled::default(),
        ends: BTreeMap::new(),
        is_settled: false,
        warned: BTreeSet::new(),
        statuses,
    };
    let mut due = Some(Instant::now());
    let mut look_at = Instant::now() + LOOK;
    loop {
        let is_ready = keeper.is_listed && topology.borrow().is_some();
        tokio::select! {
            biased;
            () = sleep_until(due.unwrap_or(look_at)), if is_ready => {
                let begun = Instant::now();
                let now = topology.borrow_and_update().clone().unwrap_or_default();
                due = (!keeper.refresh(&now).await?).then(|| Instant::now() + LOOK);
                look_at = Instant::now() + LOOK;
                // At most a fifth of a processor.
                let pause = PAUSE.max(begun.elapsed() * 4);
                tokio::time::sleep(pause).await;
            }
            changed = topology.changed() => match changed {
                Ok(()) => due = Some(Instant::now()),
                Err(_) => return Ok(()),
            },
            batch = events.recv() => {
                let Some(batch) = batch else { return Ok(()) };
                keeper.take(batch);
                for _ in 0..BATCHES {
                    let Ok(batch) = events.try_recv() else { break };
                    keeper.take(batch);
                }
                due = Some(Instant::now());
            }
        }
    }
}

/// Returns the second of the clock that the programs read, its low bits.
fn now() -> u32 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u32::try_from(time.as_secs() & u64::from(u32::MAX)).unwrap_or(0)
}

struct Keeper {
    settings: FirewallSettings,
    firewall: Firewall,
    pod_devices: PodDevices,
    index: Index,
    is_listed: bool,
    /// The tables that the maps have.
    compiled: Compiled,
    /// The other ends of the devices of pods, as they were looked at last.
    ends: BTreeMap<u32, FarEnd>,
    /// Whether each device had its pod, and each pod its device.
    is_settled: bool,
    /// What was warned of.
    warned: BTreeSet<String>,
    statuses: Statuses,
}

impl Keeper {
    fn take(&mut self, batch: PolicyBatch) {
        for event in batch {
            match event {
                PolicyEvent::Change(change) => self.index.apply(change),
                PolicyEvent::Listed => self.is_listed = true,
                PolicyEvent::Problem(problem) => warn!(%problem, "an object of a policy can't be read"),
            }
        }
    }

    /// Brings the firewall to the present state. Returns whether that has succeeded.
    async fn refresh(&mut self, topology: &Topology) -> Result<bool, FirewallError> {
        let devices: BTreeSet<u32> = topology
            .devices
            .iter()
            .filter(|(_, target)| target.hooks.contains(&Hook::TcPodIn))
            .map(|(d, _)| *d)
            .collect();
        if !self.is_settled || !self.ends.keys().eq(devices.iter()) {
            self.ends = self.pod_devices.look(&devices).await?;
        }
        let site = Site { node: self.settings.node.clone(), addresses: topology.addresses.clone() };
        let next = self.index.compile_after(&site, &self.compiled);
        let between = self.index.compile_between(&site, &self.compiled, &next);
        let pods: Vec<LocalPod<'_>> =
            self.index.local_pods(&site.node).filter(|(_, addresses)| !addresses.is_empty()).collect();
        let applied = self.firewall.apply(&Wanted {
            tables: &next,
            between: between.as_ref(),
            has_policies: self.index.has_policies(),
            now: now(),
            devices: &self.ends,
            pods: &pods,
        });
        let Applied { writes, holders, .. } = &applied;
        let unknown = self.ends.len() - holders.pods.len() - holders.aside.len();
        let homeless = pods.len() - holders.pods.len();
        self.is_settled = unknown == 0 && homeless == 0;
        if *writes > 0 {
            debug!(writes, pods = holders.pods.len(), unknown, "the firewall has changed");
        }
        self.statuses.publish(FirewallStatus::of(&self.firewall, &applied, unknown, &self.index));
        let succeeded = applied.failures.is_empty();
        self.tell(applied);
        if succeeded {
            self.compiled = next;
        }
        Ok(succeeded)
    }

    /// Logs what a person should see, once.
    fn tell(&mut self, applied: Applied) {
        let name = |device: &u32| crate::node::device_name(*device).unwrap_or_else(|| device.to_string());
        let contested: Vec<String> = applied.holders.contested.iter().map(name).collect();
        let contested = (!contested.is_empty()).then(|| {
            format!("several devices lead to one pod's address and stay closed: {}", contested.join(", "))
        });
        let problems = self.index.problems().map(Problem::to_string);
        let now: BTreeSet<String> = applied.failures.into_iter().chain(contested).chain(problems).collect();
        for text in now.difference(&self.warned) {
            warn!(problem = text, "the firewall");
        }
        if now.is_empty() && !self.warned.is_empty() {
            info!("the firewall has no problem any more");
        }
        self.warned = now;
    }
}
