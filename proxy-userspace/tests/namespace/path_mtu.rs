//! Links that are narrower than those at both ends, and what clients learn of them.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, Host, Shape, vip};
use millrace_lab::traffic::{Connection, path_mtu};

use crate::fixture::{counted, xdp};

const NARROW: u32 = 1400;

/// Two nodes with a router between them, on the way there, that takes no more than [`NARROW`] bytes; and a service with a backend on
/// the second one, by DSR at address 1 and by SNAT at address 2.
fn start(flags: &[&str]) -> Result<(Cluster, Host)> {
    let shape = Shape { nodes: 2, pods: 1, ..Shape::default() };
    let mut cluster = Cluster::without_agents(shape, &xdp())?;
    let narrows = cluster.bed().add_narrows(1, 2, NARROW)?;
    for node in [1, 2] {
        cluster.start_agent_with(node, flags)?;
        cluster.wait_for_hooks(node)?;
    }
    let direct = cluster.service("direct", 1, &["pod-2a"])?.load_balancer(vip(1));
    let translated = cluster.service("translated", 2, &["pod-2a"])?.load_balancer(vip(2));
    cluster.apply(&direct.annotation("millrace/forwarding", "dsr"), &[1, 2])?;
    cluster.apply(&translated, &[1])?;
    cluster.wait_for_ways(1)?;
    Ok((cluster, narrows))
}

/// Twenty megabytes there, in parts that a busy machine carries in the time that a client waits for an answer; and one part back,
/// which crosses no narrow link.
fn cross(cluster: &Cluster, target: SocketAddr) -> Result<()> {
    const PARTS: usize = 5;
    const BYTES: usize = 4_000_000;
    cluster.bed().client().run(async move || {
        let mut connection = Connection::open(target).await?;
        for _ in 0..PARTS {
            assert_eq!(connection.upload(BYTES).await?.sighting.received, BYTES, "{target}");
        }
        assert_eq!(connection.download(BYTES).await?, BYTES, "{target}");
        Ok(())
    })
}

/// Both services carry large bodies, and a socket of the client learns how large a packet may be to the one with DSR.
fn expect_whole_bodies(flags: &[&str], largest: [(Family, usize); 2]) -> Result<()> {
    let (cluster, _narrows) = start(flags)?;
    for (family, largest) in largest {
        for number in [1, 2] {
            let before = counted(&cluster, 1, "icmp_error")?;
            cross(&cluster, SocketAddr::new(vip(number).of(family), 80))?;
            let after = counted(&cluster, 1, "icmp_error")?;
            assert!(after > before, "{family}, address {number}: no router said a word");
        }
        let target = SocketAddr::new(vip(1).of(family), 80);
        assert_eq!(path_mtu(cluster.bed().client(), target, 1500)?, largest, "{family}");
    }
    Ok(())
}

#[test]
fn a_narrow_link_between_the_nodes_slows_no_upload_down() -> Result<()> {
    expect_whole_bodies(&[], [(Family::V4, 1380), (Family::V6, 1360)])
}

#[test]
fn a_narrow_link_between_the_nodes_slows_no_upload_in_udp_down() -> Result<()> {
    expect_whole_bodies(&["--dsr-encap", "fou"], [(Family::V4, 1372), (Family::V6, 1352)])
}
