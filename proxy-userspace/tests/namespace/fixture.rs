//! The common parts of the tests.

use std::fmt::Write;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millrace_lab::agent::CounterView;
use millrace_lab::cluster::Cluster;
use millrace_lab::pool::{Pool, Taken};
use millrace_lab::topology::{Dual, Family, Shape};
use millrace_lab::traffic::{Delivery, Stream};

/// Common clusters.
const CLUSTERS: usize = 2;

/// Returns the agents' `--xdp`.
pub fn xdp() -> String {
    std::env::var("MILLRACE_XDP").unwrap_or_else(|_| "native".to_owned())
}

/// Returns whether the tests may take the time of a long-lived cluster: `MILLRACE_LONG=1`.
pub fn is_long() -> bool {
    std::env::var("MILLRACE_LONG").is_ok_and(|value| value == "1")
}

/// Returns a cluster of three nodes with two pods each, for tests that break only their own
/// Services. No other test has it meanwhile, so that counters and captures are the test's own.
pub fn shared() -> Taken {
    static SHARED: Pool = Pool::new(CLUSTERS, || Cluster::start(Shape::default(), &xdp()));
    SHARED.take().unwrap()
}

/// Returns a cluster of the test's own.
pub fn own(nodes: u8, pods: u8) -> Result<Cluster> {
    Cluster::start(Shape { nodes, pods, ..Shape::default() }, &xdp())
}

/// Returns a cluster of the test's own, without running agents.
pub fn own_without_agents(nodes: u8, pods: u8) -> Result<Cluster> {
    Cluster::without_agents(Shape { nodes, pods, ..Shape::default() }, &xdp())
}

/// Expects that large bodies arrive complete in both directions, over both families, through a
/// Service at port 80 of `address`.
pub fn expect_large_bodies(cluster: &Cluster, address: Dual) -> Result<()> {
    for family in Family::ALL {
        cluster.exchange(SocketAddr::new(address.of(family), 80), 3_000_000)?;
    }
    Ok(())
}

/// Waits until nodes and daemons have agreed, and returns how long that took.
pub fn wait_until(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<Duration> {
    let start = Instant::now();
    while !condition()? {
        ensure!(start.elapsed() < limit, "waited in vain until {what}");
        sleep(Duration::from_millis(20));
    }
    Ok(start.elapsed())
}

/// Returns the number of packets that a node has counted for a reason.
pub fn counted(cluster: &Cluster, node: u8, reason: &str) -> Result<u64> {
    let counters = cluster.proxy(node)?.counters()?;
    Ok(counters.iter().filter(|counter| counter.reason == reason).map(|counter| counter.packets).sum())
}

/// Returns the result of a stream without losses. Otherwise fails with the losses and each node's
/// counters.
pub fn expect_no_loss(cluster: &Cluster, stream: Stream) -> Result<Delivery> {
    let delivery = stream.stop()?;
    if delivery.lost.is_empty() {
        return Ok(delivery);
    }
    let mut counted = String::new();
    for (device, received, sent) in cluster.bed().router().dropped_frames()? {
        write!(counted, "\nrouter: {device} dropped {received} received and {sent} to be sent")?;
    }
    for proxy in cluster.proxies() {
        for (device, received, sent) in proxy.namespace().dropped_frames()? {
            write!(
                counted,
                "\n{}: {device} dropped {received} received and {sent} to be sent",
                proxy.node()
            )?;
        }
        for CounterView { program, reason, packets, .. } in proxy.counters()? {
            write!(counted, "\n{}: {program} {reason} {packets}", proxy.node())?;
        }
    }
    anyhow::bail!("{delivery:?}{counted}")
}
