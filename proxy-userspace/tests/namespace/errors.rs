//! ICMP errors to clients, as real sockets see them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::Netlink;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Connection, Protocol, ask, path_mtu, ping};

use crate::fixture::{counted, own, shared};

/// Asks over both protocols. Each time, the socket is refused at once, not by a time-out, and the
/// packet is counted.
pub fn expect_refused(cluster: &Cluster, node: u8, target: SocketAddr, reason: &str) -> Result<()> {
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
    let near = cluster.service("empty", 5, &[])?.node_ports(31050).load_balancer(vip(5));
    let direct = cluster.service("empty-direct", 9, &[])?.load_balancer(vip(9));
    let direct = direct.annotation("millrace.dev/forwarding", "dsr");
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

#[test]
fn a_port_that_no_service_has_is_left_to_the_stack() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("ports", 10, &["pod-1a"])?.load_balancer(vip(10));
    cluster.apply(&service, &[1])?;
    for family in Family::ALL {
        ask(cluster.bed().client(), Protocol::Tcp, SocketAddr::new(vip(10).of(family), 80))?;
        // The node does not have the address. Its stack sends the packet back to the router until
        // the hop limit is used up.
        let before = counted(&cluster, 1, "unknown_port")?;
        let error = ask(cluster.bed().client(), Protocol::Udp, SocketAddr::new(vip(10).of(family), 81));
        assert!(error.is_err());
        assert_eq!(counted(&cluster, 1, "unknown_port")?, before);
    }
    Ok(())
}

/// Pings a Service's address. Node 1 answers.
pub fn expect_echo(cluster: &Cluster, address: IpAddr) -> Result<()> {
    for payload in [&b""[..], b"odd", &[0xa5; 1400]] {
        let before = counted(cluster, 1, "echo")?;
        ping(cluster.bed().client(), address, payload)?;
        assert!(counted(cluster, 1, "echo")? > before, "{address}");
    }
    Ok(())
}

#[test]
fn a_services_address_answers_ping_unless_it_is_the_node_s_own() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("pinged", 11, &["pod-1a"])?.load_balancer(vip(11)).node_ports(31110);
    cluster.apply(&service, &[1])?;
    for family in Family::ALL {
        expect_echo(&cluster, vip(11).of(family))?;
        let before = counted(&cluster, 1, "echo")?;
        ping(cluster.bed().client(), cluster.bed().node(1)?.addresses().of(family), b"node")?;
        assert_eq!(counted(&cluster, 1, "echo")?, before);
    }
    Ok(())
}

/// Applies a Service whose pod has no socket at the port.
fn unheard(cluster: &Cluster, name: &str, number: u8, node: u8, pod: &str) -> Result<Service> {
    let (node, pod) = (cluster.bed().node(node)?, cluster.bed().pod(pod)?);
    Ok(Service::new(name, number).port(80, 9999).pod(node, pod).load_balancer(vip(number)))
}

#[test]
fn a_pod_that_does_not_listen_refuses_connections_and_datagrams_wherever_it_is() -> Result<()> {
    let cluster = shared();
    let local = unheard(&cluster, "deaf-local", 12, 1, "pod-1a")?;
    let direct =
        unheard(&cluster, "deaf-direct", 13, 2, "pod-2a")?.annotation("millrace.dev/forwarding", "dsr");
    let translated = unheard(&cluster, "deaf-translated", 14, 2, "pod-2b")?;
    cluster.apply(&local, &[1])?;
    cluster.apply(&direct, &[1, 2])?;
    cluster.apply(&translated, &[1])?;
    cluster.wait_for_ways(1)?;
    for family in Family::ALL {
        for (number, node) in [(12, 1), (13, 2), (14, 1)] {
            let target = SocketAddr::new(vip(number).of(family), 80);
            let before = counted(&cluster, node, "icmp_error")?;
            let error = ask(cluster.bed().client(), Protocol::Udp, target).expect_err("no socket listens");
            let refused = |cause: &io::Error| cause.kind() == io::ErrorKind::ConnectionRefused;
            assert!(
                error.chain().any(|cause| cause.downcast_ref().is_some_and(refused)),
                "{target}: {error:?}"
            );
            assert!(counted(&cluster, node, "icmp_error")? > before, "{target}");
        }
    }
    Ok(())
}

#[test]
fn a_datagram_too_large_for_the_tunnel_tells_its_sender_the_size_that_fits() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("tunnel-mtu", 15, &["pod-2a"])?.load_balancer(vip(15));
    cluster.apply(&service.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    for (family, fits) in [(Family::V4, 1480), (Family::V6, 1460)] {
        let target = SocketAddr::new(vip(15).of(family), 80);
        assert_eq!(path_mtu(cluster.bed().client(), target, 1500)?, fits, "{family}");
    }
    Ok(())
}

#[test]
fn a_narrow_link_to_the_client_slows_no_download_down() -> Result<()> {
    let cluster = own(2, 1)?;
    let local = cluster.service("near", 1, &["pod-1a"])?.load_balancer(vip(1));
    let direct = cluster.service("far", 2, &["pod-2a"])?.load_balancer(vip(2));
    let translated = cluster.service("hidden", 3, &["pod-2a"])?.load_balancer(vip(3));
    cluster.apply(&local, &[1])?;
    cluster.apply(&direct.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    cluster.apply(&translated, &[1])?;
    cluster.wait_for_ways(1)?;
    // The client does not know the narrow link: it offers segments that fit its own link.
    cluster.bed().router().run(async || Netlink::open()?.set_mtu("client", 1400).await)?;
    for (number, node) in [(1, 1), (2, 2), (3, 1)] {
        for family in Family::ALL {
            let target = SocketAddr::new(vip(number).of(family), 80);
            let before = counted(&cluster, node, "icmp_error")?;
            let bytes = 1_000_000;
            let crossed = cluster
                .bed()
                .client()
                .run(async move || Connection::open(target).await?.download(bytes).await);
            assert_eq!(crossed?, bytes, "{target}");
            assert!(counted(&cluster, node, "icmp_error")? > before, "{target}: the backend got no error");
        }
    }
    Ok(())
}
