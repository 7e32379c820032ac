//! A Service changes while connections go on: none is cut.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{LongConnections, Protocol, ask};

use crate::fixture::{counted, own};

const NODES: [u8; 3] = [1, 2, 3];
/// Long connections of each family and each change. Half of them are silent until the end: their director
/// may have no entry of those by DSR.
const CONNECTIONS: usize = 20;
const NUMBER: u8 = 1;

/// What the Service has beside its endpoints and its address.
type Shape = fn(Service) -> Service;

const SNAT: Shape = |service| service;
const DSR: Shape = |service| service.annotation("millrace.dev/forwarding", "dsr");

fn target(family: Family) -> SocketAddr {
    SocketAddr::new(vip(NUMBER).of(family), 80)
}

/// Puts the Service, with backends on all nodes.
fn put(cluster: &Cluster, shape: Shape) -> Result<()> {
    let service = cluster.service("changing", NUMBER, &["pod-1a", "pod-2a", "pod-3a"])?;
    cluster.apply(&shape(service.load_balancer(vip(NUMBER))), &NODES)
}

fn restart(cluster: &mut Cluster) -> Result<()> {
    for node in NODES {
        cluster.take_agent(node)?.kill()?;
        cluster.start_agent(node)?;
    }
    Ok(())
}

/// Gives the Service one shape after another, and opens connections after each change.
fn no_connection_is_cut(shapes: &[Shape], restarts: bool) -> Result<()> {
    let mut cluster = own(3, 1)?;
    let mut long = Vec::new();
    for shape in shapes {
        put(&cluster, *shape)?;
        if restarts {
            restart(&mut cluster)?;
            put(&cluster, *shape)?;
        }
        for family in Family::ALL {
            long.push(open(&cluster, target(family))?);
        }
    }
    expect_all_kept(long)
}

/// Opens long connections, half of them silent.
fn open(cluster: &Cluster, target: SocketAddr) -> Result<LongConnections> {
    LongConnections::open(cluster.bed().client(), target, CONNECTIONS / 2, CONNECTIONS / 2)
}

/// Ends connections, which were opened in both families after each change.
fn expect_all_kept(long: Vec<LongConnections>) -> Result<()> {
    for (number, connections) in long.into_iter().enumerate() {
        let kept = connections.stop().with_context(|| format!("opened after change {}", number / 2))?;
        assert_eq!(kept, CONNECTIONS);
    }
    Ok(())
}

#[test]
fn no_connection_is_cut_when_dsr_is_turned_off_and_on() -> Result<()> {
    no_connection_is_cut(&[DSR, SNAT, DSR, SNAT], false)
}

#[test]
fn no_connection_is_cut_when_dsr_is_turned_on_and_off() -> Result<()> {
    no_connection_is_cut(&[SNAT, DSR, SNAT, DSR], false)
}

#[test]
fn agents_that_start_anew_go_on_with_what_a_change_left() -> Result<()> {
    no_connection_is_cut(&[DSR, SNAT, DSR], true)
}

#[test]
fn no_connection_is_cut_by_another_table_of_one_service() -> Result<()> {
    let small: Shape = |service| DSR(service).annotation("millrace.dev/maglev-size", "251");
    let smaller: Shape = |service| DSR(service).annotation("millrace.dev/maglev-size", "61");
    no_connection_is_cut(&[DSR, small, smaller, DSR], false)
}

#[test]
fn no_connection_is_cut_by_another_algorithm() -> Result<()> {
    let maglev: Shape = |service| service.annotation("millrace.dev/algorithm", "maglev");
    no_connection_is_cut(&[SNAT, maglev, SNAT], false)
}

#[test]
fn no_connection_is_cut_by_session_affinity() -> Result<()> {
    let sticky: Shape = |service| service.affinity(3600);
    no_connection_is_cut(&[SNAT, sticky, SNAT, sticky], false)
}

#[test]
fn no_connection_by_dsr_is_cut_by_session_affinity() -> Result<()> {
    let sticky: Shape = |service| DSR(service).affinity(3600);
    no_connection_is_cut(&[DSR, sticky, DSR, sticky], false)
}

#[test]
fn no_connection_is_cut_by_another_traffic_policy() -> Result<()> {
    no_connection_is_cut(&[SNAT, Service::local, SNAT, Service::local], false)
}

#[test]
fn no_connection_by_dsr_is_cut_by_another_traffic_policy() -> Result<()> {
    let local: Shape = |service| DSR(service).local();
    no_connection_is_cut(&[DSR, local, DSR, local], false)
}

#[test]
fn no_connection_is_cut_by_source_ranges_that_have_the_client() -> Result<()> {
    let closed: Shape = |service| service.source_ranges(&["198.51.100.0/24", "2001:db8:c::/64"]);
    no_connection_is_cut(&[SNAT, closed, SNAT], false)
}

/// The node of the backend must still know the NodePort at the other node's address.
#[test]
fn no_connection_to_a_node_port_is_cut_when_dsr_is_turned_off() -> Result<()> {
    let cluster = own(3, 1)?;
    let service = |forwarding: &str| -> Result<Service> {
        let service = cluster.service("ported", 2, &["pod-2a", "pod-3a"])?.node_ports(30080);
        Ok(service.annotation("millrace.dev/forwarding", forwarding))
    };
    let mut long = Vec::new();
    for forwarding in ["dsr", "snat", "dsr", "snat"] {
        cluster.apply(&service(forwarding)?, &NODES)?;
        for family in Family::ALL {
            let node = cluster.bed().node(1)?.addresses().of(family);
            long.push(open(&cluster, SocketAddr::new(node, 30080))?);
        }
    }
    expect_all_kept(long)
}

#[test]
fn a_new_connection_has_the_forwarding_of_now() -> Result<()> {
    let cluster = own(3, 1)?;
    for (shape, is_dsr) in [(DSR, true), (SNAT, false), (DSR, true)] {
        put(&cluster, shape)?;
        let reason = if is_dsr { "sent_dsr" } else { "sent_snat" };
        for family in Family::ALL {
            let before = counted(&cluster, 1, reason)?;
            for _ in 0..12 {
                let answer = ask(cluster.bed().client(), Protocol::Tcp, target(family))?;
                let is_here = answer.sighting.backend == "pod-1a";
                assert_eq!(answer.kept_client(), is_dsr || is_here, "{answer:?}");
            }
            assert!(counted(&cluster, 1, reason)? > before, "{reason} {family:?}");
        }
    }
    Ok(())
}
