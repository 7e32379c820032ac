//! Cards with a receive queue for each processor. Other cards have one.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use millrace_lab::net::{bus_of, queues};
use millrace_lab::topology::{Family, Node, vip};
use millrace_lab::traffic::{Connection, Protocol, ask_here};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::fixture::{Way, shared};

/// The variable with the number of receive queues of each card, one for each processor. A driver may use more with XDP.
const QUEUES: &str = "MILLRACE_QUEUES";
/// Requests of each way and family: enough for the hashes of their ports to choose every queue.
const REQUESTS: usize = 40;

fn wanted() -> Result<usize> {
    let text = std::env::var(QUEUES).with_context(|| format!("{QUEUES} names no number of queues"))?;
    text.parse().with_context(|| format!("{QUEUES}={text} is no number"))
}

/// Returns the interrupts of a receive queue of the nodes' uplinks on each processor. Only virtio names its queues so.
fn interrupts(uplinks: &[String], queue: usize) -> Result<Vec<u64>> {
    let table = fs::read_to_string("/proc/interrupts")?;
    let names: Vec<_> = uplinks.iter().map(|uplink| format!("{uplink}-input.{queue}")).collect();
    let processors = table.lines().next().unwrap_or_default().split_whitespace().count();
    let mut sums = vec![0; processors];
    let is_wanted = |line: &&str| {
        line.split_whitespace().last().is_some_and(|last| names.iter().any(|name| name == last))
    };
    for line in table.lines().filter(is_wanted) {
        for (sum, word) in sums.iter_mut().zip(line.split_whitespace().skip(1)) {
            *sum += word.parse::<u64>()?;
        }
    }
    Ok(sums)
}

/// Returns the name that /proc/interrupts has for a node's uplink, such as `virtio3`.
fn name_of_uplink(node: &Node) -> Result<String> {
    let bus = node.namespace().run(async || bus_of("eth0"))?;
    let path = format!("/sys/bus/pci/devices/{bus}");
    let names = fs::read_dir(&path).with_context(|| format!("there is no {path}"))?;
    let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find(|name| name.starts_with("virtio")).with_context(|| format!("{path} is no virtio card"))
}

/// The processors of the thread, which it gets back at the end. The test bed has one thread for each namespace.
struct Processors(CpuSet);

impl Processors {
    fn of_thread() -> Result<Self> {
        Ok(Self(sched_getaffinity(Pid::from_raw(0))?))
    }

    /// Lets the thread run on one of them only.
    fn only(&self, processor: usize) -> Result<()> {
        ensure!(self.0.is_set(processor)?, "there is no processor {processor}");
        let mut set = CpuSet::new();
        set.set(processor)?;
        Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

#[test]
fn every_queue_carries_packets_and_every_processor_serves_some() -> Result<()> {
    let cluster = shared();
    let wanted = wanted()?;
    let mut in_use = wanted;
    for node in cluster.bed().nodes() {
        let found = node.namespace().run(async || Ok(queues("eth0") as usize))?;
        ensure!(found >= wanted, "the card of {} has {found} queues, not {wanted}", node.name());
        in_use = found;
    }
    // One queue needs no count, and only one driver names its queues.
    let uplinks = if wanted > 1 {
        cluster.bed().nodes().iter().map(name_of_uplink).collect::<Result<Vec<_>>>()?
    } else {
        Vec::new()
    };
    let count = || (0..in_use).map(|queue| interrupts(&uplinks, queue)).collect::<Result<Vec<_>>>();
    let before = count()?;
    for (way, family) in Way::ALL.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))) {
        let target = SocketAddr::new(vip(way.number()).of(family), 80);
        cluster.bed().client().run(async move || {
            let processors = Processors::of_thread()?;
            for (number, protocol) in (0..REQUESTS).flat_map(|number| Protocol::ALL.map(|one| (number, one)))
            {
                processors.only(number % wanted)?;
                ask_here(protocol, target).await.with_context(|| format!("{way:?} {target}"))?;
            }
            Ok(())
        })?;
    }
    if wanted > 1 {
        let after = count()?;
        let served = |queue: usize| {
            let counts = after[queue].iter().zip(&before[queue]).enumerate();
            counts.filter(|(_, (after, before))| after > before).map(|(cpu, _)| cpu).collect::<BTreeSet<_>>()
        };
        let served: Vec<_> = (0..in_use).map(served).collect();
        ensure!(served.iter().all(|cpus| !cpus.is_empty()), "a queue carried nothing: {served:?}");
        let processors: BTreeSet<_> = served.iter().flatten().collect();
        ensure!(processors.len() == wanted, "a processor served nothing: {served:?}");
    }
    Ok(())
}

#[test]
fn a_connection_whose_packets_come_from_all_processors_keeps_its_backend() -> Result<()> {
    let cluster = shared();
    let wanted = wanted()?;
    for (way, family) in Way::ALL.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))) {
        let target = SocketAddr::new(vip(way.number()).of(family), 80);
        let backends = cluster.bed().client().run(async move || {
            let processors = Processors::of_thread()?;
            let mut connection = Connection::open(target).await?;
            let mut backends = BTreeSet::new();
            for number in 0..REQUESTS {
                processors.only(number % wanted)?;
                backends.insert(connection.request().await?.sighting.backend);
            }
            Ok(backends)
        })?;
        ensure!(backends.len() == 1, "{way:?} {target}: {backends:?}");
    }
    Ok(())
}
