//! Cards with a receive queue for each processor. Other cards have one.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use millrace_lab::net::queues;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Connection, Protocol, ask_here};
use nix::sched::{CpuSet, sched_setaffinity};
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

/// Returns the interrupts of a receive queue, all cards together, on each processor. Only virtio names its queues so.
fn interrupts(queue: usize) -> Result<Vec<u64>> {
    let table = fs::read_to_string("/proc/interrupts")?;
    let name = format!("-input.{queue}");
    let processors = table.lines().next().unwrap_or_default().split_whitespace().count();
    let mut sums = vec![0; processors];
    for line in table.lines().filter(|line| line.trim_end().ends_with(&name)) {
        for (sum, word) in sums.iter_mut().zip(line.split_whitespace().skip(1)) {
            *sum += word.parse::<u64>()?;
        }
    }
    Ok(sums)
}

/// Lets the current thread run on one processor only.
fn run_on(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("there is no processor {processor}"))
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
    let before = (0..in_use).map(interrupts).collect::<Result<Vec<_>>>()?;
    for (way, family) in Way::ALL.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))) {
        let target = SocketAddr::new(vip(way.number()).of(family), 80);
        cluster.bed().client().run(async move || {
            for (number, protocol) in (0..REQUESTS).flat_map(|number| Protocol::ALL.map(|one| (number, one)))
            {
                run_on(number % wanted)?;
                ask_here(protocol, target).await.with_context(|| format!("{way:?} {target}"))?;
            }
            Ok(())
        })?;
    }
    // One queue needs no name, and only one driver gives names.
    if wanted > 1 {
        let after = (0..in_use).map(interrupts).collect::<Result<Vec<_>>>()?;
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
            let mut connection = Connection::open(target).await?;
            let mut backends = BTreeSet::new();
            for number in 0..REQUESTS {
                run_on(number % wanted)?;
                backends.insert(connection.request().await?.sighting.backend);
            }
            Ok(backends)
        })?;
        ensure!(backends.len() == 1, "{way:?} {target}: {backends:?}");
    }
    Ok(())
}
