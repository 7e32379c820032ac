//! The agent's refusals, and the state that they leave behind.

use anyhow::Result;
use millrace_lab::topology::vip;

use crate::fixture::{own, own_without_agents};

#[test]
fn a_second_agent_on_the_same_pins_is_refused_and_the_first_goes_on() -> Result<()> {
    let mut cluster = own(1, 1)?;
    let service = cluster.service("kept", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    let output = cluster.proxy(1)?.refused_agent(&[])?;
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let pins = cluster.proxy(1)?.bpffs().display().to_string();
    assert!(error.contains("another") && error.contains(&pins), "{error}");
    assert!(cluster.take_agent(1)?.is_running());
    Ok(())
}

#[test]
fn an_uplink_that_does_not_exist_is_named_and_the_agent_goes_on() -> Result<()> {
    let cluster = own_without_agents(1, 1)?;
    let agent = cluster.proxy(1)?.start_with(&["--uplinks", "eth0,eth9"])?;
    cluster.wait_for_hooks(1)?;
    let log = cluster.proxy(1)?.log();
    assert!(log.contains("--uplinks") && log.contains("eth9"), "{log}");
    assert!(agent.is_running());
    Ok(())
}

#[test]
fn cleanup_leaves_nothing_and_is_refused_while_an_agent_runs() -> Result<()> {
    let mut cluster = own(1, 1)?;
    let service = cluster.service("served", 1, &["pod-1a"])?.load_balancer(vip(1));
    cluster.apply(&service, &[1])?;
    let proxy_pins = cluster.proxy(1)?.bpffs().to_owned();
    let refused = cluster.proxy(1)?.command(&["cleanup"])?;
    let agent = cluster.take_agent(1)?;
    let line = format!("millrace: an agent (process {}) is running here; end it first\n", agent.id());
    assert_eq!((refused.status.code(), String::from_utf8(refused.stderr)?), (Some(1), line));
    assert!(agent.stop()?.success());
    let node = cluster.bed().node(1)?.namespace().clone();
    let hooks = || node.run(async || millrace_lab::net::attached_programs("eth0").await);
    assert!(!hooks()?.is_empty(), "the data path goes on without an agent");
    let output = cluster.proxy(1)?.command(&["cleanup"])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(hooks()?, Vec::<String>::new());
    assert!(!proxy_pins.exists(), "nothing is pinned");
    Ok(())
}
