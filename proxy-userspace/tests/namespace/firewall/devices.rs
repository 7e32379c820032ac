//! Pods that come, go, are not known yet, or are not what they say.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millrace_lab::cluster::TARGET_PORT;
use millrace_lab::net::Namespace;
use millrace_lab::process::run;
use millrace_lab::topology::Family;
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::bench::{Guarded, ask_all, judge};

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
    questions.extend(ask_all(
        node.namespace(),
        "node 1 to pod-1a",
        guarded.addresses("pod-1a")?,
        TARGET_PORT,
        true,
    ));
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
        let prefix = format!("{}/{}", b.of(family), if family == Family::V4 { 32 } else { 128 });
        run(evil, &["ip", "address", "add", &prefix, "dev", "eth0", "preferred_lft", "0"])?;
        // The answer would go to the pod whose address it is. So the target says what has come.
        let any = if family == Family::V4 { "0.0.0.0:9999" } else { "[::]:9999" };
        let arrived = guarded.pod("pod-1a")?.spawn(async move || {
            let socket = UdpSocket::bind(any).await?;
            let mut datagram = [0; 64];
            let waited = timeout(Duration::from_secs(2), socket.recv_from(&mut datagram)).await;
            Ok(waited.ok().map(|received| datagram[..received.map_or(0, |(length, _)| length)].to_vec()))
        });
        let target = SocketAddr::new(guarded.addresses("pod-1a")?.of(family), 9999);
        let tell = |from: &Namespace, text: &'static [u8]| {
            let source = SocketAddr::new(b.of(family), 0);
            from.run(async move || {
                let socket = UdpSocket::bind(source).await?;
                socket.send_to(text, target).await?;
                Ok(())
            })
        };
        for _ in 0..5 {
            // A refusal of its own kernel is as good.
            let _ = tell(evil, b"stolen");
            sleep(Duration::from_millis(50));
        }
        tell(guarded.pod("pod-1b")?, b"own")?;
        let arrived = arrived.join_within(Duration::from_secs(5))?;
        ensure!(arrived.as_deref() == Some(b"own"), "{family}: {arrived:?}");
    }
    // The agent looks at the devices again and again, and does not fall for it.
    sleep(Duration::from_secs(2));
    let mut questions = guarded.ask_pod("pod-1b", "pod-1a", true)?;
    questions.extend(guarded.ask_pod("pod-1c", "pod-1a", false)?);
    judge(questions)
}

#[test]
fn a_device_that_goes_down_and_up_again_stays_guarded() -> Result<()> {
    let guarded = Guarded::start(1, 2, &[])?;
    guarded.put_policies(&[("closed", json!({"podSelector": {"matchLabels": {"app": "a"}}}))])?;
    guarded.wait_until_pod("pod-1b", "pod-1a", false)?;
    let node = guarded.cluster.bed().node(1)?.namespace();
    let device = guarded.cluster.bed().pod("pod-1a")?.device();
    let counted = guarded.pod("pod-1a")?.spawn(async || {
        let socket = UdpSocket::bind("0.0.0.0:9999").await?;
        let mut datagram = [0; 64];
        Ok(timeout(Duration::from_secs(6), socket.recv_from(&mut datagram)).await.is_ok())
    });
    let target = SocketAddr::new(guarded.addresses("pod-1a")?.of(Family::V4), 9999);
    let flood = guarded.pod("pod-1b")?.spawn(async move || {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            // The neighbour is unreachable for some time.
            let _ = socket.send_to(b"in", target).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    });
    for _ in 0..3 {
        run(node, &["ip", "link", "set", &device, "down"])?;
        sleep(Duration::from_millis(300));
        run(node, &["ip", "link", "set", &device, "up"])?;
        sleep(Duration::from_millis(700));
    }
    flood.join_within(Duration::from_secs(20))?;
    ensure!(!counted.join_within(Duration::from_secs(20))?, "a datagram came through");
    // The node reaches the pod, so the way is there.
    let probe = ask_all(node, "node 1", guarded.addresses("pod-1a")?, TARGET_PORT, true);
    judge(probe)
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
