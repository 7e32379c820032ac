//! Datagrams of all sizes, over every way to a backend.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, Leg, vip};
use millrace_lab::traffic::{Fate, Fragments, datagram_headers, send_datagram};

use crate::fixture::{counted, own, own_without_agents};

/// The largest packet to a service, by family.
type Largest = [(Family, usize); 2];
const UNTUNNELLED: Largest = [(Family::V4, 1500), (Family::V6, 1500)];

/// Returns sizes of datagrams: a spread, and those around a packet of `largest` bytes and around a
/// packet that fills the client's link.
fn sizes(largest: usize, headers: usize) -> Vec<usize> {
    let spread = [1, 2, 7, 8, 9, 100, 548, 1000, 1232, 1400, 2000, 2960, 4000, 9000, 20_000, 40_000, 60_000];
    let around = [largest, 1500, 2 * largest, 3000].map(|packet| packet - headers);
    let boundaries = around.into_iter().flat_map(|bytes| [bytes - 8, bytes - 1, bytes, bytes + 1, bytes + 8]);
    spread.into_iter().chain(boundaries).collect()
}

/// Expects every divisible datagram back whole. A client of IPv4 gets no error. A client of IPv6
/// gets one error, and fragments its own datagrams from then on.
fn expect_divisible_echoed(cluster: &Cluster, number: u8, largest: Largest) -> Result<()> {
    let client = cluster.bed().client();
    for (family, largest) in largest {
        let target = SocketAddr::new(vip(number).of(family), 80);
        let mut told = 0;
        for bytes in sizes(largest, datagram_headers(target.ip())) {
            let mut fate = send_datagram(client, target, Fragments::Allowed, bytes)?;
            if family == Family::V6 && fate == Fate::TooLarge(largest) {
                told += 1;
                fate = send_datagram(client, target, Fragments::Allowed, bytes)?;
            }
            assert_eq!(fate, Fate::Echoed, "{bytes} bytes to {target}");
        }
        assert_eq!(told, u32::from(family == Family::V6 && largest < 1500), "{target}");
    }
    Ok(())
}

/// Expects every indivisible datagram back if it fits. Otherwise its sender learns the size that
/// fits.
fn expect_indivisible_told(cluster: &Cluster, number: u8, largest: Largest) -> Result<()> {
    let client = cluster.bed().client();
    for (family, largest) in largest {
        let target = SocketAddr::new(vip(number).of(family), 80);
        let fits = largest - datagram_headers(target.ip());
        for bytes in [1, 1000, fits - 1, fits] {
            assert_eq!(send_datagram(client, target, Fragments::Forbidden, bytes)?, Fate::Echoed, "{target}");
        }
        for bytes in [fits + 1, fits + 8, 4000, 60_000, fits + 1] {
            let fate = send_datagram(client, target, Fragments::Forbidden, bytes)?;
            assert_eq!(fate, Fate::TooLarge(largest), "{bytes} bytes to {target}");
        }
        assert_eq!(send_datagram(client, target, Fragments::Forbidden, fits)?, Fate::Echoed, "{target}");
    }
    Ok(())
}

/// Checks both kinds of datagrams, and whether the director had to cut any.
fn expect_all_sizes(cluster: &Cluster, number: u8, largest: Largest) -> Result<()> {
    let before = counted(cluster, 1, "fragmented")?;
    // The client would itself cut datagrams that it knows not to fit.
    expect_divisible_echoed(cluster, number, largest)?;
    let cuts = counted(cluster, 1, "fragmented")? - before;
    assert_eq!(cuts > 0, largest[0].1 < 1500, "{cuts} packets were cut");
    expect_indivisible_told(cluster, number, largest)
}

#[test]
fn datagrams_are_cut_for_the_directors_own_narrow_routes() -> Result<()> {
    let cluster = own(2, 1)?;
    cluster.bed().narrow_routes(Leg::Nodes { from: 1, to: 2 }, 1400)?;
    let translated = cluster.service("translated", 1, &["pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&translated, &[1])?;
    expect_all_sizes(&cluster, 1, [(Family::V4, 1400), (Family::V6, 1400)])?;

    // The way back: the backend learns of its indivisible packets that do not fit, as the senders
    // above do.
    cluster.bed().narrow_routes(Leg::ToClient(1), 1300)?;
    let target = SocketAddr::new(vip(1).of(Family::V4), 80);
    for bytes in [2000, 4000, 60_000] {
        let before = counted(&cluster, 1, "reply_snat")?;
        let fate = send_datagram(cluster.bed().client(), target, Fragments::Allowed, bytes)?;
        assert_eq!(fate, Fate::Echoed, "{bytes} bytes");
        let fragments = counted(&cluster, 1, "reply_snat")? - before;
        assert!(fragments >= bytes.div_ceil(1280) as u64, "{bytes} bytes came back as {fragments}");
    }
    Ok(())
}

fn expect_all_sizes_by_tunnel(flags: &[&str], largest: Largest) -> Result<()> {
    let mut cluster = own_without_agents(2, 1)?;
    for node in [1, 2] {
        cluster.start_agent_with(node, flags)?;
        cluster.wait_for_hooks(node)?;
    }
    let direct = cluster.service("direct", 1, &["pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&direct.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    cluster.wait_for_ways(1)?;
    expect_all_sizes(&cluster, 1, largest)
}

#[test]
fn datagrams_of_all_sizes_cross_a_tunnel() -> Result<()> {
    expect_all_sizes_by_tunnel(&[], [(Family::V4, 1480), (Family::V6, 1460)])
}

#[test]
fn datagrams_of_all_sizes_cross_a_tunnel_in_udp() -> Result<()> {
    expect_all_sizes_by_tunnel(&["--dsr-encap", "fou"], [(Family::V4, 1472), (Family::V6, 1452)])
}

#[test]
fn datagrams_of_all_sizes_reach_backends_here_and_by_snat() -> Result<()> {
    let cluster = own(2, 1)?;
    let near = cluster.service("near", 1, &["pod-1a"])?.load_balancer(vip(1));
    let translated = cluster.service("translated", 2, &["pod-2a"])?.load_balancer(vip(2));
    cluster.apply(&near, &[1])?;
    cluster.apply(&translated, &[1])?;
    expect_all_sizes(&cluster, 1, UNTUNNELLED)?;
    expect_all_sizes(&cluster, 2, UNTUNNELLED)
}
