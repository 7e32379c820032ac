//! An agent with three capabilities, behind `--init-only` with all of them.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::agent::Proxy;
use millrace_lab::capture::Trail;
use millrace_lab::cluster::Cluster;
use millrace_lab::container::{AGENT_CAPABILITIES, capabilities_of, contain};
use millrace_lab::net::{Namespace, read_sysctl, write_sysctl};
use millrace_lab::process::Process;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, Stream, ask};
use millrace_lab::walk::Walk;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::fixture::{expect_no_loss, own_without_agents};

/// Settings with a value that the data path can't use, and the right one.
const SYSCTLS: [(&str, &str, &str); 5] = [
    ("net/ipv4/ip_local_reserved_ports", "8080", "8080,61000-65535"),
    ("net/ipv6/conf/eth0/accept_ra", "1", "2"),
    ("net/ipv6/conf/all/forwarding", "0", "1"),
    ("net/ipv4/ip_forward", "0", "1"),
    ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", "58", "3600"),
];

fn set_wrong(namespace: &Namespace) -> Result<()> {
    namespace.run(async || SYSCTLS.iter().try_for_each(|(key, wrong, _)| write_sysctl(key, wrong)))
}

fn values(namespace: &Namespace) -> Result<Vec<String>> {
    namespace.run(async || SYSCTLS.iter().map(|(key, _, _)| read_sysctl(key)).collect())
}

fn start_contained(proxy: &Proxy) -> Result<Process> {
    proxy.start_prepared(&[], |command| contain(command, AGENT_CAPABILITIES))
}

/// Returns the log of a run of `--init-only` that succeeds.
fn init(proxy: &Proxy) -> Result<String> {
    let Output { status, stderr, .. } = proxy.refused_agent(&["--init-only"])?;
    let log = String::from_utf8(stderr)?;
    ensure!(status.success() && log.contains("this node is set up"), "{log}");
    Ok(log)
}

