//! Other software that uses the address or the conntrack zone of Direct Server Return on a backend's node.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};

use crate::direct::{direct, output, shared, wait_for_places};
use crate::fixture::{FLAGS, LIMIT, end_agent, start_agent};

/// Writes a Service with a backend on node 2, while node 2 has no agent.
fn apply_before_the_backends_agent(cluster: &mut Cluster, name: &str, number: u8) -> Result<()> {
    end_agent(cluster, 2)?;
    cluster.manifests().put_service(&direct(cluster, name, number, &["pod-2a"])?)?;
    wait_for_places(cluster, 1, "marks", number, 80)
}

fn is_answered(cluster: &Cluster, number: u8, family: Family) -> bool {
    let target = SocketAddr::new(vip(number).of(family), 80);
    ask(cluster.bed().client(), Protocol::Tcp, target).is_ok()
}

fn wait_for_answer(cluster: &Cluster, number: u8, family: Family) -> Result<()> {
    let what = format!("{family:?} is served");
    cluster.proxy(2)?.wait_until_within(LIMIT, &what, || Ok(is_answered(cluster, number, family)))
}

#[test]
fn a_device_with_the_tunnels_address_is_reported_and_the_other_family_is_served() -> Result<()> {
    let mut cluster = shared();
    output(&cluster, 2, &["ip", "link", "add", "taken", "type", "dummy"])?;
    output(&cluster, 2, &["ip", "address", "add", "192.0.0.8/32", "dev", "taken"])?;
    apply_before_the_backends_agent(&mut cluster, "address-taken", 64)?;
    start_agent(&mut cluster, 2, &FLAGS)?;
    let line = "the device taken has 192.0.0.8, which millrace-tun4 needs for itself";
    let proxy = cluster.proxy(2)?;
    proxy.wait_until_within(LIMIT, line, || Ok(proxy.log().contains(line)))?;
    wait_for_answer(&cluster, 64, Family::V6)?;
    assert!(!is_answered(&cluster, 64, Family::V4));
    let links = output(&cluster, 2, &["ip", "-oneline", "link"])?;
    assert!(!links.contains("millrace-tun4") && links.contains("millrace-tun6"), "{links}");
    output(&cluster, 2, &["ip", "link", "delete", "taken"])?;
    wait_for_answer(&cluster, 64, Family::V4)
}

#[test]
fn a_table_that_uses_our_zone_of_connection_tracking_is_reported() -> Result<()> {
    let mut cluster = shared();
    let lines = [
        "add table inet vpn",
        "add chain inet vpn early { type filter hook prerouting priority -310 ; }",
        "add rule inet vpn early udp dport 9 ct zone set 78",
    ];
    apply_before_the_backends_agent(&mut cluster, "zone-taken", 65)?;
    for line in lines {
        output(&cluster, 2, &[["nft"].as_slice(), &line.split(' ').collect::<Vec<_>>()].concat())?;
    }
    start_agent(&mut cluster, 2, &FLAGS)?;
    let line = "the nftables table inet vpn uses zone 78 of connection tracking";
    let proxy = cluster.proxy(2)?;
    proxy.wait_until_within(LIMIT, line, || Ok(proxy.log().contains(line)))?;
    assert!(!Family::ALL.into_iter().any(|family| is_answered(&cluster, 65, family)));
    output(&cluster, 2, &["nft", "delete", "table", "inet", "vpn"])?;
    start_agent(&mut cluster, 2, &FLAGS)?;
    Family::ALL.into_iter().try_for_each(|family| wait_for_answer(&cluster, 65, family))
}
