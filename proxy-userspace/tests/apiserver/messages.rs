//! The agent's messages about a server that it can't use. The agents run on a node without another
//! one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Output;

use anyhow::Result;
use millrace_lab::agent::{Proxy, Source};
use millrace_lab::apiserver::{PORT, Trust, Validity};
use millrace_lab::cluster::Cluster;

use crate::fixture::{UNSERVED, shared, wait_for_line};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(172, 30, 0, 2));

/// Runs an agent that ends by itself.
fn refused(cluster: &Cluster, kubeconfig: &Path) -> Result<Output> {
    let kubeconfig = kubeconfig.display().to_string();
    let flags = ["--source", "kubernetes", "--kubeconfig", &kubeconfig, "--hostname-override", "node3"];
    cluster.proxy(UNSERVED)?.command(&[&["agent"][..], &flags].concat())
}

/// Runs an agent with this kubeconfig until it prints a line with these words.
fn expect_line(cluster: &Cluster, kubeconfig: &Path, words: &[&str]) -> Result<()> {
    let node = cluster.bed().node(UNSERVED)?;
    let proxy = Proxy::new(cluster.bed(), node, Source::ApiServer(kubeconfig), "off")?;
    let read = proxy.log().len();
    let agent = proxy.start()?;
    wait_for_line(cluster, UNSERVED, read, words)?;
    assert!(agent.is_running(), "it tries again");
    assert!(agent.stop()?.success());
    let log = proxy.log();
    let told = log[read..].lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    assert_eq!(told, 1, "once, not for each watch:\n{}", &log[read..]);
    Ok(())
}

#[test]
fn a_kubeconfig_that_is_missing_or_none_ends_the_agent_with_one_line() -> Result<()> {
    let cluster = shared();
    let credentials = cluster.api_server()?.credentials();
    let missing = credentials.path("missing.kubeconfig");
    let none = credentials.path("ca.crt");
    for path in [&missing, &none] {
        let output = refused(&cluster, path)?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{error}");
        let named = path.display().to_string();
        let lines: Vec<&str> = error.lines().filter(|line| line.contains(&named)).collect();
        assert!(lines.len() == 1 && error.contains("--kubeconfig"), "{error}");
    }
    Ok(())
}

#[test]
fn a_server_that_does_not_answer_is_named() -> Result<()> {
    let cluster = shared();
    let credentials = cluster.api_server()?.credentials();
    let nowhere = SocketAddr::new(SERVER, PORT + 1);
    let kubeconfig = credentials.agent_kubeconfig_for("nowhere.kubeconfig", nowhere, Trust::Own)?;
    expect_line(&cluster, &kubeconfig, &["172.30.0.2:6444", "can't be reached", "refused"])
}

#[test]
fn a_server_of_another_authority_is_not_trusted() -> Result<()> {
    let cluster = shared();
    let credentials = cluster.api_server()?.credentials();
    let server = SocketAddr::new(SERVER, PORT);
    let kubeconfig = credentials.agent_kubeconfig_for("mistrusting.kubeconfig", server, Trust::Other)?;
    expect_line(&cluster, &kubeconfig, &["172.30.0.2:6443", "not trusted", "another CA"])
}

#[test]
fn an_expired_certificate_is_named_and_a_new_one_is_taken_without_a_restart() -> Result<()> {
    let mut cluster = shared();
    let read = cluster.proxy(1)?.log().len();
    let server = cluster.api_server_mut()?;
    server.credentials().issue_server(Validity::Past)?;
    server.kill_server()?;
    server.start_server()?;
    let named = wait_for_line(&cluster, 1, read, &["172.30.0.2:6443", "not trusted", "has expired"]);
    let server = cluster.api_server_mut()?;
    server.credentials().issue_server(Validity::Now)?;
    server.kill_server()?;
    server.start_server()?;
    named?;
    wait_for_line(&cluster, 1, read, &["172.30.0.2:6443", "works again"])
}
