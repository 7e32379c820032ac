//! Changes during traffic: endpoints, manifests, devices.

use anyhow::Result;
use millrace_lab::capture::Trail;
use millrace_lab::cluster::Cluster;
use millrace_lab::net::write_sysctl;
use millrace_lab::topology::vip;
use millrace_lab::walk::Walk;

use crate::fixture::{own, own_without_agents, shared};

#[test]
fn endpoints_are_followed_as_a_service_scales() -> Result<()> {
    let cluster = shared();
    for pods in [&["pod-1a"][..], &["pod-1a", "pod-1b"], &["pod-1b"], &["pod-1b", "pod-1a"]] {
        let service = cluster.service("scaling", 40, pods)?.external(vip(40));
        cluster.apply(&service, &[1])?;
        cluster.expect(&Walk::to(service.name(), vip(40), 80, pods, Trail::local("node1")))?;
    }
    Ok(())
}

#[test]
fn a_removed_manifest_takes_its_service_out_of_the_maps() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("removed", 41, &["pod-1a"])?.external(vip(41));
    cluster.apply(&service, &[1])?;
    cluster.manifests().remove("removed.yaml")?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("the service is gone", || Ok(!proxy.services()?.iter().any(|row| row.name == "removed")))
}

#[test]
fn a_broken_manifest_is_named_and_the_rest_is_served_until_it_is_repaired() -> Result<()> {
    let cluster = shared();
    let (proxy, manifests) = (cluster.proxy(1)?, cluster.manifests());
    let whole = cluster.service("whole", 42, &["pod-1a"])?.external(vip(42));
    let broken = cluster.service("broken", 43, &["pod-1b"])?.external(vip(43));
    cluster.apply(&whole, &[1])?;
    manifests.put("broken.yaml", "kind: Service\nmetadata: [")?;
    proxy.wait_until("the broken file is named", || Ok(proxy.log().contains("broken.yaml")))?;
    cluster.expect(&Walk::to(whole.name(), vip(42), 80, &["pod-1a"], Trail::local("node1")))?;
    let before = proxy.log().len();
    cluster.apply(&broken, &[1])?;
    cluster.expect(&Walk::to(broken.name(), vip(43), 80, &["pod-1b"], Trail::local("node1")))?;
    let log = proxy.log();
    assert!(
        !log[before..].contains("no EndpointSlice"),
        "its EndpointSlice came with it: {}",
        &log[before..]
    );
    Ok(())
}

#[test]
fn a_replaced_uplink_is_served_again() -> Result<()> {
    let cluster = own(2, 1)?;
    let local = cluster.service("local", 1, &["pod-1a"])?.load_balancer(vip(1));
    let direct = cluster.service("direct", 2, &["pod-2a"])?.load_balancer(vip(2));
    let direct = direct.annotation("millrace.dev/forwarding", "dsr");
    cluster.apply(&local, &[1])?;
    cluster.apply(&direct, &[1, 2])?;
    cluster.bed().delete_uplink(1)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("nothing is attached to the uplink", || {
        Ok(!proxy.attached()?.iter().any(|attached| attached.device == "eth0"))
    })?;
    proxy.wait_until("the other node is out of reach", || is_out_of_reach(&proxy.log(), &cluster, 2))?;
    assert!(!is_out_of_reach(&proxy.log(), &cluster, 1)?, "a node is in its own reach: {}", proxy.log());
    cluster.bed().restore_uplink(1)?;
    cluster.wait_for_hooks(1)?;
    cluster.wait_for_ways(1)?;
    cluster.expect(&Walk::to(local.name(), vip(1), 80, &["pod-1a"], Trail::local("node1")))?;
    cluster.expect(&Walk::to(direct.name(), vip(2), 80, &["pod-2a"], Trail::direct_return("node1", "node2")))
}

/// Returns whether the log names an address of a node that has no route.
fn is_out_of_reach(log: &str, cluster: &Cluster, node: u8) -> Result<bool> {
    let addresses = cluster.bed().node(node)?.addresses().both();
    let is_named = |line: &str| {
        line.contains("no route to a node address")
            && addresses.iter().any(|address| line.ends_with(&format!("address={address}")))
    };
    Ok(log.lines().any(is_named))
}

#[test]
fn a_directory_that_disappears_is_reported_and_the_last_state_is_served() -> Result<()> {
    let cluster = own(1, 1)?;
    let service = cluster.service("kept", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    let (proxy, directory) = (cluster.proxy(1)?, cluster.manifests().path());
    let away = directory.with_file_name("away");
    let before = proxy.log().len();
    std::fs::rename(directory, &away)?;
    let name = directory.display().to_string();
    proxy.wait_until("the directory is named", || Ok(proxy.log()[before..].contains(&name)))?;
    cluster.expect(&Walk::to(service.name(), vip(1), 80, &["pod-1a"], Trail::local("node1")))?;
    std::fs::rename(&away, directory)?;
    let changed = cluster.service("kept", 1, &["pod-1a"])?.load_balancer(vip(2));
    cluster.manifests().put_service(&changed)?;
    proxy.wait_until("the directory is followed again", || {
        Ok(proxy.json("services")?.to_string().contains(&vip(2).v4.to_string()))
    })
}

#[test]
fn the_agent_switches_forwarding_on_where_it_is_off() -> Result<()> {
    let mut cluster = own_without_agents(1, 1)?;
    let node = cluster.bed().node(1)?.namespace().clone();
    node.run(async || {
        write_sysctl("net/ipv4/ip_forward", "0")?;
        write_sysctl("net/ipv6/conf/all/forwarding", "0")
    })?;
    cluster.start_agent(1)?;
    cluster.wait_for_hooks(1)?;
    let service = cluster.service("forwarded", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    cluster.expect(&Walk::to(service.name(), vip(1), 80, &["pod-1a"], Trail::local("node1")))
}
