//! Tunnels of pods and processes of a node: no node may accept them as another node's.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use millrace_lab::cluster::Cluster;
use millrace_lab::frame::Frame;
use millrace_lab::net::Namespace;
use millrace_lab::process::output;
use millrace_lab::topology::{Family, Shape, vip};
use millrace_lab::traffic::{Protocol, ask, send_encapsulated};
use proxy_common::way::FOU_PORT;
use tokio::net::UdpSocket;

use crate::fixture::{counted, xdp};

const ETHERNET_HEADER: usize = 14;

/// Rules as of CNIs: packets of pods to nodes get their own node's address.
///
/// Conntrack can't tell two tunnels between the same addresses apart, and would drop the second. So
/// the tunnels of the node's processes are not tracked.
const MASQUERADE: &str = "add table inet others; \
    add chain inet others post { type nat hook postrouting priority 100; }; \
    add rule inet others post oifname eth0 masquerade; \
    add chain inet others untracked { type filter hook output priority raw; }; \
    add rule inet others untracked meta l4proto { 4, 41 } notrack";

/// Returns a client's datagram to a Service, from a forged address.
fn inner(family: Family) -> Vec<u8> {
    let client: IpAddr = match family {
        Family::V4 => [198, 51, 100, 99].into(),
        Family::V6 => "2001:db8:51::99".parse().expect("an address"),
    };
    let frame = Frame::ip(client, vip(1).of(family)).udp(4000, 80).payload(&b"a question"[..]);
    frame.build()[ETHERNET_HEADER..].to_vec()
}

fn send_in_udp(namespace: &Namespace, target: IpAddr, inner: Vec<u8>) -> Result<()> {
    namespace.run(async move || {
        let any: IpAddr = if target.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
        socket.send_to(&inner, SocketAddr::new(target, FOU_PORT)).await?;
        Ok(())
    })
}

#[test]
fn no_node_decapsulates_tunnels_of_a_masqueraded_pod_or_a_process() -> Result<()> {
    let cluster = Cluster::start_with(
        Shape { nodes: 2, pods: 2, ..Shape::default() },
        &xdp(),
        &["--dsr-encap", "ipip,fou"],
    )?;
    let service = cluster.service("direct", 1, &["pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&service.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    let bed = cluster.bed();
    let (sender, victim) = (bed.node(1)?, bed.node(2)?);
    output(sender.namespace(), &["nft", MASQUERADE])?;
    let mut forged = 0;
    for family in Family::ALL {
        for from in [bed.pod("pod-1a")?.namespace(), &**sender.namespace()] {
            let node = victim.addresses().of(family);
            send_in_udp(from, node, inner(family))?;
            for target in [node, bed.pod("pod-2a")?.addresses().of(family)] {
                // A process of the node gets ENOBUFS. The counter below has the reason.
                let _ = send_encapsulated(from, target, &inner(family));
            }
            forged += 3;
            let what = format!("{forged} packets are counted");
            cluster.proxy(1)?.wait_until(&what, || Ok(counted(&cluster, 1, "forged_tunnel")? == forged))?;
        }
        // The node's own tunnels still arrive.
        ask(bed.client(), Protocol::Udp, SocketAddr::new(vip(1).of(family), 80))?;
    }
    let served = counted(&cluster, 2, "served_dsr")?;
    assert_eq!(served, u64::try_from(Family::ALL.len())?, "datagrams that clients sent");
    Ok(())
}
