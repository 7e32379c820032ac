//! Nodes with two uplinks: a client's packets come by one, and the answers leave by the other.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use ipnet::IpNet;
use millrace_lab::capture::{Capture, Direction};
use millrace_lab::cluster::Cluster;
use millrace_lab::net::Netlink;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};

use crate::fixture::{expect_large_bodies, own_without_agents, xdp};

const NUMBERS: [u8; 3] = [1, 2, 3];

/// Starts a cluster of two nodes. Services are reached by node 1's second uplink, and its default
/// route leads to the first.
fn start() -> Result<Cluster> {
    let mut cluster = own_without_agents(2, 1)?;
    cluster.bed().add_second_uplinks()?;
    let gateway = cluster.bed().node(1)?.second_addresses();
    for address in NUMBERS.into_iter().flat_map(|number| vip(number).both()) {
        let gateway = gateway.of(Family::of(address));
        cluster
            .bed()
            .router()
            .run(async move || Netlink::open()?.set_route(IpNet::from(address), gateway).await)?;
    }
    for node in [1, 2] {
        cluster.start_agent_with(node, &["--uplinks", "eth0,eth1"])?;
    }
    for node in [1, 2] {
        for device in ["eth0", "eth1"] {
            let hook = if xdp() == "off" { "tc_ingress" } else { "xdp" };
            cluster.proxy(node)?.wait_for_hooks(device, &[hook, "tc_egress"])?;
        }
    }
    Ok(cluster)
}

#[test]
fn packets_from_one_uplink_are_answered_by_the_other() -> Result<()> {
    let cluster = start()?;
    let local = cluster.service("local", 1, &["pod-1a"])?.load_balancer(vip(1));
    let translated = cluster.service("translated", 2, &["pod-2a"])?.load_balancer(vip(2));
    let direct = cluster.service("direct", 3, &["pod-2a"])?.load_balancer(vip(3));
    for service in [local, translated, direct.annotation("millrace.dev/forwarding", "dsr")] {
        cluster.apply(&service, &[1, 2])?;
    }
    for (number, answers_from, is_kept) in [(1, "node1", true), (2, "node1", false), (3, "node2", true)] {
        for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
            let frontend = SocketAddr::new(vip(number).of(family), 80);
            let mut capture =
                Capture::start(cluster.bed().router(), &["node1", "node2", "node1-2", "node2-2"])?;
            let answer = ask(cluster.bed().client(), protocol, frontend)?;
            assert_eq!(answer.kept_client(), is_kept, "{answer:?}");
            let packets = capture.packets()?;
            let between = |source: IpAddr, destination: IpAddr, direction: Direction| {
                let devices = packets.iter().filter(|captured| {
                    let packet = &captured.packet;
                    packet.tunnel.is_none()
                        && (packet.source, packet.destination) == (source, destination)
                        && captured.direction == direction
                });
                devices.map(|captured| &*captured.device).collect::<BTreeSet<&str>>()
            };
            let client = answer.client.ip();
            let asked = between(client, frontend.ip(), Direction::Out);
            assert_eq!(asked, BTreeSet::from(["node1-2"]), "{number} {family} {protocol:?}");
            let answered = between(frontend.ip(), client, Direction::In);
            assert_eq!(answered, BTreeSet::from([answers_from]), "{number} {family} {protocol:?}");
        }
        expect_large_bodies(&cluster, vip(number))?;
    }
    Ok(())
}

#[test]
fn a_strict_reverse_path_filter_is_loosened_and_reported() -> Result<()> {
    let cluster = start()?;
    for device in ["eth0", "eth1"] {
        let name = format!("net.ipv4.conf.{device}.rp_filter");
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let read = async move || Ok(std::fs::read_to_string(path)?);
        assert_eq!(cluster.bed().node(1)?.namespace().run(read)?.trim(), "2", "{device}");
        let log = cluster.proxy(1)?.log();
        let line = format!("sysctl changed name=\"{name}\" from=\"1\" to=\"2\"");
        assert!(log.contains(&line), "{log}");
    }
    Ok(())
}

/// The second uplink has neither a default route nor an address of the Node object. The devices of
/// all nodes here are ends of veth pairs.
#[test]
fn an_uplink_that_was_not_chosen_and_a_veth_with_xdp_are_named() -> Result<()> {
    let mut cluster = own_without_agents(1, 1)?;
    cluster.bed().add_second_uplinks()?;
    cluster.start_agent_with(1, &[])?;
    let proxy = cluster.proxy(1)?;
    let is_said = |what: &str, device: &str| {
        proxy.log().lines().any(|line| line.contains(what) && line.contains(device))
    };
    proxy.wait_until("eth1 is named", || Ok(is_said("devices with an address are no uplinks", "eth1")))?;
    let has_xdp = matches!(xdp().as_str(), "native" | "generic");
    assert_eq!(is_said("XDP on a veth", "eth0"), has_xdp);
    assert!(!is_said("XDP on a veth", "eth1"));
    Ok(())
}
