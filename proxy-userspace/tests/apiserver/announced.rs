//! Addresses on the nodes' own network, while the API server is away.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use millrace_lab::announced::{holders, wait_for_holder};
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, Stream, ask};

use crate::fixture::{SERVED, remove, shared, wait_for_backends, wait_for_line};

const FLAGS: [&str; 2] = ["--l2-announce", "203.0.113.0/24,2001:db8:e::/64"];
/// Time between two datagrams that count how long nobody answers.
const PERIOD: Duration = Duration::from_millis(50);
/// The longest time for nodes to agree on a busy test machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Nodes ask the link, not the API server. So both may die.
#[test]
fn a_node_that_dies_while_the_api_server_is_away_loses_its_addresses_to_another() -> Result<()> {
    let mut cluster = shared();
    for node in SERVED {
        cluster.take_agent(node)?.stop()?;
        cluster.start_agent_with(node, &FLAGS)?;
    }
    SERVED.into_iter().try_for_each(|node| cluster.wait_for_hooks(node))?;
    let addresses = vip(140);
    let service = cluster.service("on-link", 40, &["pod-1a", "pod-2a"])?.load_balancer(addresses);
    cluster.apply(&service, &SERVED)?;
    addresses.both().into_iter().try_for_each(|address| cluster.bed().put_on_link(address))?;
    for family in Family::ALL {
        let address = addresses.of(family);
        let owner = wait_for_holder(&cluster, address, &SERVED, LIMIT)?;
        let other = SERVED.into_iter().find(|node| *node != owner).unwrap();
        // Every loss is then one of the announcement, not of a backend.
        let service = cluster.service("on-link", 40, &[&format!("pod-{other}a")])?.load_balancer(addresses);
        cluster.apply(&service, &SERVED)?;
        let target = SocketAddr::new(address, 80);
        ask(cluster.bed().client(), Protocol::Udp, target)?;

        let read = cluster.proxy(other)?.log().len();
        cluster.api_server_mut()?.kill_server()?;
        wait_for_line(&cluster, other, read, &["172.30.0.2:6443", "can't be reached"])?;
        let stream = Stream::start(cluster.bed().client(), target, PERIOD)?;
        ensure!(holders(&cluster, address, &SERVED)? == [owner].into(), "the owner does not stay");
        ask(cluster.bed().client(), Protocol::Udp, target)?;
        cluster.bed().unplug(&format!("node{owner}"))?;
        wait_for_holder(&cluster, address, &[other], LIMIT)?;
        ask(cluster.bed().client(), Protocol::Udp, target)?;
        let lost = stream.stop()?.lost.len();
        let without = PERIOD * u32::try_from(lost)?;
        println!("{family}: no API server, node {owner} cut: {without:?} without service");
        ensure!(lost > 0 && without <= LIMIT, "{without:?} without service");

        cluster.bed().plug_in(&format!("node{owner}"))?;
        cluster.api_server_mut()?.restore()?;
        for node in SERVED {
            wait_for_backends(&cluster, node, &service)?;
        }
        wait_for_holder(&cluster, address, &SERVED, LIMIT)?;
    }
    for node in SERVED {
        cluster.take_agent(node)?.stop()?;
        cluster.start_agent(node)?;
    }
    remove(&cluster, &service)
}
