//! The changes and messages of an agent's start on its node, and what `millrace cleanup` restores.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::net::{Namespace, read_sysctl, write_sysctl};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::fixture::own_without_agents;

const RESERVED: &str = "net/ipv4/ip_local_reserved_ports";
const ACCEPT_RA: &str = "net/ipv6/conf/eth0/accept_ra";
const FORWARDING: &str = "net/ipv6/conf/all/forwarding";
const CLOSE_WAIT: &str = "net/netfilter/nf_conntrack_tcp_timeout_close_wait";

const FORMER: [(&str, &str); 4] =
    [(RESERVED, "8080,61000-61999"), (ACCEPT_RA, "1"), (FORWARDING, "0"), (CLOSE_WAIT, "58")];

fn node(cluster: &Cluster) -> Result<&Namespace> {
    Ok(cluster.bed().node(1)?.namespace())
}

fn set(namespace: &Namespace, values: &'static [(&str, &str)]) -> Result<()> {
    namespace.run(async move || values.iter().try_for_each(|(key, value)| write_sysctl(key, value)))
}

fn get(namespace: &Namespace, key: &'static str) -> Result<String> {
    namespace.run(async move || read_sysctl(key))
}

fn cleanup(cluster: &Cluster) -> Result<String> {
    let output = cluster.proxy(1)?.command(&["cleanup"])?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn settings_of_the_host_are_changed_at_start_and_restored_by_cleanup() -> Result<()> {
    let mut cluster = own_without_agents(1, 1)?;
    set(node(&cluster)?, &FORMER)?;
    cluster.start_agent(1)?;
    cluster.wait_for_hooks(1)?;
    let expected =
        [(RESERVED, "8080,61000-65535"), (ACCEPT_RA, "2"), (FORWARDING, "1"), (CLOSE_WAIT, "3600")];
    for (key, value) in expected {
        let is_set = || Ok(get(node(&cluster)?, key)? == value);
        cluster.proxy(1)?.wait_until(&format!("{key} is {value}"), is_set)?;
    }
    assert!(cluster.take_agent(1)?.stop()?.success());
    // An administrator switches forwarding off, for a node without pods.
    set(node(&cluster)?, &[(FORWARDING, "0")])?;
    let said = cleanup(&cluster)?;
    for word in ["62000-65535 given back", "accept_ra: 1 again"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
    for (key, value) in FORMER.into_iter().filter(|(key, _)| *key != CLOSE_WAIT) {
        assert_eq!(get(node(&cluster)?, key)?, value, "{key}");
    }
    Ok(())
}

#[test]
fn a_node_that_forwarded_before_still_ignores_router_advertisements() -> Result<()> {
    let mut cluster = own_without_agents(1, 1)?;
    set(node(&cluster)?, &[(FORWARDING, "1"), (ACCEPT_RA, "1"), ("net/ipv4/ip_forward", "0")])?;
    cluster.start_agent(1)?;
    cluster.wait_for_hooks(1)?;
    // The setting that comes after accept_ra.
    let is_set = || Ok(get(node(&cluster)?, "net/ipv4/ip_forward")? == "1");
    cluster.proxy(1)?.wait_until("forwarding is on", is_set)?;
    assert_eq!(get(node(&cluster)?, ACCEPT_RA)?, "1");
    Ok(())
}

#[test]
fn a_bpf_file_system_of_a_containers_own_is_a_warning_and_ends_with_it() -> Result<()> {
    let cluster = own_without_agents(1, 1)?;
    let proxy = cluster.proxy(1)?;
    let path = std::env::temp_dir().join(format!("millrace-container-{}", std::process::id()));
    let apart = || {
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        Ok(())
    };
    let agent = proxy.start_prepared(&["--bpffs-path", &path.display().to_string()], move |command| {
        // SAFETY: between fork and exec the child makes system calls and nothing else.
        unsafe { command.pre_exec(apart) };
    })?;
    proxy.wait_for_start(1)?;
    let log = proxy.log();
    let warned =
        log.lines().find(|line| line.contains("WARN") && line.contains("no BPF file system was there"));
    let warned = warned.unwrap_or_else(|| panic!("no warning in {log}"));
    for word in ["this container alone", "hostPath", &path.display().to_string()] {
        assert!(warned.contains(word), "{word} is not in {warned}");
    }
    assert!(agent.stop()?.success());
    // The mount had no other user. Only the directory is left.
    std::fs::remove_dir(&path)?;
    Ok(())
}

#[test]
fn the_log_of_a_start_names_the_agent_its_slow_steps_and_other_proxies() -> Result<()> {
    let mut cluster = own_without_agents(1, 1)?;
    let rules = "add table ip kube-proxy; add chain ip nat KUBE-SERVICES";
    let made = node(&cluster)?.run(async move || {
        let nft = Command::new("nft").arg(format!("add table ip nat; {rules}")).status()?;
        Ok(nft.success())
    })?;
    assert!(made);
    // A range of its own, so that no programs of an ended agent fit.
    cluster.start_agent_with(1, &["--uplinks", "eth0,eth9", "--snat-ports", "56000-56999"])?;
    cluster.wait_for_hooks(1)?;
    let own = cluster.take_agent(1)?;
    let process = own.id().to_string();
    let log = cluster.proxy(1)?.log();
    let first = log.lines().next().unwrap_or_default();
    let words = [
        "the agent starts",
        "version=",
        "node=\"node1\"",
        "mode=\"auto\"",
        "uplinks=\"eth0,eth9\"",
        &process,
    ];
    for word in words {
        assert!(first.contains(word), "{word} is not in {first}");
    }
    let position = |words: &[&str]| {
        let found = log.lines().position(|line| words.iter().all(|word| line.contains(word)));
        found.unwrap_or_else(|| panic!("{words:?} in no line of\n{log}"))
    };
    assert!(position(&["loading programs", "tc_ingress"]) < position(&["programs loaded", "seconds="]));
    position(&["WARN", "--uplinks: there is no such device", "device=eth9"]);
    position(&["WARN", "nftables' table kube-proxy", "kube-proxy --cleanup"]);
    position(&["WARN", "iptables' chain KUBE-SERVICES"]);
    assert_eq!(log.matches("another data plane").count(), 0, "{log}");

    // The reader of a view may close its pipe early.
    for view in
        ["status", "services", "backends", "flows", "ways", "announced", "counters", "maps", "programs"]
    {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = Command::new(millrace_lab::agent::binary()?);
        let output =
            command.args([view, "--bpffs-path"]).arg(cluster.proxy(1)?.bpffs()).stdout(writer).output()?;
        assert!(output.status.success() && output.stderr.is_empty(), "{view}: {output:?}");
    }

    // The agent's programs stay, and an agent with another directory serves beside them.
    assert!(own.stop()?.success());
    let bpffs = cluster.proxy(1)?.bpffs().to_owned();
    let other = bpffs.join("other").display().to_string();
    cluster.start_agent_with(1, &["--bpffs-path", &other])?;
    let cleanup = format!("millrace cleanup --bpffs-path {}`", bpffs.display());
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("the former data plane is named", || {
        Ok(proxy.log().lines().any(|line| line.contains("tc_ingress on eth0") && line.contains(&cleanup)))
    })?;
    proxy.wait_until("the status shows the other data plane", || {
        let others = proxy.json("status")?["others"].clone();
        let others = others.as_array().cloned().unwrap_or_default();
        Ok(others.iter().any(|one| one["bpffs_path"] == other.as_str() && one["device"] == "eth0"))
    })?;
    assert!(cluster.take_agent(1)?.stop()?.success());
    let cleaned = node(&cluster)?.run(async move || {
        let binary = millrace_lab::agent::binary()?;
        Ok(Command::new(binary).args(["cleanup", "--bpffs-path", &other]).status()?.success())
    })?;
    assert!(cleaned);
    Ok(())
}
