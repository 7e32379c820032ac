//! Connections of the node's own, and of pods that it masquerades, whose local port is a NodePort's
//! number. And packets from the network for a Service's address that nothing serves.
//!
//! By default most ports are NodePorts, and connections are few. With `MILLRACE_LONG=1` there are
//! 20,000 of them, from ports of the whole range.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use millrace_lab::net::{Namespace, write_sysctl};
use millrace_lab::process::output;
use millrace_lab::topology::{Bed, Family, vip};
use millrace_lab::traffic::{Protocol, Server, ask, send};

use crate::fixture::{counted, is_long, own};

/// The first NodePort, and their number.
const FIRST_NODE_PORT: u16 = 30000;
const NODE_PORTS: u16 = 1000;
const SERVER_PORT: u16 = 8443;

/// The range of ports, and the number of connections of each client by each protocol and family.
struct Extent {
    ports: (u16, u16),
    connections: usize,
}

impl Extent {
    fn chosen() -> Self {
        if is_long() {
            Self { ports: (1024, 65535), connections: 5000 }
        } else {
            Self { ports: (29900, 30999), connections: 100 }
        }
    }
}

#[test]
fn connections_from_a_node_ports_number_are_answered() -> Result<()> {
    let cluster = own(1, 1)?;
    let mut service = cluster.service("many", 1, &["pod-1a"])?;
    // The builder already has the first port.
    for number in 1..NODE_PORTS {
        service = service.port(number + 1000, 8080);
    }
    cluster.apply(&service.node_ports(FIRST_NODE_PORT), &[])?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("all NodePorts are served", || {
        Ok(proxy.services()?.len() >= usize::from(NODE_PORTS) * 4)
    })?;
    let _server =
        Server::at(cluster.bed().client(), "outside", cluster.bed().client_addresses(), SERVER_PORT)?;
    let extent = Extent::chosen();
    let node = cluster.bed().node(1)?.namespace();
    masquerade(node, extent.ports)?;
    let (first, last) = extent.ports;
    node.run(async move || write_sysctl("net/ipv4/ip_local_port_range", &format!("{first} {last}")))?;
    for (name, client) in [("pod", cluster.bed().pod("pod-1a")?.namespace()), ("node", node.as_ref())] {
        all_are_answered(cluster.bed(), client, extent.connections)
            .with_context(|| format!("from the {name}"))?;
    }
    // Clients of NodePorts are served beside them.
    for family in Family::ALL {
        let target = SocketAddr::new(cluster.bed().node(1)?.addresses().of(family), FIRST_NODE_PORT);
        ask(cluster.bed().client(), Protocol::Tcp, target)?;
    }
    Ok(())
}

fn all_are_answered(bed: &Bed, client: &Namespace, connections: usize) -> Result<()> {
    for family in Family::ALL {
        let target = SocketAddr::new(bed.client_addresses().of(family), SERVER_PORT);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for number in 0..connections {
                ask(client, protocol, target)
                    .with_context(|| format!("{protocol:?} to {target}, {number}"))?;
            }
        }
    }
    Ok(())
}

/// Masquerades as a CNI does, with ports of a range.
fn masquerade(node: &Namespace, (first, last): (u16, u16)) -> Result<()> {
    let rule = |pods: &str| {
        format!("oifname eth0 {pods} meta l4proto {{ tcp, udp }} masquerade to :{first}-{last} fully-random;")
    };
    let rules = [rule("ip saddr 10.244.0.0/16"), rule("ip6 saddr 2001:db8:f::/48")].concat();
    let chain = "type nat hook postrouting priority 100;";
    let table = format!("table inet cni {{ chain post {{ {chain} {rules} }}\n}}");
    output(node, &["nft", &table]).map(drop)
}

#[test]
fn an_unserved_datagram_does_not_go_back_to_the_network() -> Result<()> {
    const DATAGRAMS: u64 = 3;
    let cluster = own(1, 1)?;
    let service = cluster.service("served", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    for family in Family::ALL {
        let before = counted(&cluster, 1, "unserved")?;
        let target = SocketAddr::new(vip(1).of(family), 9999);
        let sent: Vec<_> =
            (0..DATAGRAMS).map(|_| send(cluster.bed().client(), Protocol::Udp, target)).collect();
        let proxy = cluster.proxy(1)?;
        proxy.wait_until("each is dropped where it would leave", || {
            Ok(counted(&cluster, 1, "unserved")? - before == DATAGRAMS)
        })?;
        drop(sent);
    }
    Ok(())
}
