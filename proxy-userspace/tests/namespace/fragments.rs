//! Datagrams in fragments, in any order.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::ask_in_fragments;

use crate::fixture::{counted, shared};

const BYTES: usize = 4000;
const IN_ORDER: [usize; 4] = [0, 1, 2, 3];
const OUT_OF_ORDER: [[usize; 4]; 4] = [[3, 2, 1, 0], [1, 0, 2, 3], [2, 3, 0, 1], [3, 1, 0, 2]];

/// Expects that fragments reach the backend in every order, and that node 1 held the early ones.
fn expect_every_order(cluster: &Cluster, at: impl Fn(Family) -> SocketAddr) -> Result<()> {
    for family in Family::ALL {
        let ask = |order: &[usize]| ask_in_fragments(cluster.bed().client(), at(family), BYTES, order);
        let before = counted(cluster, 1, "fragment_held")?;
        assert_eq!(ask(&IN_ORDER)?.sighting.received, BYTES, "{family}");
        assert_eq!(counted(cluster, 1, "fragment_held")?, before, "{family} in order");
        for order in OUT_OF_ORDER {
            assert_eq!(ask(&order)?.sighting.received, BYTES, "{family} {order:?}");
        }
        assert_eq!(counted(cluster, 1, "fragment_held")?, before + 3 + 1 + 2 + 2, "{family}");
        assert_eq!(counted(cluster, 1, "fragment_unknown")?, 0, "{family}");
    }
    Ok(())
}

#[test]
fn a_backend_of_this_node_gets_a_datagram_whose_fragments_come_in_any_order() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("shuffled", 130, &["pod-1a"])?.load_balancer(vip(130));
    cluster.apply(&service, &[1])?;
    expect_every_order(&cluster, |family| (vip(130).of(family), 80).into())
}

#[test]
fn a_translated_datagram_arrives_in_any_order_of_its_fragments() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("shuffled-translated", 131, &["pod-2a"])?.load_balancer(vip(131));
    cluster.apply(&service, &[1])?;
    expect_every_order(&cluster, |family| (vip(131).of(family), 80).into())
}

#[test]
fn an_encapsulated_datagram_arrives_in_any_order_of_its_fragments() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("shuffled-direct", 132, &["pod-2a"])?.load_balancer(vip(132));
    cluster.apply(&service.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    expect_every_order(&cluster, |family| (vip(132).of(family), 80).into())
}

#[test]
fn a_node_port_serves_a_datagram_whose_fragments_come_in_any_order() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("shuffled-ports", 133, &["pod-1a", "pod-2b"])?.node_ports(31330);
    cluster.apply(&service, &[1])?;
    let node = cluster.bed().node(1)?.addresses();
    expect_every_order(&cluster, |family| (node.of(family), 31330).into())
}
