//! The test bed keeps the programs of ended agents for later ones, whose maps must be as good as new.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, Shape, vip};

use crate::fixture::xdp;

/// A flag that no other test has, so that nobody else takes the programs.
const FLAGS: [&str; 2] = ["--snat-ports", "55000-55999"];

fn start() -> Result<Cluster> {
    Cluster::start_with(Shape { nodes: 2, pods: 1, ..Shape::default() }, &xdp(), &FLAGS)
}

/// Asks a Service on both nodes, over both families.
fn ask(cluster: &Cluster) -> Result<()> {
    cluster.apply(&cluster.service("asked", 1, &["pod-1a", "pod-2a"])?.load_balancer(vip(1)), &[1, 2])?;
    for _ in 0..4 {
        for family in Family::ALL {
            cluster.exchange(SocketAddr::new(vip(1).of(family), 80), 1_000)?;
        }
    }
    Ok(())
}

#[test]
fn a_later_agent_takes_the_programs_of_an_ended_one_and_finds_empty_maps() -> Result<()> {
    let first = start()?;
    ask(&first)?;
    assert!(first.proxy(1)?.log().contains("loading programs"));
    drop(first);
    let second = start()?;
    for proxy in second.proxies() {
        assert!(!proxy.log().contains("loading programs"), "{}", proxy.log());
        assert_eq!(proxy.services()?.len(), 0);
        assert_eq!(proxy.items("flows")?.len(), 0);
        let served = proxy.counters()?.into_iter().filter(|counter| counter.reason.starts_with("served"));
        assert_eq!(served.map(|counter| counter.packets).sum::<u64>(), 0);
    }
    ask(&second)
}
