//! A node that can't serve is not ready, so that a roll-out stops there.
//!
//! /readyz, `millrace status` and the log name the reason. The agents run on a node without another
//! one.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use millrace_lab::agent::{Proxy, Source};
use millrace_lab::apiserver::{PORT, Trust};
use millrace_lab::cluster::Cluster;
use millrace_lab::process::Process;
use millrace_lab::traffic::get_status;
use serde_json::{Value, json};

use crate::fixture::{RETURN_LIMIT, SERVED, UNSERVED, shared, wait_for_line};

/// Before the first sync, an agent is alive only for probes that allow for it, as in
/// manifests/base.
const WAITING: [(&str, u16); 4] =
    [("/readyz", 503), ("/healthz", 503), ("/livez", 503), ("/livez?exclude=first-sync", 200)];
const SYNCED: [(&str, u16); 4] =
    [("/readyz", 503), ("/healthz", 503), ("/livez", 200), ("/livez?exclude=first-sync", 200)];
const READY: [(&str, u16); 3] = [("/readyz", 200), ("/healthz", 200), ("/livez", 200)];

/// An agent on the node without another one.
struct Agent {
    proxy: Proxy,
    process: Process,
}

impl Agent {
    fn start(cluster: &Cluster, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        let node = cluster.bed().node(UNSERVED)?;
        let proxy = Proxy::new(cluster.bed(), node, Source::ApiServer(kubeconfig), "off")?;
        let process = proxy.start_with(flags)?;
        Ok(Self { proxy, process })
    }

    /// Waits until `millrace status` names a condition with all of these words.
    fn expect_failing(&self, condition: &str, words: &[&str]) -> Result<()> {
        self.proxy.wait_until_within(RETURN_LIMIT, &format!("{condition} fails with {words:?}"), || {
            let status = self.proxy.json("status")?;
            let failing = status["readiness"]["failing"].as_array().cloned().unwrap_or_default();
            let names = |failing: &Value| {
                let text = failing.to_string();
                failing["condition"] == condition && words.iter().all(|word| text.contains(word))
            };
            Ok(failing.iter().any(names))
        })
    }

    fn expect_answers(&self, answers: &[(&'static str, u16)]) -> Result<()> {
        answers.iter().try_for_each(|(path, status)| expect_answer(&self.proxy, path, *status))
    }

    fn stop(self) -> Result<()> {
        assert!(self.process.is_running(), "it tries again:\n{}", self.proxy.log());
        assert!(self.process.stop()?.success());
        Ok(())
    }
}

fn expect_answer(proxy: &Proxy, path: &'static str, wanted: u16) -> Result<()> {
    proxy.wait_until_within(RETURN_LIMIT, &format!("{path} answers {wanted}"), || {
        let status =
            proxy.namespace().run(async move || get_status("127.0.0.1:10256".parse()?, path).await)?;
        Ok(status == wanted)
    })
}

/// The agents' kubeconfig with another user.
fn kubeconfig_as(cluster: &Cluster, file: &str, user: &Value) -> Result<PathBuf> {
    let server = cluster.api_server()?;
    let mut config: Value = serde_json::from_str(&fs::read_to_string(server.kubeconfig())?)?;
    config["users"][0]["user"] = user.clone();
    let path = server.credentials().path(file);
    fs::write(&path, config.to_string())?;
    Ok(path)
}

#[test]
fn an_agent_that_can_not_ask_the_api_server_lives_and_is_never_ready() -> Result<()> {
    let cluster = shared();
    let server = cluster.api_server()?;
    let address = |port| Ok::<_, anyhow::Error>(SocketAddr::new("172.30.0.2".parse()?, port));
    let file = |name, port, trust| server.credentials().agent_kubeconfig_for(name, address(port)?, trust);
    for (kubeconfig, words) in [
        (file("no-server.kubeconfig", PORT + 1, Trust::Own)?, ["172.30.0.2:6444", "can't be reached"]),
        (file("no-trust.kubeconfig", PORT, Trust::Other)?, ["172.30.0.2:6443", "not trusted"]),
        (
            kubeconfig_as(&cluster, "wrong-token.kubeconfig", &json!({"token": "wrong"}))?,
            ["172.30.0.2:6443", "401 Unauthorized"],
        ),
        (kubeconfig_as(&cluster, "anonymous.kubeconfig", &json!({}))?, ["172.30.0.2:6443", "forbids to"]),
    ] {
        let read = cluster.proxy(UNSERVED)?.log().len();
        let agent = Agent::start(&cluster, &kubeconfig, &[])?;
        agent.expect_failing("source-listed", &words)?;
        agent.expect_answers(&WAITING)?;
        wait_for_line(&cluster, UNSERVED, read, &["this node is not ready", "source-listed"])?;
        agent.stop()?;
    }
    Ok(())
}

#[test]
fn a_node_that_does_not_exist_is_named_and_ready_once_it_does() -> Result<()> {
    let cluster = shared();
    let kube = cluster.api_server()?.kube();
    let read = cluster.proxy(UNSERVED)?.log().len();
    let said = |words: &[&str]| wait_for_line(&cluster, UNSERVED, read, words);
    let agent =
        Agent::start(&cluster, cluster.api_server()?.kubeconfig(), &["--hostname-override", "nobody"])?;
    agent.expect_failing("node-found", &["there is no Node nobody"])?;
    agent.expect_answers(&SYNCED)?;
    said(&["the Node does not exist", "node=\"nobody\"", "--hostname-override"])?;
    said(&["this node is not ready", "node-found"])?;
    kube.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "nobody"}}))?;
    agent.expect_answers(&READY)?;
    said(&["the Node exists", "node=\"nobody\""])?;
    said(&["this node is ready"])?;
    kube.delete("v1", "Node", "", "nobody")?;
    agent.expect_answers(&SYNCED)?;
    agent.proxy.wait_until("it is named once each time", || {
        let log = agent.proxy.log();
        let is_named = |line: &&str| {
            line.contains("the Node does not exist: /healthz") && line.contains("node=\"nobody\"")
        };
        Ok(log[read..].lines().filter(is_named).count() == 2)
    })?;
    agent.stop()
}

#[test]
fn an_uplink_that_is_misspelt_is_named_and_keeps_the_node_from_being_ready() -> Result<()> {
    let cluster = shared();
    let read = cluster.proxy(UNSERVED)?.log().len();
    let agent = Agent::start(&cluster, cluster.api_server()?.kubeconfig(), &["--uplinks", "eth9"])?;
    agent.expect_failing("data-plane", &["no device is an uplink"])?;
    agent.expect_answers(&SYNCED)?;
    wait_for_line(&cluster, UNSERVED, read, &["there is no such device", "device=eth9"])?;
    let output = agent.proxy.command(&["status"])?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!table.contains("problems none") && table.contains("there is no device eth9"), "{table}");
    assert!(table.contains("not ready"), "{table}");
    agent.stop()
}

#[test]
fn agents_that_serve_are_ready_and_stay_so_while_the_server_is_away() -> Result<()> {
    let mut cluster = shared();
    let ready = |cluster: &Cluster| {
        SERVED.into_iter().try_for_each(|node| {
            READY.iter().try_for_each(|(path, status)| expect_answer(cluster.proxy(node)?, path, *status))
        })
    };
    ready(&cluster)?;
    let read = cluster.proxy(1)?.log().len();
    cluster.api_server_mut()?.kill_server()?;
    wait_for_line(&cluster, 1, read, &["172.30.0.2:6443", "can't be reached"])?;
    ready(&cluster)
}
