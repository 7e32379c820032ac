//! What clients are told by ICMP, as real sockets see it.

use std::io;
use std::net::SocketAddr;

use anyhow::{Result, bail};
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::Family;
use millrace_lab::traffic::{Protocol, ask};

use crate::fixture::{counted, service, shared, vip};

/// Asks over both protocols; each time the socket is refused at once, not by a time-out, and the packet is counted.
fn expect_refused(cluster: &Cluster, node: u8, target: SocketAddr, reason: &str) -> Result<()> {
    for protocol in Protocol::ALL {
        let before = counted(cluster, node, reason)?;
        let Err(error) = ask(cluster.bed().client(), protocol, target) else {
            bail!("{} {target} answers", protocol.name());
        };
        let refused = |cause: &io::Error| cause.kind() == io::ErrorKind::ConnectionRefused;
        let is_refused = error.chain().any(|cause| cause.downcast_ref().is_some_and(refused));
        assert!(is_refused, "{} {target}: {error:?}", protocol.name());
        assert!(counted(cluster, node, reason)? > before, "{} {target} is counted", protocol.name());
    }
    Ok(())
}

#[test]
fn a_service_without_any_endpoint_refuses_connections_and_datagrams_at_once() -> Result<()> {
    let cluster = shared();
    let near = service(&cluster, "empty", 5, &[])?.node_ports(31050).load_balancer(vip(5));
    let direct = service(&cluster, "empty-direct", 9, &[])?.load_balancer(vip(9));
    let direct = direct.annotation("millrace/forwarding", "dsr");
    cluster.apply(&near, &[1, 3])?;
    cluster.apply(&direct, &[1])?;
    for family in Family::ALL {
        let node = cluster.bed().node(3)?.addresses().of(family);
        expect_refused(&cluster, 3, SocketAddr::new(node, 31050), "no_endpoint")?;
        expect_refused(&cluster, 1, SocketAddr::new(vip(5).of(family), 80), "no_endpoint")?;
        expect_refused(&cluster, 1, SocketAddr::new(vip(9).of(family), 80), "no_endpoint")?;
    }
    Ok(())
}
