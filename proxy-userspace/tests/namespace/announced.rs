//! Addresses on the nodes' own network: the nodes answer for them (L2 announcement), and agree who does.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::announced;
use millrace_lab::capture::Trail;
use millrace_lab::cluster::Cluster;
use millrace_lab::net::Netlink;
use millrace_lab::process::output;
use millrace_lab::topology::{Dual, Family, Shape, vip};
use millrace_lab::traffic::{LongConnections, Protocol, Stream, ask, ping};
use millrace_lab::walk::Walk;

use crate::fixture::{wait_until, xdp};

const FLAGS: [&str; 2] = ["--l2-announce", "203.0.113.0/24,2001:db8:e::/64"];
/// Time between two datagrams that count how long nobody answers.
const PERIOD: Duration = Duration::from_millis(50);
/// The longest time for nodes to agree on a busy test machine.
const LIMIT: Duration = Duration::from_secs(20);

fn three_nodes() -> Result<Cluster> {
    Cluster::start_with(Shape { nodes: 3, pods: 1, ..Shape::default() }, &xdp(), &FLAGS)
}

/// Returns the nodes that answer for an address.
fn holders(cluster: &Cluster, address: IpAddr) -> Result<BTreeSet<u8>> {
    announced::holders(cluster, address, &[1, 2, 3])
}

/// Waits until one node among `nodes` answers for an address, and returns it.
fn holder_among(cluster: &Cluster, address: IpAddr, nodes: &[u8]) -> Result<u8> {
    announced::wait_for_holder(cluster, address, nodes, LIMIT)
}

fn others(node: u8) -> Vec<u8> {
    (1..=3).filter(|other| *other != node).collect()
}

fn put_on_link(cluster: &Cluster, addresses: Dual) -> Result<()> {
    addresses.both().into_iter().try_for_each(|address| cluster.bed().put_on_link(address))
}

fn expect_answers(cluster: &Cluster, address: IpAddr) -> Result<()> {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        ask(cluster.bed().client(), protocol, SocketAddr::new(address, 80))?;
    }
    Ok(())
}

/// Waits until the router's table of neighbours has the MAC address of a node for an address.
fn expect_known_at(cluster: &Cluster, address: IpAddr, node: u8) -> Result<()> {
    let mac = cluster.bed().node(node)?.namespace().run(async || Netlink::open()?.mac_of("eth0").await)?;
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    let known =
        || output(cluster.bed().router(), &["ip", "neighbour", "show", &address.to_string(), "dev", "lan"]);
    wait_until(LIMIT, &format!("{address} is node {node}'s, {mac}"), || Ok(known()?.contains(&mac)))
        .with_context(|| known().unwrap_or_default())?;
    Ok(())
}

/// Returns the time for which a stream got no answers.
fn gap(stream: Stream) -> Result<Duration> {
    let delivery = stream.stop()?;
    Ok(PERIOD * u32::try_from(delivery.lost.len())?)
}

