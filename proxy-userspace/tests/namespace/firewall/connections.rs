//! Connections that outlive policies and agents.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use millrace_lab::cluster::TARGET_PORT;
use millrace_lab::topology::Family;
use millrace_lab::traffic::{LongConnections, Stream};
use serde_json::json;

use super::bench::{Guarded, judge};

const PERIOD: Duration = Duration::from_millis(20);

#[test]
fn connections_live_on_while_agents_die_and_their_policies_stay_in_force() -> Result<()> {
    let mut guarded = Guarded::start(2, 3, &[])?;
    let policy = json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "b"}}}]}]});
    guarded.put_policies(&[("p", policy)])?;
    guarded.wait_until_pod("pod-1c", "pod-1a", false)?;
    guarded.wait_until_pod("pod-2c", "pod-2a", false)?;
    guarded.wait_until_pod("pod-2b", "pod-1a", true)?;
    let (mut streams, mut connections) = (Vec::new(), Vec::new());
    for (from, to) in [("pod-1b", "pod-1a"), ("pod-2b", "pod-1a"), ("pod-1b", "pod-2a")] {
        for family in Family::ALL {
            let target = SocketAddr::new(guarded.addresses(to)?.of(family), TARGET_PORT);
            streams.push(Stream::start(guarded.pod(from)?, target, PERIOD)?);
            connections.push(LongConnections::open(guarded.pod(from)?, target, 3, 3)?);
        }
    }
    for node in [1, 2] {
        guarded.cluster.take_agent(node)?.kill()?;
    }
    let closed = |guarded: &Guarded| {
        let mut questions = guarded.ask_pod("pod-1c", "pod-1a", false)?;
        questions.extend(guarded.ask_pod("pod-1c", "pod-2a", false)?);
        questions.extend(guarded.ask_pod("pod-1a", "pod-1b", false)?);
        questions.extend(guarded.ask_pod("pod-2b", "pod-1a", true)?);
        judge(questions)
    };
    closed(&guarded)?;
    for node in [1, 2] {
        guarded.cluster.start_agent_with(node, &["--network-policy", "on"])?;
    }
    for node in [1, 2] {
        guarded.cluster.wait_for_hooks(node)?;
    }
    sleep(Duration::from_secs(2));
    closed(&guarded)?;
    for stream in streams {
        let delivery = stream.stop()?;
        ensure!(delivery.lost.is_empty(), "{delivery:?}");
    }
    for connections in connections {
        ensure!(connections.stop()? == 6, "a connection was cut");
    }
    Ok(())
}

#[test]
fn a_policy_ends_connections_that_it_does_not_allow_and_no_others() -> Result<()> {
    let guarded = Guarded::start(1, 3, &[])?;
    let target = |family| anyhow::Ok(SocketAddr::new(guarded.addresses("pod-1a")?.of(family), TARGET_PORT));
    let allow = |app: &str| {
        json!({"podSelector": {"matchLabels": {"app": "a"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]})
    };
    // The connections are older than the first policy.
    let mut kept = Vec::new();
    for family in Family::ALL {
        kept.push(Stream::start(guarded.pod("pod-1b")?, target(family)?, PERIOD)?);
    }
    let cut = Stream::start(guarded.pod("pod-1c")?, target(Family::V4)?, PERIOD)?;
    guarded.put_policies(&[("p", allow("b"))])?;
    guarded.wait_until_pod("pod-1c", "pod-1a", false)?;
    sleep(Duration::from_secs(1));
    let delivery = cut.stop()?;
    ensure!(!delivery.lost.is_empty(), "the firewall let a connection through: {delivery:?}");
    for stream in kept {
        let delivery = stream.stop()?;
        ensure!(delivery.lost.is_empty(), "{delivery:?}");
    }
    Ok(())
}
