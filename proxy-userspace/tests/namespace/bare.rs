//! Uplinks without Ethernet frames, such as `WireGuard` devices and tunnels. TUN devices stand for
//! them here.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use ipnet::IpNet;
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::{Medium, Namespace, Netlink, Wire};
use millrace_lab::topology::{Dual, Family, vip};
use millrace_lab::traffic::{Answer, Protocol, ask};

use crate::fixture::{counted, expect_large_bodies, own_without_agents};

const UPLINKS: [&str; 2] = ["--uplinks", "eth0,bare0"];

/// Returns the addresses of an end of the wire, 1 or 2.
fn end(end: u8) -> Dual {
    Dual { v4: [192, 0, 2, end].into(), v6: [0x2001, 0xdb8, 0xba4e, 0, 0, 0, 0, end.into()].into() }
}

fn networks(end: Dual) -> [IpNet; 2] {
    [IpNet::new_assert(end.v4.into(), 24), IpNet::new_assert(end.v6.into(), 64)]
}

fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

fn lay(one: &Namespace, other: &Namespace) -> Result<Wire> {
    Wire::lay(Medium::Bare, "bare0", [(one, &networks(end(1))), (other, &networks(end(2)))])
}

/// Routes addresses over the wire. Each family has its own source.
fn route_over(namespace: &Namespace, to: &[IpNet], source: Dual) -> Result<()> {
    let to = to.to_vec();
    namespace.run(async move || {
        let netlink = Netlink::open()?;
        for destination in to {
            let source = source.of(Family::of(destination.addr()));
            netlink.set_device_route(destination, "bare0", source).await?;
        }
        Ok(())
    })
}

/// Starts the agents of nodes 1 to `nodes` and waits until they serve their uplinks. The first
/// `bare` of them also serve the bare uplink.
fn start(cluster: &mut Cluster, nodes: u8, bare: u8) -> Result<()> {
    for node in 1..=nodes {
        cluster.start_agent_with(node, &UPLINKS)?;
    }
    for node in 1..=nodes {
        cluster.wait_for_hooks(node)?;
    }
    for node in 1..=bare {
        cluster.proxy(node)?.wait_for_hooks("bare0", &["tc_ingress", "tc_egress"])?;
    }
    Ok(())
}

fn answers(cluster: &Cluster, address: Dual) -> Result<Vec<Answer>> {
    let kinds = Family::ALL.into_iter().flat_map(|family| Protocol::ALL.map(|protocol| (family, protocol)));
    let ask =
        |(family, protocol)| ask(cluster.bed().client(), protocol, SocketAddr::new(address.of(family), 80));
    kinds.map(ask).collect()
}

fn direct(service: Service) -> Service {
    service.annotation("millrace.dev/forwarding", "dsr")
}

#[test]
fn clients_over_a_bare_uplink_are_served_here_and_on_other_nodes() -> Result<()> {
    let mut cluster = own_without_agents(2, 1)?;
    let bed = cluster.bed();
    let _wire = lay(bed.node(1)?.namespace(), bed.client())?;
    let vips: Vec<IpNet> = (1..=4).flat_map(|number| vip(number).both()).map(host).collect();
    route_over(bed.client(), &vips, end(2))?;
    // Direct answers of another node come back through the node with the wire.
    for network in networks(end(2)) {
        let gateway = bed.node(1)?.addresses().of(Family::of(network.addr()));
        bed.router().run(async move || Netlink::open()?.set_route(network, gateway).await)?;
    }
    start(&mut cluster, 2, 1)?;
    let local = cluster.service("here", 1, &["pod-1a"])?.load_balancer(vip(1));
    let translated = cluster.service("translated", 2, &["pod-2a"])?.load_balancer(vip(2));
    let directed = direct(cluster.service("direct", 3, &["pod-2a"])?.load_balancer(vip(3)));
    for service in [&local, &translated, &directed] {
        cluster.apply(service, &[1, 2])?;
    }
    for (number, backend, is_kept) in [(1, "pod-1a", true), (2, "pod-2a", false), (3, "pod-2a", true)] {
        for answer in answers(&cluster, vip(number))? {
            let family = Family::of(answer.client.ip());
            assert_eq!(answer.client.ip(), end(2).of(family), "it came over the wire");
            assert_eq!((&*answer.sighting.backend, answer.kept_client()), (backend, is_kept), "{answer:?}");
        }
        expect_large_bodies(&cluster, vip(number))?;
    }
    for reason in ["served_local", "reply", "sent_snat", "reply_snat", "sent_dsr"] {
        assert!(counted(&cluster, 1, reason)? > 0, "{reason}");
    }
    assert!(counted(&cluster, 2, "served_dsr")? > 0);
    Ok(())
}

#[test]
fn a_service_without_endpoints_refuses_over_a_bare_uplink_at_once() -> Result<()> {
    let mut cluster = own_without_agents(1, 1)?;
    let bed = cluster.bed();
    let _wire = lay(bed.node(1)?.namespace(), bed.client())?;
    let vips: Vec<IpNet> = vip(1).both().map(host).into();
    route_over(bed.client(), &vips, end(2))?;
    start(&mut cluster, 1, 1)?;
    cluster.apply(&cluster.service("empty", 1, &[])?.load_balancer(vip(1)), &[1])?;
    for family in Family::ALL {
        let target = SocketAddr::new(vip(1).of(family), 80);
        let error = ask(cluster.bed().client(), Protocol::Tcp, target).unwrap_err();
        assert!(format!("{error:#}").contains("refused"), "{family}: {error:#}");
    }
    Ok(())
}

#[test]
fn nodes_reach_each_other_over_a_bare_uplink() -> Result<()> {
    let mut cluster = own_without_agents(2, 1)?;
    let bed = cluster.bed();
    let (one, two) = (bed.node(1)?, bed.node(2)?);
    let _wire = lay(one.namespace(), two.namespace())?;
    // The wire carries the nodes' own addresses, for tunnels, and those of the pods, as an overlay
    // does.
    let pods = |node: u8| -> Result<[IpNet; 2]> {
        let pod = bed.pod(if node == 1 { "pod-1a" } else { "pod-2a" })?.addresses();
        Ok(pod.both().map(host))
    };
    route_over(one.namespace(), &two.addresses().both().map(host), one.addresses())?;
    route_over(two.namespace(), &one.addresses().both().map(host), two.addresses())?;
    route_over(one.namespace(), &pods(2)?, end(1))?;
    route_over(two.namespace(), &pods(1)?, end(2))?;
    start(&mut cluster, 2, 2)?;
    let translated = cluster.service("translated", 1, &["pod-2a"])?.load_balancer(vip(1));
    let directed = direct(cluster.service("direct", 2, &["pod-2a"])?.load_balancer(vip(2)));
    for service in [&translated, &directed] {
        cluster.apply(service, &[1, 2])?;
    }
    for answer in answers(&cluster, vip(1))? {
        let family = Family::of(answer.client.ip());
        assert_eq!(answer.sighting.peer.ip(), end(1).of(family), "the device's own address");
    }
    for answer in answers(&cluster, vip(2))? {
        assert!(answer.kept_client(), "{answer:?}");
    }
    for number in [1, 2] {
        expect_large_bodies(&cluster, vip(number))?;
    }
    for (node, reason) in [(1, "sent_snat"), (1, "reply_snat"), (1, "sent_dsr"), (2, "served_dsr")] {
        assert!(counted(&cluster, node, reason)? > 0, "{reason} on node {node}");
    }
    Ok(())
}