#[test]
fn one_node_answers_for_each_address_and_the_next_one_when_it_is_gone() -> Result<()> {
    let mut cluster = three_nodes()?;
    let all = ["pod-1a", "pod-2a", "pod-3a"];
    for number in 1..=2 {
        let service = cluster.service(&format!("web-{number}"), number, &all)?;
        cluster.apply(&service.load_balancer(vip(number)), &[1, 2, 3])?;
        put_on_link(&cluster, vip(number))?;
    }
    for address in [vip(1), vip(2)].into_iter().flat_map(Dual::both) {
        holder_among(&cluster, address, &[1, 2, 3])?;
        expect_answers(&cluster, address)?;
        ping(cluster.bed().client(), address, b"who is there?")?;
    }
    for family in Family::ALL {
        let address = vip(1).of(family);
        let owner = holder_among(&cluster, address, &[1, 2, 3])?;
        // The other nodes serve it alone, so that every loss is one of the announcement.
        let pods: Vec<String> = others(owner).into_iter().map(|node| format!("pod-{node}a")).collect();
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let service = cluster.service("web-1", 1, &pods)?.load_balancer(vip(1));
        cluster.apply(&service, &[1, 2, 3])?;
        let target = SocketAddr::new(address, 80);
        let stream = Stream::start(cluster.bed().client(), target, PERIOD)?;
        expect_known_at(&cluster, address, owner)?;
        cluster.bed().unplug(&format!("node{owner}"))?;
        let next = holder_among(&cluster, address, &others(owner))?;
        expect_answers(&cluster, address)?;
        expect_known_at(&cluster, address, next)?;
        let without = gap(stream)?;
        println!("{family}: cut node {owner}, then node {next} answers; {without:?} without service");
        ensure!(without <= LIMIT, "{family}: {without:?} without service");
        // It has its addresses again once it is back, and no other node answers any more.
        let stream = Stream::start(cluster.bed().client(), target, PERIOD)?;
        cluster.bed().plug_in(&format!("node{owner}"))?;
        wait_until(LIMIT, "the owner alone answers", || {
            Ok(holders(&cluster, address)? == BTreeSet::from([owner]))
        })?;
        expect_known_at(&cluster, address, owner)?;
        expect_answers(&cluster, address)?;
        println!("{family}: node {owner} is back; {:?} without service", gap(stream)?);
    }
    // The programs go on without an agent, and nobody takes their addresses.
    let address = vip(2).v4;
    let owner = holder_among(&cluster, address.into(), &[1, 2, 3])?;
    // A node that was cut off took this address, too. When it is back, the router knows it for a moment.
    expect_known_at(&cluster, address.into(), owner)?;
    let target = SocketAddr::new(address.into(), 80);
    let connections = LongConnections::open(cluster.bed().client(), target, 10, 10)?;
    let stream = Stream::start(cluster.bed().client(), target, PERIOD)?;
    cluster.take_agent(owner)?.kill()?;
    sleep(Duration::from_secs(5));
    ensure!(holders(&cluster, address.into())? == BTreeSet::from([owner]), "another node took the address");
    cluster.start_agent_with(owner, &FLAGS)?;
    cluster.proxy(owner)?.wait_for_start(2)?;
    ensure!(gap(stream)? == Duration::ZERO, "datagrams were lost when the agent was killed");
    ensure!(connections.stop()? == 20, "connections were cut when the agent was killed");
    // An agent that is not to announce takes its answers back.
    cluster.take_agent(owner)?.stop()?;
    cluster.start_agent(owner)?;
    holder_among(&cluster, address.into(), &others(owner))?;
    wait_until(LIMIT, "the former owner is silent", || {
        Ok(!holders(&cluster, address.into())?.contains(&owner))
    })?;
    expect_answers(&cluster, address.into())
}

#[test]
fn with_policy_local_a_node_with_endpoints_answers_and_nobody_where_none_has_any() -> Result<()> {
    let cluster = three_nodes()?;
    let service =
        |pods: &[&str]| anyhow::Ok(cluster.service("local", 3, pods)?.local().load_balancer(vip(3)));
    put_on_link(&cluster, vip(3))?;
    for node in [2, 3, 1] {
        let pod = format!("pod-{node}a");
        cluster.apply(&service(&[&pod])?, &[1, 2, 3])?;
        for address in vip(3).both() {
            wait_until(LIMIT, &format!("node {node} alone answers for {address}"), || {
                Ok(holders(&cluster, address)? == BTreeSet::from([node]))
            })?;
        }
        let trail = Trail::local(&format!("node{node}"));
        cluster.expect(&Walk::to("local", vip(3), 80, &[&pod], trail))?;
        // Hosts ask in this group for the address.
        let groups =
            cluster.bed().node(node)?.namespace().run(async || {
                fs::read_to_string("/proc/thread-self/net/igmp6").context("can't read igmp6")
            })?;
        ensure!(groups.contains("ff0200000000000000000001ff000003"), "{groups}");
    }
    cluster.apply(&service(&[])?.without_endpoints(), &[1, 2, 3])?;
    for address in vip(3).both() {
        wait_until(LIMIT, &format!("nobody answers for {address}"), || {
            Ok(holders(&cluster, address)?.is_empty())
        })?;
    }
    Ok(())
}
