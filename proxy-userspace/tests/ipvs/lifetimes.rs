//! Lifetimes: connections outlive the removal of their endpoints, and the kernel's state outlives the agent.

use std::net::SocketAddr;

use anyhow::Result;
use millrace_lab::topology::{Family, cluster_ip, vip};
use millrace_lab::traffic::{LongConnections, Protocol, ask};

use crate::fixture::{
    FLAGS, LIMIT, apply, ask_all, end_agent, listed, output, place, run, servers, shared, start_agent,
};

#[test]
fn connections_survive_the_removal_of_their_endpoint_and_new_ones_go_elsewhere() -> Result<()> {
    let cluster = shared();
    let of =
        |pods: &[&str]| Ok::<_, anyhow::Error>(cluster.service("graceful", 20, pods)?.load_balancer(vip(20)));
    apply(&cluster, 20, &of(&["pod-1a", "pod-2a"])?)?;
    let targets = Family::ALL.map(|family| SocketAddr::new(vip(20).of(family), 80));
    let open = |target| LongConnections::open(cluster.bed().client(), target, 4, 2);
    let connections = targets.map(open);
    apply(&cluster, 20, &of(&["pod-2a"])?)?;
    for target in targets {
        let weights: Vec<u32> = servers(&cluster, target)?.into_iter().map(|(_, weight)| weight).collect();
        assert!(weights.contains(&0) && weights.contains(&1), "{target}: {weights:?}");
        ask_all(cluster.bed().client(), Protocol::Tcp, target, &["pod-2a"])?;
        for _ in 0..4 {
            assert_eq!(ask(cluster.bed().client(), Protocol::Tcp, target)?.sighting.backend, "pod-2a");
        }
    }
    for connections in connections {
        assert_eq!(connections?.stop()?, 6);
    }
    apply(&cluster, 20, &of(&["pod-1a", "pod-2a"])?)?;
    for target in targets {
        assert!(servers(&cluster, target)?.iter().all(|(_, weight)| *weight == 1));
    }
    Ok(())
}

#[test]
fn a_removed_udp_endpoint_is_gone_at_once() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 21, &cluster.service("datagrams", 21, &["pod-1a", "pod-2a"])?.load_balancer(vip(21)))?;
    let target = SocketAddr::new(vip(21).v4.into(), 80);
    ask_all(cluster.bed().client(), Protocol::Udp, target, &["pod-1a", "pod-2a"])?;
    apply(&cluster, 21, &cluster.service("datagrams", 21, &["pod-2a"])?.load_balancer(vip(21)))?;
    let prefix = format!("UDP {} ", place(target));
    cluster.proxy(1)?.wait_until_within(LIMIT, "one server is left, none drains", || {
        let all = listed(&cluster)?;
        Ok(all.iter().any(|one| one.service.starts_with(&prefix) && one.servers.len() == 1))
    })?;
    ask(cluster.bed().client(), Protocol::Udp, target)?;
    Ok(())
}

#[test]
fn connections_survive_a_killed_agent_and_the_next_one_changes_nothing() -> Result<()> {
    let mut cluster = shared();
    apply(
        &cluster,
        22,
        &cluster.service("lasting", 22, &["pod-1a", "pod-2a"])?.load_balancer(vip(22)).local(),
    )?;
    let target = SocketAddr::new(vip(22).v4.into(), 80);
    let connections = LongConnections::open(cluster.bed().client(), target, 4, 2)?;
    cluster.take_agent(1)?.kill()?;
    ask(cluster.bed().client(), Protocol::Tcp, target)?;
    let table = ["nft", "--handle", "list", "table", "inet", "millrace"];
    let (services, rules) = (names(&cluster)?, output(&cluster, &table)?);
    start_agent(&mut cluster, 1, &FLAGS)?;
    assert_eq!(names(&cluster)?, services);
    assert_eq!(output(&cluster, &table)?, rules, "handles must stay");
    assert_eq!(connections.stop()?, 6);
    Ok(())
}

/// Virtual services, each with its servers and their weights.
type Names = Vec<(String, Vec<(String, u32)>)>;

/// Returns the virtual services and servers without their connections.
fn names(cluster: &millrace_lab::cluster::Cluster) -> Result<Names> {
    let bare =
        |servers: Vec<(String, u32, u32, u32)>| servers.into_iter().map(|(name, weight, ..)| (name, weight));
    Ok(listed(cluster)?.into_iter().map(|one| (one.service, bare(one.servers).collect())).collect())
}

#[test]
fn state_that_another_process_deletes_is_restored() -> Result<()> {
    let cluster = shared();
    apply(&cluster, 23, &cluster.service("drift", 23, &["pod-1a"])?.load_balancer(vip(23)))?;
    let target = SocketAddr::new(vip(23).v4.into(), 80);
    for words in [
        ["nft", "delete", "table", "inet", "millrace"].as_slice(),
        &["ip", "link", "delete", "kube-ipvs0"],
        &["nft", "flush", "chain", "inet", "millrace", "postrouting"],
    ] {
        let before = output(&cluster, &["nft", "list", "table", "inet", "millrace"])?;
        output(&cluster, words)?;
        let is_whole = || {
            Ok(output(&cluster, &["nft", "list", "table", "inet", "millrace"])?.len() == before.len()
                && ask(cluster.bed().client(), Protocol::Tcp, target).is_ok())
        };
        cluster.proxy(1)?.wait_until_within(LIMIT, &format!("{words:?} is undone"), is_whole)?;
    }
    Ok(())
}

#[test]
fn cleanup_removes_our_state_and_nothing_else() -> Result<()> {
    let mut cluster = shared();
    apply(
        &cluster,
        24,
        &cluster.service("clean", 24, &["pod-1a"])?.node_ports(31240).load_balancer(vip(24)).local(),
    )?;
    let others = ["add table inet others", "add chain inet others kept"];
    for line in others {
        output(&cluster, &[["nft"].as_slice(), &line.split(' ').collect::<Vec<_>>()].concat())?;
    }
    let status = cluster.proxy(1)?.json("status")?;
    assert_eq!((&status["mode"], &status["agent_alive"]), (&"ipvs".into(), &true.into()), "{status}");
    assert_eq!(status["virtual_services"], listed(&cluster)?.len(), "{status}");
    let refused = cluster.proxy(1)?.command(&["cleanup"])?;
    assert_eq!(refused.status.code(), Some(1));
    let line = String::from_utf8(refused.stderr)?;
    assert!(
        line.starts_with("millrace: an agent") && line.contains("is running here; end it first"),
        "{line}"
    );
    end_agent(&mut cluster, 1)?;
    assert_eq!(listed(&cluster)?, []);
    assert!(!run(&cluster, &["ip", "link", "show", "kube-ipvs0"])?.status.success());
    assert_eq!(output(&cluster, &["nft", "list", "tables"])?.trim(), "table inet others");
    let again = String::from_utf8(cluster.proxy(1)?.command(&["cleanup"])?.stdout)?;
    assert!(again.contains("nothing was there"), "{again}");
    output(&cluster, &["nft", "delete", "table", "inet", "others"])?;
    start_agent(&mut cluster, 1, &FLAGS)?;
    let target = SocketAddr::new(cluster_ip(24).v4.into(), 80);
    ask(cluster.bed().pod("pod-1b")?.namespace(), Protocol::Tcp, target)?;
    Ok(())
}
