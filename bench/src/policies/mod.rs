//! From a change to the maps of the pod firewall, in a large cluster.
//!
//! The agent's own task runs in a network namespace of its own, without pods' devices. A change arrives when the task gets
//! it, and ends when the task publishes its next state.

mod objects;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace::dataplane::Mode;
use millrace::firewall::{FirewallSettings, Inputs, Statuses, keep_firewall};
use millrace::node::Topology;
use millrace::source::PolicyEvent;
use millrace_lab::net::{Namespace, own_prefix};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use objects::{NODE, Sizes, any_pod, listed, other_policy};

use crate::control::pins::Pins;
use crate::report::{Figure, Group, MILLRACE, Output, Section, Unit};

/// The most that a pod's change may take until it is in the maps.
const TARGET_MS: f64 = 10.0;
/// Longer than the pause between two computations.
const DISTANCE: Duration = Duration::from_millis(60);
/// The same behind a computation of everything, behind which the pause is the longest.
const LONG_DISTANCE: Duration = Duration::from_millis(700);
const LIMIT: Duration = Duration::from_secs(20);

/// The size of the cluster, and the output.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    output: Output,
    /// Pods of the cluster, 110 of them on the node
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// NetworkPolicies of the cluster
    #[arg(long, default_value_t = 1_000)]
    policies: usize,
    /// Changes of each kind
    #[arg(long, default_value_t = 50)]
    changes: usize,
}

/// Measures and prints.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.changes > 0, "--changes takes a positive number");
    let sizes = Sizes { pods: arguments.pods, policies: arguments.policies };
    let (changes, pins) = (arguments.changes, Pins::new());
    // It goes before the pins, and with it the task that holds them.
    let namespace = Namespace::create(&format!("{}-policies", own_prefix()))?;
    let path = pins.path().to_owned();
    let taken = namespace.run(async move || measure(sizes, changes, &path).await)?;
    let mut section = Section::new("policies", "A change of the pod firewall", METHOD);
    for (what, milliseconds, target) in taken {
        let figure = Figure::new(what, MILLRACE, &milliseconds)?;
        let mut group = Group::new("From a change to the maps", Unit::Milliseconds);
        group.add(if let Some(target) = target { figure.target(target) } else { figure });
        section.add(group);
    }
    arguments.output.write(vec![section])
}

/// A kind of change, its times in milliseconds, and the target.
type Taken = (String, Vec<f64>, Option<f64>);

async fn measure(sizes: Sizes, changes: usize, bpffs: &std::path::Path) -> Result<Vec<Taken>> {
    let settings =
        FirewallSettings { bpffs: bpffs.to_owned(), node: NODE.to_owned(), pod_interfaces: Vec::new() };
    let (sender, events) = mpsc::channel(16);
    let own = ["172.16.0.1".parse()?, "fd00:16::1".parse()?];
    let (_topology, topology) =
        watch::channel(Some(Topology { addresses: own.into(), ..Topology::default() }));
    let (_nodes, nodes) = watch::channel(Some(BTreeSet::from(own)));
    let (_mode, mode) = watch::channel(Some(Mode::Ebpf));
    let (problems, _problems) = mpsc::channel(16);
    let statuses = Statuses::default();
    let mut published = statuses.watch();
    let keeper =
        tokio::spawn(keep_firewall(settings, Inputs { events, topology, nodes, mode }, statuses, problems));
    sender.send(listed(sizes)?).await?;
    let first = timeout(LIMIT, published.changed()).await.context("the firewall did not start");
    first??;
    let mut taken = Vec::new();
    for (what, distance, target) in [("a pod", DISTANCE, Some(TARGET_MS)), ("a policy", LONG_DISTANCE, None)]
    {
        let mut milliseconds = Vec::new();
        for number in 0..changes {
            sleep(distance).await;
            let change = if target.is_some() { any_pod(sizes.pods + number)? } else { other_policy(number)? };
            let before = published.borrow_and_update().clone().context("no state")?;
            let began = Instant::now();
            sender.send(vec![PolicyEvent::Change(change)]).await?;
            timeout(LIMIT, published.changed()).await.context("a change is not followed")??;
            milliseconds.push(began.elapsed().as_secs_f64() * 1_000.0);
            let after = published.borrow().clone().context("no state")?;
            ensure!(after.failures.is_empty(), "{:?}", after.failures);
            // A pod has an address of each family.
            let is_followed =
                if target.is_some() { after.peers == before.peers + 2 } else { after.rules != before.rules };
            ensure!(is_followed, "{what}: {before:?}, then {after:?}");
        }
        let size = format!("of {} pods and {} policies", sizes.pods, sizes.policies);
        taken.push((format!("{what} {size}"), milliseconds, target));
    }
    keeper.abort();
    Ok(taken)
}

const METHOD: &str = "The agent's own task keeps the firewall of one node, with the real maps, in a network namespace \
    of its own. A time begins when the task gets a change, and ends when it publishes its next state, behind the \
    last write.";
