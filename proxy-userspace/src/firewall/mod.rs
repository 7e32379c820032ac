//! Keeps the pod firewall at the cluster's NetworkPolicies.
//!
//! One task owns the index of policies and the firewall's maps. A change of a policy, a pod, a Namespace or a device
//! makes it compute the tables of this node and write what differs.

mod ends;
mod status;
mod tell;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

pub use status::{FirewallStatus, Statuses};
pub use tell::PolicyProblem;

use ends::{Ends, Fresh};
use tell::Teller;

use crate::dataplane::Mode;
use crate::dataplane::ebpf::firewall::{Applied, Firewall, Holders, Wanted, open_new_devices};
use crate::dataplane::ebpf::read::monotonic_seconds;
use crate::node::{DevicePattern, Topology, device_name};
use crate::policy::{Changes, Compiled, Index, LocalPod, Problem, Site};
use crate::source::{PolicyBatch, PolicyEvent};

/// The settings of the firewall.
#[derive(Clone, Debug)]
pub struct FirewallSettings {
    /// The BPF file system.
    pub bpffs: PathBuf,
    /// The name of this node.
    pub node: String,
    /// The names of the devices of pods.
    pub pod_interfaces: Vec<DevicePattern>,
}

/// What the firewall follows.
#[derive(Debug)]
pub struct Inputs {
    /// Namespaces, pods and NetworkPolicies.
    pub events: mpsc::Receiver<PolicyBatch>,
    /// The devices and addresses of this node.
    pub topology: watch::Receiver<Option<Topology>>,
    /// The addresses of all nodes.
    pub nodes: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    /// How the node serves, once it is known.
    pub mode: watch::Receiver<Option<Mode>>,
}

/// Time between two looks at links, and at devices whose pod is not known.
const LOOK: Duration = Duration::from_secs(1);
/// The shortest time between two computations. A program that read a number before a change has ended by then.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest time between a change and its computation: the last one took long, and is to take a fifth of a processor.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Time until it is tried again to open the firewall.
const RETRY: Duration = Duration::from_secs(10);
/// Batches that are taken before a computation.
const BATCHES: usize = 1_000;
/// Steps between two computations of everything, which leave out what steps leave behind.
const STEPS: usize = 1_000;

/// Keeps the firewall, until a channel is closed. What it has attached stays in force. Problems of policies go to
/// `problems`.
///
/// Nothing changes before everything was listed once: until then, the tables of an earlier agent judge.
pub async fn keep_firewall(
    settings: FirewallSettings,
    mut inputs: Inputs,
    statuses: Statuses,
    problems: mpsc::Sender<PolicyProblem>,
) {
    let Ok(mode) = inputs.mode.wait_for(Option::is_some).await.map(|mode| *mode) else { return };
    if mode != Some(Mode::Ebpf) {
        let why = "--network-policy on has no effect: this node is not served by eBPF, and what translates Services \
                   here does so behind the firewall";
        warn!(problem = why, "the firewall");
        statuses.publish(FirewallStatus::failed(why));
        // An agent that served by eBPF may have left them, and nobody lets new pods pass.
        if let Err(error) = open_new_devices() {
            warn!(%error, "the devices of new pods stay closed");
        }
        return;
    }
    let (firewall, ends) = loop {
        let opened =
            Firewall::open(&settings.bpffs, &settings.pod_interfaces).map_err(|error| error.to_string());
        match opened.and_then(|firewall| Ok((firewall, Ends::open().map_err(|e| e.to_string())?))) {
            Ok(opened) => break opened,
            Err(error) => {
                warn!(%error, "the firewall can't be opened; tried again");
                statuses.publish(FirewallStatus::failed(&error));
                sleep(RETRY).await;
            }
        }
    };
    let mut keeper = Keeper {
        settings,
        firewall,
        ends,
        index: Index::default(),
        is_listed: false,
        is_stale: true,
        compiled: Compiled::default(),
        changes: Changes::whole(),
        steps: 0,
        holders: Holders::default(),
        is_settled: false,
        warned: BTreeSet::new(),
        teller: Teller::new(problems),
        statuses,
    };
    keeper.follow(inputs).await;
}

struct Keeper {
    settings: FirewallSettings,
    firewall: Firewall,
    ends: Ends,
    index: Index,
    is_listed: bool,
    /// Whether anything has changed that the tables depend on.
    is_stale: bool,
    /// The tables that the maps have, and what has changed since then.
    compiled: Compiled,
    changes: Changes,
    /// Steps since everything was computed.
    steps: usize,
    /// The pods behind them.
    holders: Holders,
    /// Whether each device had its pod, and each pod its device.
    is_settled: bool,
    /// What was warned of.
    warned: BTreeSet<String>,
    teller: Teller,
    statuses: Statuses,
}

