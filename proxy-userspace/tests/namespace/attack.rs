//! Clients with forged addresses, beside genuine ones.
//!
//! With `MILLRACE_LONG=1` the attack has its full size: 2,000 pairs of datagrams a second for a
//! minute, and 300,000 pairs of SYN and ACK.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_lab::cluster::Cluster;
use millrace_lab::frame::{Frame, flag};
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, Shape, vip};
use millrace_lab::traffic::{
    Forger, LongConnections, Protocol, ask, route_strangers, send_datagram_pairs, stranger,
};
use tokio::time::sleep;

use crate::fixture::{counted, is_long, own, xdp};

#[test]
fn forged_datagrams_cost_no_query_its_answer() -> Result<()> {
    let cluster = own(2, 1)?;
    route_strangers(cluster.bed())?;
    cluster.apply(&cluster.service("names", 1, &["pod-2a"])?.load_balancer(vip(1)), &[1])?;
    let client = cluster.bed().client();
    // All ports are taken after less than three seconds.
    let ticks = if is_long() { 6000 } else { 500 };
    for family in Family::ALL {
        let target = SocketAddr::new(vip(1).of(family), 80);
        ask(client, Protocol::Udp, target)?;
        let before = counted(&cluster, 1, "sent_snat")?;
        let attack = client.spawn(async move || send_datagram_pairs(target, ticks).await);
        let mut asked: u64 = 0;
        let forged = loop {
            ask(client, Protocol::Udp, target).with_context(|| format!("query {asked} beside the forged"))?;
            asked += 1;
            if let Some(sent) = attack.outcome_so_far() {
                break sent?;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let served = counted(&cluster, 1, "sent_snat")? - before;
        assert!(served > u64::from(forged) * 2 * 9 / 10, "of {forged} pairs {served} packets arrived");
        assert!(asked > u64::from(ticks) / 10, "{asked} queries were asked");
    }
    Ok(())
}

/// Sends pairs of a SYN and a blind ACK, each pair from another forged address.
async fn shake_hands(target: SocketAddr, pairs: u32) -> Result<()> {
    const BATCH: u32 = 50;
    /// A time longer than that of a backend's answer.
    const ANSWER: Duration = Duration::from_millis(5);
    let forger = Forger::new(Family::of(target.ip()))?;
    for first in (0..pairs).step_by(BATCH as usize) {
        for (flags, sequence) in [(flag::SYN, 0), (flag::ACK, 1)] {
            for number in first..first + BATCH {
                let source = stranger(Family::of(target.ip()), number);
                let frame = Frame::ip(source.ip(), target.ip()).tcp(source.port(), target.port(), flags);
                let guess = number.wrapping_mul(0x9e37_79b1);
                forger.send(&frame.with_sequence(sequence).with_acknowledgement(guess)).await?;
            }
            sleep(ANSWER).await;
        }
    }
    Ok(())
}

/// Expects that 50 silent and 10 talking connections outlive forged handshakes. The attack has
/// several times the size of the flow table, and comes before, between and after changes of the
/// endpoints.
fn connections_are_kept(make: impl Fn(Service) -> Service) -> Result<()> {
    let (pairs, flags) =
        if is_long() { (300_000, [].as_slice()) } else { (6000, ["--flow-table-size", "4096"].as_slice()) };
    let cluster = Cluster::start_with(Shape { nodes: 2, pods: 2, ..Shape::default() }, &xdp(), flags)?;
    route_strangers(cluster.bed())?;
    let client = cluster.bed().client();
    let change = |pods: &[&str]| {
        let service = make(cluster.service("kept", 1, pods)?.load_balancer(vip(1)));
        cluster.apply(&service, &[1, 2])
    };
    for family in Family::ALL {
        let target = SocketAddr::new(vip(1).of(family), 80);
        let attack = || client.spawn(async move || shake_hands(target, pairs).await).join();
        change(&["pod-1a", "pod-2a"])?;
        cluster.wait_for_ways(1)?;
        let connections = LongConnections::open(client, target, 10, 50)?;
        attack()?;
        change(&["pod-1a", "pod-1b", "pod-2a"])?;
        attack()?;
        change(&["pod-1a", "pod-1b", "pod-2a", "pod-2b"])?;
        assert_eq!(connections.stop()?, 60, "{target}");
    }
    Ok(())
}

#[test]
fn forged_handshakes_cut_no_connection() -> Result<()> {
    connections_are_kept(|service| service)
}

#[test]
fn forged_handshakes_cut_no_connection_with_direct_return() -> Result<()> {
    connections_are_kept(|service| service.annotation("millrace.dev/forwarding", "dsr"))
}
