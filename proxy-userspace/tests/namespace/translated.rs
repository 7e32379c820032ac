//! Backends on other nodes without Direct Server Return. They are reached from an address of the
//! client's director (SNAT).

use anyhow::Result;
use millrace_lab::capture::Trail;
use millrace_lab::topology::vip;
use millrace_lab::walk::Walk;

use crate::fixture::{counted, expect_large_bodies, own, shared};

#[test]
fn pods_on_other_nodes_see_the_node_the_client_sent_to() -> Result<()> {
    let cluster = shared();
    let backends = ["pod-1a", "pod-2a", "pod-2b"];
    let service = cluster.service("translated", 60, &backends)?.node_ports(31600);
    cluster.apply(&service, &[3])?;
    let node = cluster.bed().node(3)?.addresses();
    let walk = Walk::to(service.name(), node, 31600, &backends, Trail::local("node3"));
    cluster.expect(&Walk { translated_to: Some(node), ..walk })
}

#[test]
fn a_load_balancer_reaches_pods_on_other_nodes() -> Result<()> {
    let cluster = shared();
    let backends = ["pod-2a", "pod-3b"];
    let service = cluster.service("balanced", 61, &backends)?.load_balancer(vip(61));
    cluster.apply(&service, &[1])?;
    let node = cluster.bed().node(1)?.addresses();
    let walk = Walk::to(service.name(), vip(61), 80, &backends, Trail::local("node1"));
    cluster.expect(&Walk { translated_to: Some(node), ..walk })
}

#[test]
fn a_host_process_on_another_node_is_a_backend() -> Result<()> {
    let mut cluster = shared();
    cluster.start_host_server(2, 9091)?;
    let service = millrace_lab::manifests::Service::new("host-elsewhere", 63).port(80, 9091);
    let service = service.host(cluster.bed().node(2)?).node_ports(31630);
    cluster.apply(&service, &[3])?;
    let node = cluster.bed().node(3)?.addresses();
    let walk = Walk::to(service.name(), node, 31630, &["host-node2"], Trail::local("node3"));
    cluster.expect(&Walk { translated_to: Some(node), ..walk })
}

#[test]
fn large_bodies_cross_translated_in_both_directions() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("large-translated", 64, &["pod-2a"])?.load_balancer(vip(64));
    cluster.apply(&service, &[1])?;
    expect_large_bodies(&cluster, vip(64))?;
    assert!(counted(&cluster, 1, "sent_snat")? > 0 && counted(&cluster, 1, "reply_snat")? > 0);
    Ok(())
}

#[test]
fn the_kernel_gives_no_socket_a_port_of_ours() -> Result<()> {
    let cluster = own(1, 1)?;
    let reserved = cluster
        .bed()
        .node(1)?
        .namespace()
        .run(async || Ok(std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports")?))?;
    assert_eq!(reserved.trim(), "61000-65535");
    Ok(())
}
