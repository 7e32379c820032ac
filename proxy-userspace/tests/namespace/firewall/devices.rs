//! Pods that come, go, are not known yet, or are not what they say.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use millrace_lab::cluster::TARGET_PORT;
use millrace_lab::process::run;
use millrace_lab::topology::Family;
use serde_json::json;

use super::bench::{Guarded, judge};

#[test]
fn a_pod_that_is_not_known_is_closed_but_for_its_node_while_the_cluster_has_policies() -> Result<()> {
    let guarded = Guarded::start(2, 2, &[])?;
    guarded.put_pods(&["pod-1a"])?;
    let mut questions = guarded.ask_pod("pod-1a", "pod-1b", true)?;
    questions.extend(guarded.ask_pod("pod-2b", "pod-1a", true)?);
    judge(questions)?;
    // The policy is about other pods.
    guarded.put_policies(&[("p", json!({"podSelector": {"matchLabels": {"app": "nobody"}}}))])?;
    guarded.wait_until_pod("pod-1a", "pod-1b", false)?;
    let node = guarded.cluster.bed().node(1)?;
    let mut questions = guarded.ask_pod("pod-1a", "pod-1b", false)?;
    questions.extend(guarded.ask_pod("pod-1a", "pod-2b", false)?);
    questions.extend(guarded.ask_pod("pod-2b", "pod-1a", false)?);
    questions.extend(guarded.ask_pod("pod-1b", "pod-2a", true)?);
    questions.extend(guarded.questions(
        node.namespace(),
        "node 1 to pod-1a",
        guarded.addresses("pod-1a")?,
        TARGET_PORT,
        true,
    )?);
    judge(questions)?;
    guarded.put_pods(&[])?;
    guarded.wait_until_pod("pod-1a", "pod-1b", true)?;
    judge(guarded.ask_pod("pod-2b", "pod-1a", true)?)
}

#[test]
fn a_pod_that_takes_the_address_of_another_one_gets_nothing_by_it() -> Result<()> {
    let guarded = Guarded::start(1, 3, &[])?;
    let from_b = json!({"podSelector": {"matchLabels": {"app": "a"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "b"}}}]}]});
    guarded.put_policies(&[("from-b", from_b)])?;
    guarded.wait_until_pod("pod-1c", "pod-1a", false)?;
    guarded.wait_until_pod("pod-1b", "pod-1a", true)?;
    let (evil, b) = (guarded.pod("pod-1c")?, guarded.addresses("pod-1b")?);
    for family in Family::ALL {
        let address = b.of(family);
        let prefix = format!("{address}/{}", if family == Family::V4 { 32 } else { 128 });
        run(evil, &["ip", "address", "add", &prefix, "dev", "eth0", "preferred_lft", "0"])?;
        let target = SocketAddr::new(guarded.addresses("pod-1a")?.of(family), TARGET_PORT);
        let asked = evil.run(async move || {
            let socket = tokio::net::UdpSocket::bind(SocketAddr::new(address, 0)).await?;
            socket.send_to(b"who is there?", target).await?;
            let mut answer = [0; 512];
            let waited = std::time::Duration::from_secs(1);
            Ok(tokio::time::timeout(waited, socket.recv_from(&mut answer)).await.is_ok())
        })?;
        ensure!(!asked, "{address} was believed");
    }
    // The agent looks at the devices again and again, and does not fall for it.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let mut questions = guarded.ask_pod("pod-1b", "pod-1a", true)?;
    questions.extend(guarded.ask_pod("pod-1c", "pod-1a", false)?);
    judge(questions)
}

#[test]
fn without_the_flag_the_next_agent_takes_the_firewall_away() -> Result<()> {
    let mut guarded = Guarded::start(1, 2, &[])?;
    guarded.put_policies(&[("p", json!({"podSelector": {}}))])?;
    guarded.wait_until_pod("pod-1b", "pod-1a", false)?;
    let pins = guarded.cluster.proxy(1)?.bpffs().join("millrace-firewall");
    ensure!(pins.exists());
    guarded.cluster.start_agent(1)?;
    guarded.wait_until_pod("pod-1b", "pod-1a", true)?;
    ensure!(!pins.exists(), "{} is left", pins.display());
    judge(guarded.ask_pod("pod-1b", "pod-1a", true)?)
}