/// Expects that clients outside and pods reach a Service of a pod on node 1.
fn expect_served(cluster: &Cluster) -> Result<()> {
    let service = cluster.service("served", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    cluster.expect(&Walk::to(service.name(), vip(1), 80, &["pod-1a"], Trail::local("node1")))?;
    let from = cluster.bed().pod("pod-1b")?.namespace();
    for family in Family::ALL {
        let frontend = SocketAddr::new(service.cluster_ips().of(family), 80);
        let answer = ask(from, Protocol::Tcp, frontend)?;
        ensure!(answer.sighting.backend == "pod-1a", "{family}: {answer:?}");
    }
    Ok(())
}

#[test]
fn an_agent_with_three_capabilities_serves_a_node_that_was_set_up_before() -> Result<()> {
    let cluster = own_without_agents(1, 2)?;
    let (proxy, node) = (cluster.proxy(1)?, cluster.bed().node(1)?.namespace());
    set_wrong(node)?;
    let log = init(proxy)?;
    let right = SYSCTLS.map(|(_, _, right)| right.to_owned());
    assert_eq!(values(node)?, right, "{log}");
    for (key, _, _) in SYSCTLS {
        let named = log.lines().find(|line| line.contains(&key.replace('/', ".")));
        assert!(named.is_some_and(|line| line.contains("sysctl changed")), "{key} is not in {log}");
    }
    let again = init(proxy)?;
    assert!(!again.contains("sysctl changed"), "{again}");

    let agent = start_contained(proxy)?;
    cluster.wait_for_hooks(1)?;
    assert_eq!(capabilities_of(agent.id()), Some(AGENT_CAPABILITIES));
    expect_served(&cluster)?;
    let log = proxy.log();
    assert!(!log.contains("sysctl"), "{log}");
    assert_eq!(log.lines().filter(|line| line.contains("takes CAP_SYS_ADMIN")).count(), 1, "{log}");
    assert!(agent.stop()?.success());

    // The records of the former values are the agent's, too.
    node.run(async || write_sysctl("net/ipv6/conf/all/forwarding", "0"))?;
    let said = String::from_utf8(proxy.command(&["cleanup"])?.stdout)?;
    for word in ["61000-65535 given back", "accept_ra: 1 again"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
    Ok(())
}

/// Without CAP_SYS_ADMIN an agent can't ask the kernel for a program's maps by their ids.
#[test]
fn a_killed_agent_with_three_capabilities_costs_no_datagram_and_loads_nothing_anew() -> Result<()> {
    let cluster = own_without_agents(1, 1)?;
    let proxy = cluster.proxy(1)?;
    init(proxy)?;
    let agent = start_contained(proxy)?;
    cluster.wait_for_hooks(1)?;
    let service = cluster.service("kept", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    let loads = || proxy.log().matches("programs loaded").count();
    let before = loads();
    let mut streams = Vec::new();
    for family in Family::ALL {
        let target = SocketAddr::new(vip(1).of(family), 80);
        streams.push(Stream::start(cluster.bed().client(), target, Duration::from_millis(1))?);
    }
    agent.kill()?;
    let _agent = start_contained(proxy)?;
    proxy.wait_for_start(2)?;
    for stream in streams {
        assert!(expect_no_loss(&cluster, stream)?.sent > 100);
    }
    assert_eq!((loads(), before > 0), (before, true), "{}", proxy.log());
    Ok(())
}

#[test]
fn without_the_set_up_each_wrong_setting_gives_one_line_with_the_remedy() -> Result<()> {
    let cluster = own_without_agents(1, 1)?;
    let (proxy, node) = (cluster.proxy(1)?, cluster.bed().node(1)?.namespace());
    set_wrong(node)?;
    let agent = start_contained(proxy)?;
    cluster.wait_for_hooks(1)?;
    for (key, wrong, _) in SYSCTLS {
        let key = key.replace('/', ".");
        let is_named = || Ok(proxy.log().contains(&key));
        proxy.wait_until(&format!("{key} is named"), is_named)?;
        let log = proxy.log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&key)).collect();
        let [line] = lines[..] else { panic!("{key} is in {} lines of {log}", lines.len()) };
        for word in ["WARN", "Read-only file system", "millrace agent --init-only", wrong] {
            assert!(line.contains(word), "{word} is not in {line}");
        }
    }
    assert!(agent.is_running());
    Ok(())
}

#[test]
fn a_bpf_file_system_mounted_in_a_shared_volume_is_the_hosts_and_no_warning() -> Result<()> {
    let cluster = own_without_agents(1, 1)?;
    let binary = millrace_lab::agent::binary()?;
    let scratch = cluster.bed().directory().join("host");
    fs::create_dir(&scratch)?;
    let path = scratch.clone();
    // This thread's mounts are the host's.
    let host = move || -> Result<Output> {
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("host"), &path, Some("tmpfs"), MsFlags::empty(), none)?;
        mount(none, &path, none, MsFlags::MS_SHARED, none)?;
        let bpffs = path.join("bpf");
        fs::create_dir(&bpffs)?;
        let output = set_up_in_a_container(binary, &bpffs)?;
        ensure!(statfs(&bpffs)?.filesystem_type() == BPF_FS_MAGIC, "the host has none: {output:?}");
        umount2(&bpffs, MntFlags::MNT_DETACH)?;
        umount2(&path, MntFlags::MNT_DETACH)?;
        Ok(output)
    };
    let node = cluster.bed().node(1)?.namespace();
    let output = node.run(async move || std::thread::spawn(host).join().ok().context("a panic")?)?;
    let log = String::from_utf8(output.stderr)?;
    let line = log.lines().find(|line| line.contains("no BPF file system was there"));
    assert!(line.is_some_and(|line| line.contains("INFO") && !line.contains("this container")), "{log}");
    Ok(())
}

/// Runs `--init-only` with its own mounts, which propagate as with `mountPropagation: Bidirectional`.
fn set_up_in_a_container(binary: PathBuf, bpffs: &Path) -> Result<Output> {
    let mut command = Command::new(binary);
    command.args(["agent", "--init-only", "--source", "directory:/nowhere", "--bpffs-path"]).arg(bpffs);
    // SAFETY: between fork and exec the child makes a system call and nothing else.
    unsafe { command.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWNS)?)) };
    let output = command.env("NO_COLOR", "1").env("NODE_IPS", "192.0.2.1,2001:db8::1").output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(output)
}
