//! The data path outlives its agent.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_lab::capture::Trail;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{LongConnections, Stream};
use millrace_lab::walk::Walk;

use crate::fixture::{expect_no_loss, own};

#[test]
fn a_killed_agent_costs_no_datagram_and_no_connection() -> Result<()> {
    let mut cluster = own(2, 2)?;
    let local = cluster.service("local", 1, &["pod-1a", "pod-1b"])?.load_balancer(vip(1));
    let direct = cluster.service("direct", 2, &["pod-2a", "pod-2b"])?.load_balancer(vip(2));
    let direct = direct.annotation("millrace.dev/forwarding", "dsr");
    let translated = cluster.service("translated", 3, &["pod-2a", "pod-2b"])?.load_balancer(vip(3));
    cluster.apply(&local, &[1])?;
    cluster.apply(&direct, &[1, 2])?;
    cluster.apply(&translated, &[1])?;
    let client = cluster.bed().client();
    let mut traffic = Vec::new();
    for (number, family) in
        [1, 2, 3].into_iter().flat_map(|number| Family::ALL.map(|family| (number, family)))
    {
        let target = SocketAddr::new(vip(number).of(family), 80);
        let connections = LongConnections::open(client, target, 25, 25)?;
        traffic.push((target, connections, Stream::start(client, target, Duration::from_millis(1))?));
    }
    for node in [1, 2] {
        cluster.take_agent(node)?.kill()?;
    }
    for node in [1, 2] {
        cluster.start_agent(node)?;
    }
    for proxy in cluster.proxies() {
        proxy.wait_for_start(2)?;
    }
    for (target, connections, stream) in traffic {
        assert_eq!(connections.stop()?, 50, "{target}");
        let delivery = expect_no_loss(&cluster, stream).with_context(|| target.to_string())?;
        assert!(delivery.sent > 100, "{target}: {delivery:?}");
    }
    Ok(())
}

#[test]
fn an_agent_ends_without_an_error_or_a_lost_datagram_when_its_configuration_file_changes() -> Result<()> {
    let configuration = |interval: u8| {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             iptables: {{syncPeriod: {interval}s}}\n"
        )
    };
    let mut cluster = own(1, 1)?;
    let local = cluster.service("local", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&local, &[1])?;
    cluster.take_agent(1)?.stop()?;
    let path = cluster.bed().directory().join("config.conf");
    std::fs::write(&path, configuration(20))?;
    cluster.start_agent_with(1, &["--config", &path.to_string_lossy()])?;
    cluster.proxy(1)?.wait_for_start(2)?;

    let target = SocketAddr::new(vip(1).of(Family::ALL[0]), 80);
    let stream = Stream::start(cluster.bed().client(), target, Duration::from_millis(1))?;
    std::fs::write(&path, "mode: fast")?;
    let refuses = || Ok(cluster.proxy(1)?.log().contains("the changed file is not accepted"));
    cluster.proxy(1)?.wait_until("the file is refused", refuses)?;
    assert!(cluster.has_agent(1));
    std::fs::write(&path, configuration(25))?;
    let is_said = |line: &str| {
        line.contains("config.conf") && line.contains("the configuration file has changed: the agent ends")
    };
    let says = || Ok(cluster.proxy(1)?.log().lines().any(is_said));
    cluster.proxy(1)?.wait_until("the file is read again", says)?;
    let status = cluster.take_agent(1)?.wait()?;
    assert!(status.success(), "{status}");
    expect_no_loss(&cluster, stream)?;
    Ok(())
}

#[test]
fn the_data_path_serves_new_clients_without_any_agent() -> Result<()> {
    let mut cluster = own(2, 1)?;
    let direct = cluster.service("direct", 2, &["pod-2a"])?.load_balancer(vip(2));
    let direct = direct.annotation("millrace.dev/forwarding", "dsr");
    cluster.apply(&direct, &[1, 2])?;
    for node in [1, 2] {
        assert!(cluster.take_agent(node)?.stop()?.success());
    }
    let trail = Trail::direct_return("node1", "node2");
    cluster.expect(&Walk::to(direct.name(), vip(2), 80, &["pod-2a"], trail))
}

#[test]
fn a_restart_writes_nothing_where_nothing_has_changed() -> Result<()> {
    let mut cluster = own(2, 1)?;
    let local = cluster.service("local", 1, &["pod-1a"])?.load_balancer(vip(1));
    let direct = cluster.service("direct", 2, &["pod-1a", "pod-2a"])?.load_balancer(vip(2));
    cluster.apply(&local, &[1])?;
    cluster.apply(&direct.annotation("millrace.dev/forwarding", "dsr"), &[1])?;
    cluster.wait_for_ways(1)?;
    assert!(cluster.take_agent(1)?.stop()?.success());
    let before = (cluster.proxy(1)?.services()?, cluster.proxy(1)?.attached()?);
    let read = cluster.proxy(1)?.log().len();
    cluster.start_agent(1)?;
    cluster.proxy(1)?.wait_for_start(2)?;
    let log = cluster.proxy(1)?.log();
    let writes: Vec<usize> = log[read..].lines().filter_map(writes_of).collect();
    // The program of a clsact filter can't be read, so each filter is replaced once.
    let filters = before.1.iter().filter(|attached| attached.mode == "clsact").count();
    assert!(!writes.is_empty(), "{}", &log[read..]);
    assert_eq!(writes.iter().sum::<usize>(), filters, "{writes:?}\n{}", &log[read..]);
    assert_eq!(before, (cluster.proxy(1)?.services()?, cluster.proxy(1)?.attached()?));
    Ok(())
}

/// Returns the number of writes in a line that reports a sync.
fn writes_of(line: &str) -> Option<usize> {
    line.split_once("writes=")?.1.split_whitespace().next()?.parse().ok()
}
