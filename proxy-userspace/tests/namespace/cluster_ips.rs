//! ClusterIPs for clients outside, if routers know the way.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use ipnet::IpNet;
use millrace_lab::capture::Trail;
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::topology::{Family, vip};
use millrace_lab::walk::Walk;

use crate::errors::{expect_echo, expect_refused};
use crate::fixture::{counted, own, shared};

/// Makes the router send packets for the Service's ClusterIPs to the first node.
fn advertise(cluster: &Cluster, service: &Service) -> Result<()> {
    service.cluster_ips().both().into_iter().try_for_each(|address| cluster.bed().route_to(address, 1))
}

#[test]
fn a_cluster_ip_is_not_served_to_clients_outside_the_cluster() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("inside-only", 249, &["pod-1a", "pod-2a"])?;
    cluster.apply(&service, &[1])?;
    advertise(&cluster, &service)?;
    for family in Family::ALL {
        let target = SocketAddr::new(service.cluster_ips().of(family), 80);
        let before = counted(&cluster, 1, "source_refused")?;
        let lost = cluster
            .bed()
            .client()
            .spawn(async move || Ok(tokio::net::TcpStream::connect(target).await.map(drop)?));
        let is_refused = || Ok(counted(&cluster, 1, "source_refused")? > before);
        cluster.proxy(1)?.wait_until("the packet is dropped", is_refused)?;
        assert!(lost.outcome_so_far().is_none());
    }
    Ok(())
}

#[test]
fn the_command_line_says_which_frontends_are_for_clients_inside() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("told-apart", 248, &["pod-1a"])?.load_balancer(vip(248));
    cluster.apply(&service, &[1])?;
    let shown = cluster.proxy(1)?.services()?.into_iter().filter(|shown| shown.name == service.name());
    let frontends = shown.flat_map(|shown| shown.frontends);
    let told: BTreeSet<_> =
        frontends.map(|it| (it.address.ip(), it.scope.into_owned(), it.inside_only)).collect();
    let expected = |address: IpAddr, is_inside| {
        let (internal, external) = ("internal".to_owned(), "external".to_owned());
        [(address, internal, false), (address, external, is_inside)]
    };
    let of_cluster = service.cluster_ips().both().into_iter().flat_map(|address| expected(address, true));
    let of_balancer = vip(248).both().into_iter().flat_map(|address| expected(address, false));
    assert_eq!(told, of_cluster.chain(of_balancer).collect());
    Ok(())
}

#[test]
fn a_cluster_ip_is_served_to_clients_that_the_flags_take_in() -> Result<()> {
    let mut cluster = own(1, 2)?;
    let service = cluster.service("taken-in", 1, &["pod-1a", "pod-1b"])?;
    cluster.apply(&service, &[1])?;
    advertise(&cluster, &service)?;
    let client = cluster.bed().client_addresses().both().map(|address| IpNet::from(address).to_string());
    let clients = client.join(",");
    let walk =
        Walk::to(service.name(), service.cluster_ips(), 80, &["pod-1a", "pod-1b"], Trail::local("node1"));
    for (starts, flags) in [["--cluster-cidr", &clients], ["--cluster-ip-clients", "all"]].iter().enumerate()
    {
        cluster.start_agent_with(1, flags)?;
        cluster.proxy(1)?.wait_for_start(starts + 2)?;
        cluster.apply(&service, &[1])?;
        cluster.expect(&walk)?;
        for address in service.cluster_ips().both() {
            expect_refused(&cluster, 1, SocketAddr::new(address, 81), "unknown_port")?;
            expect_echo(&cluster, address)?;
        }
    }
    Ok(())
}