impl Keeper {
    async fn follow(&mut self, inputs: Inputs) {
        let Inputs { mut events, mut topology, mut nodes, .. } = inputs;
        let (mut due, mut not_before) = (Some(Instant::now()), Instant::now());
        let mut look_at = Instant::now() + LOOK;
        loop {
            let is_ready = self.is_listed && topology.borrow().is_some();
            let wake = due.map_or(look_at, |due| due.max(not_before));
            tokio::select! {
                biased;
                () = sleep_until(wake), if is_ready => {
                    let begun = Instant::now();
                    let network = topology.borrow_and_update().clone().unwrap_or_default();
                    let of_nodes = nodes.borrow_and_update().clone().unwrap_or_default();
                    let is_done = self.refresh(&network, of_nodes).await;
                    due = (!is_done).then(|| Instant::now() + LOOK);
                    look_at = Instant::now() + LOOK;
                    not_before = Instant::now() + PAUSE.max(begun.elapsed() * 4).min(LONGEST_PAUSE);
                }
                changed = topology.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // A new pod waits for nothing else.
                    let network = topology.borrow_and_update().clone().unwrap_or_default();
                    self.guard(&network).await;
                    self.is_stale = true;
                    due = Some(Instant::now());
                }
                changed = nodes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.is_stale = true;
                    due = Some(Instant::now());
                }
                batch = events.recv() => {
                    let Some(batch) = batch else { return };
                    self.take(batch);
                    for _ in 0..BATCHES {
                        let Ok(batch) = events.try_recv() else { break };
                        self.take(batch);
                    }
                    due = Some(Instant::now());
                }
            }
        }
    }

    fn take(&mut self, batch: PolicyBatch) {
        for event in batch {
            match event {
                PolicyEvent::Change(change) => {
                    self.teller.learn(&change, Instant::now());
                    self.index.apply(change);
                    self.is_stale = true;
                }
                PolicyEvent::Listed => self.is_listed = true,
                PolicyEvent::Problem(problem) => warn!(%problem, "an object of a policy can't be read"),
            }
        }
    }

    /// Closes the devices of new pods, at once.
    async fn guard(&mut self, network: &Topology) {
        let Fresh { new, passing } = self.ends.fresh(network, &self.firewall.known()).await;
        for failure in self.firewall.guard(&new, &passing) {
            warn!(problem = failure, "the firewall");
        }
    }

    /// Brings the firewall to the present state. Returns whether that has succeeded.
    async fn refresh(&mut self, network: &Topology, of_nodes: BTreeSet<IpAddr>) -> bool {
        let mut failures = Vec::new();
        match self.ends.look(network, self.is_settled).await {
            Ok(has_changed) => self.is_stale |= has_changed,
            Err(failure) => failures.push(failure),
        }
        if !self.ends.has_looked() {
            // Without their devices, all pods would seem to be gone.
            self.statuses.publish(FirewallStatus::failed(&failures.join("; ")));
            return false;
        }
        if !self.is_stale {
            failures.extend(
                self.firewall.attach(&self.holders.devices(self.ends.found(), &self.ends.others(network))),
            );
            self.teller.tell(&self.index, Instant::now());
            let is_well = failures.is_empty();
            if !is_well {
                self.is_stale = true;
                self.statuses.publish(FirewallStatus::failed(&failures.join("; ")));
            }
            return is_well;
        }
        let mut nodes = of_nodes;
        match self.ends.link_local().await {
            Ok(own) => nodes.extend(own),
            Err(error) => failures.push(error.to_string()),
        }
        let site = Site { node: self.settings.node.clone(), addresses: network.addresses.clone() };
        self.changes.add(self.index.take_changes());
        let is_due = self.steps >= STEPS;
        let step = (!is_due).then(|| self.index.step(&site, &mut self.compiled, &self.changes)).flatten();
        let (next, between) = if step.is_some() {
            (None, None)
        } else {
            let next = self.index.compile_after(&site, &self.compiled);
            let between = self.index.compile_between(&site, &self.compiled, &next);
            (Some(next), between)
        };
        let pods: Vec<LocalPod<'_>> =
            self.index.local_pods(&site.node).filter(|pod| !pod.addresses.is_empty()).collect();
        let views = self.index.pods_of_node(&site.node).map(|pod| (pod.name, pod)).collect();
        let others = self.ends.others(network);
        let mut applied = self.firewall.apply(&Wanted {
            tables: next.as_ref().unwrap_or(&self.compiled),
            between: between.as_ref(),
            step: step.as_ref(),
            has_policies: self.index.has_policies(),
            now: monotonic_seconds(),
            devices: self.ends.found(),
            others: &others,
            pods: &pods,
            nodes: &nodes,
            views: &views,
            index: &self.index,
        });
        let Holders { pods: behind, aside, .. } = &applied.holders;
        let unknown = self.ends.found().len() - behind.len() - aside.len();
        self.is_settled = unknown == 0 && pods.len() == behind.len();
        if applied.writes > 0 {
            debug!(writes = applied.writes, pods = behind.len(), unknown, "the firewall has changed");
        }
        self.holders.clone_from(&applied.holders);
        applied.failures.extend(failures);
        self.statuses.publish(FirewallStatus::of(&self.firewall, &applied, unknown, &self.index));
        self.teller.tell(&self.index, Instant::now());
        self.is_stale = !applied.failures.is_empty();
        if applied.is_written {
            self.changes = Changes::default();
            self.steps += 1;
            if let Some(next) = next {
                self.compiled = next;
                self.steps = 0;
            }
        } else {
            self.changes = Changes::whole();
        }
        self.tell(applied);
        !self.is_stale
    }

    /// Logs what a person should see, once.
    fn tell(&mut self, applied: Applied) {
        let name = |device: &u32| device_name(*device).unwrap_or_else(|| device.to_string());
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
