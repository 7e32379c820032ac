//! Frames that a switch floods, because it does not know the MAC address that they are for. Each node gets a copy, and
//! only the one with that address may serve it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use millrace_lab::capture::{Capture, Captured, send_frame};
use millrace_lab::cluster::Cluster;
use millrace_lab::frame::{Frame, Mac};
use millrace_lab::net::Netlink;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};

use crate::fixture::own;

const LIMIT: Duration = Duration::from_secs(10);
const ANOTHER: Mac = [0x02, 0, 0, 0, 0, 0x77];

/// Sends a datagram of the client from the router's port to node 1.
fn send_to(cluster: &Cluster, mac: Mac, from: SocketAddr, frontend: SocketAddr) -> Result<()> {
    let mut frame = Frame::ip(from.ip(), frontend.ip()).udp(from.port(), frontend.port()).payload("here?");
    frame.destination_mac = mac;
    send_frame(cluster.bed().router(), "node1", frame.build().to_vec())
}

fn is_answer(captured: &Captured, frontend: SocketAddr, to: SocketAddr) -> bool {
    captured.packet.from() == Some(frontend) && captured.packet.to() == Some(to)
}

#[test]
fn only_frames_for_the_nodes_own_mac_address_are_served_also_after_its_change() -> Result<()> {
    // The backend is on another node: the kernel drops a flooded frame that is translated and passed up, and sends one
    // that leaves for another node.
    let cluster = own(2, 1)?;
    let service = cluster.service("flooded", 1, &["pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    // After the change, what comes back from another node would go to the former address.
    let service = cluster.service("local", 2, &["pod-1a"])?.load_balancer(vip(2));
    cluster.apply(&service, &[1])?;
    cluster.wait_for_ways(1)?;
    let node = cluster.bed().node(1)?.namespace();
    let own_mac = node.run(async || Netlink::open()?.mac_of("eth0").await)?;
    let clients = cluster.bed().client_addresses();
    for family in Family::ALL {
        let frontend = SocketAddr::new(vip(1).of(family), 80);
        ask(cluster.bed().client(), Protocol::Udp, frontend)?;
        let client = |port| SocketAddr::new(clients.of(family), port);
        let mut capture = Capture::start(cluster.bed().router(), &["node1"])?;
        send_to(&cluster, ANOTHER, client(40001), frontend)?;
        send_to(&cluster, own_mac, client(40002), frontend)?;
        capture.wait_for(LIMIT, |captured| is_answer(captured, frontend, client(40002)))?;
        let answered = capture.packets()?.iter().any(|one| is_answer(one, frontend, client(40001)));
        ensure!(!answered, "{frontend} answered a frame for another MAC address");
    }
    node.run(async || Netlink::open()?.set_mac("eth0", ANOTHER).await)?;
    for family in Family::ALL {
        let (frontend, client) = (vip(2).of(family), clients.of(family));
        let (frontend, client) = (SocketAddr::new(frontend, 80), SocketAddr::new(client, 40003));
        let mut capture = Capture::start(cluster.bed().router(), &["node1"])?;
        send_to(&cluster, ANOTHER, client, frontend)?;
        capture.wait_for(LIMIT, |captured| is_answer(captured, frontend, client))?;
    }
    Ok(())
}
