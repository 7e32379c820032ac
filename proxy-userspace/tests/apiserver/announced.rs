//! Addresses on the nodes' own network, while the API server is away.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use millrace_lab::announced::{holders, wait_for_holder};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::patience::patience;
use millrace_lab::topology::{Dual, Family, vip};
use millrace_lab::traffic::Stream;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::fixture::{SERVED, remove, set_ready, shared, wait_for_backends, wait_for_line};

const FLAGS: [&str; 2] = ["--l2-announce", "203.0.113.0/24,2001:db8:e::/64"];
/// The longest time for nodes to agree on a busy test machine. Three seconds are promised.
const LIMIT: Duration = Duration::from_secs(10);

/// Asks once a tenth of a second, until somebody answers.
fn wait_for_answer(cluster: &Cluster, target: SocketAddr) -> Result<()> {
    cluster.bed().client().run(async move || {
        let end = Instant::now() + patience(LIMIT);
        let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).await?;
        let mut buffer = [0; 2048];
        while Instant::now() < end {
            // While nobody has the address, sending fails.
            let _ = socket.send_to(b"who is there?", target).await;
            let answer = timeout(Duration::from_millis(100), socket.recv_from(&mut buffer)).await;
            if matches!(answer, Ok(Ok(_))) {
                return Ok(());
            }
        }
        bail!("{target} does not answer")
    })
}

/// Starts agents that announce, and a Service with these addresses.
fn announcing(cluster: &mut Cluster, addresses: Dual) -> Result<Service> {
    for node in SERVED {
        cluster.take_agent(node)?.stop()?;
        cluster.start_agent_with(node, &FLAGS)?;
    }
    SERVED.into_iter().try_for_each(|node| cluster.wait_for_hooks(node))?;
    let service = cluster.service("on-link", 40, &["pod-1a", "pod-2a"])?.load_balancer(addresses);
    cluster.apply(&service, &SERVED)?;
    addresses.both().into_iter().try_for_each(|address| cluster.bed().put_on_link(address))?;
    Ok(service)
}

/// Starts the usual agents again.
fn end(cluster: &mut Cluster, service: &Service) -> Result<()> {
    for node in SERVED {
        cluster.take_agent(node)?.stop()?;
        cluster.start_agent(node)?;
    }
    remove(cluster, service)
}

#[test]
fn a_node_that_is_not_ready_keeps_its_addresses_while_it_answers() -> Result<()> {
    let mut cluster = shared();
    SERVED.into_iter().try_for_each(|node| set_ready(&cluster, node, true))?;
    let addresses = vip(141);
    let service = announcing(&mut cluster, addresses)?;
    for family in Family::ALL {
        let address = addresses.of(family);
        let owner = wait_for_holder(&cluster, address, &SERVED, LIMIT)?;
        wait_for_answer(&cluster, SocketAddr::new(address, 80))?;
        let stream =
            Stream::start(cluster.bed().client(), SocketAddr::new(address, 80), Duration::from_millis(50))?;
        for is_ready in [false, true] {
            set_ready(&cluster, owner, is_ready)?;
            // Longer than any candidate waits.
            sleep(Duration::from_secs(3));
            let now = holders(&cluster, address, &SERVED)?;
            ensure!(now == [owner].into(), "{family}: ready: {is_ready}, then {now:?} answer");
        }
        let lost = stream.stop()?.lost;
        ensure!(lost.is_empty(), "{family}: {lost:?} had no answer");
    }
    end(&mut cluster, &service)
}

/// Nodes ask the link, not the API server. So both may die.
#[test]
fn a_node_that_dies_while_the_api_server_is_away_loses_its_addresses_to_another() -> Result<()> {
    let mut cluster = shared();
    let addresses = vip(140);
    let service = announcing(&mut cluster, addresses)?;
    for family in Family::ALL {
        let address = addresses.of(family);
        let owner = wait_for_holder(&cluster, address, &SERVED, LIMIT)?;
        let other = SERVED.into_iter().find(|node| *node != owner).unwrap();
        // Every loss is then one of the announcement, not of a backend.
        let service = cluster.service("on-link", 40, &[&format!("pod-{other}a")])?.load_balancer(addresses);
        cluster.apply(&service, &SERVED)?;
        let target = SocketAddr::new(address, 80);
        wait_for_answer(&cluster, target)?;

        let read = cluster.proxy(other)?.log().len();
        cluster.api_server_mut()?.kill_server()?;
        wait_for_line(&cluster, other, read, &["172.30.0.2:6443", "can't be reached"])?;
        ensure!(holders(&cluster, address, &SERVED)? == [owner].into(), "the owner does not stay");
        wait_for_answer(&cluster, target)?;
        cluster.bed().unplug(&format!("node{owner}"))?;
        let cut = Instant::now();
        let answered = wait_for_answer(&cluster, target);
        let took = cut.elapsed();
        println!("{family}: no API server, node {owner} cut: an answer after {took:?}");
        let next = holders(&cluster, address, &[other]);
        cluster.bed().plug_in(&format!("node{owner}"))?;
        cluster.api_server_mut()?.restore()?;
        answered?;
        ensure!(next? == [other].into() && took <= patience(LIMIT), "{took:?}");
        for node in SERVED {
            wait_for_backends(&cluster, node, &service)?;
        }
        wait_for_holder(&cluster, address, &SERVED, LIMIT)?;
    }
    end(&mut cluster, &service)
}
