//! Missing requirements: the agent names them in one line, and makes nothing.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::process;

use crate::fixture::{FLAGS, shared};
use crate::modules;

#[test]
fn a_second_agent_in_the_same_namespace_is_refused() -> Result<()> {
    let cluster = shared();
    let refused = cluster.proxy(1)?.refused_agent(&FLAGS)?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    let line =
        "millrace: --proxy-mode ipvs: another agent serves this network namespace by IPVS; one at a time can";
    assert_eq!(text.lines().last(), Some(line), "{text}");
    assert!(!refused.status.success());
    Ok(())
}

/// Returns the last line of an agent on node 2 that fails to start. Node 2 has no other agent.
fn refused(cluster: &Cluster, flags: &[&str], prepare: fn(&mut Command)) -> Result<String> {
    let proxy = cluster.proxy(2)?;
    let read = proxy.log().len();
    let agent = proxy.start_prepared(&[&FLAGS, flags].concat(), prepare)?;
    let status = agent.wait().with_context(|| proxy.log())?;
    ensure!(!status.success(), "the agent ended without an error: {}", proxy.log());
    let log = proxy.log();
    Ok(log.get(read..).and_then(|log| log.lines().last()).unwrap_or_default().to_owned())
}

fn expect_nothing_made(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.proxy(2)?;
    let read = |path: &'static str| proxy.namespace().run(async move || Ok(std::fs::read_to_string(path)?));
    let (links, services) = (read("/proc/thread-self/net/dev")?, read("/proc/thread-self/net/ip_vs")?);
    assert!(!links.contains("kube-ipvs0"), "{links}");
    assert_eq!(services.lines().count(), 3, "{services}");
    assert_eq!(process::output(proxy.namespace(), &["nft", "list", "tables"])?, "");
    Ok(())
}

#[test]
fn without_the_program_nft_nothing_is_made() -> Result<()> {
    let cluster = shared();
    let line = refused(&cluster, &[], |command| {
        command.env("PATH", "/nowhere");
    })?;
    assert_eq!(line, "millrace: --proxy-mode ipvs: the program nft is missing: install nftables");
    expect_nothing_made(&cluster)
}

#[test]
fn without_the_capability_nothing_is_made() -> Result<()> {
    let cluster = shared();
    let line = refused(&cluster, &[], |command| {
        command.uid(65534);
    })?;
    assert_eq!(line, "millrace: --proxy-mode ipvs: missing CAP_NET_ADMIN: run as root, or grant it");
    expect_nothing_made(&cluster)
}

#[test]
fn without_the_schedulers_module_nothing_is_made() -> Result<()> {
    let cluster = shared();
    modules::remove(c"ip_vs_fo")?;
    let line = refused(&cluster, &["--ipvs-scheduler", "fo"], |_| {});
    modules::insert_all()?;
    assert_eq!(
        line?,
        "millrace: --proxy-mode ipvs: the kernel has no IPVS scheduler fo: module ip_vs_fo is missing (modprobe ip_vs_fo)"
    );
    expect_nothing_made(&cluster)
}
