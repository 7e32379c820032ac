//! Millrace, installed as a user would; and the wait for nodes and proxy.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::plan::{API_PORT, CONTROL, PODS, Plan, node_name};
use super::programs::Assets;
use super::{Cluster, Kubectl, Proxy, at, wait};
use crate::traffic::get_status;

/// The version of the image, which is the workspace's.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The namespace of the agents.
const NAMESPACE: &str = "kube-system";
/// The port of a proxy's health check.
const HEALTHZ: u16 = 10256;
const READY_LIMIT: Duration = Duration::from_mins(3);

/// Installs the chart with the address of the API server and the ranges of the pods.
pub(super) fn millrace(cluster: &Cluster, assets: &Assets) -> Result<()> {
    let [address, _] = Plan::control();
    let mode = cluster.settings.mode;
    let mut helm = Command::new(assets.program("helm")?);
    helm.args(["upgrade", "--install", "millrace"]).arg(Assets::chart());
    helm.args(["--namespace", NAMESPACE, "--kubeconfig"]).arg(cluster.kubeconfig());
    for value in [
        format!("k8sServiceHost={address}"),
        format!("k8sServicePort={API_PORT}"),
        format!("clusterCIDR={{{PODS}}}"),
        format!("mode={}", mode.name()),
        format!("image.tag={VERSION}{}", mode.image_suffix()),
    ] {
        helm.args(["--set", &value]);
    }
    for value in &cluster.settings.values {
        helm.args(["--set", value]);
    }
    let output = helm.output().context("can't run helm")?;
    ensure!(output.status.success(), "helm: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Waits until all nodes and their proxies are ready.
pub(super) fn wait_until_ready(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl();
    wait("nodes", READY_LIMIT, || check_nodes(cluster, &kubectl))?;
    match cluster.settings.proxy {
        Proxy::None => return Ok(()),
        Proxy::Millrace => {
            wait("the DaemonSet millrace", READY_LIMIT, || check_daemon_set(cluster, &kubectl))?;
        }
        Proxy::KubeProxy => {}
    }
    wait("the proxies", READY_LIMIT, || {
        (1..=cluster.settings.nodes).try_for_each(|number| {
            let status = health(cluster, number)?;
            ensure!(status == 200, "{}: /healthz answers {status}", node_name(number));
            Ok(())
        })
    })
}

/// Returns the status of the health check of node `number`'s proxy.
pub(super) fn health(cluster: &Cluster, number: u8) -> Result<u16> {
    let [address, _] = Plan::node(number);
    let target = (address, HEALTHZ).into();
    cluster.namespace(CONTROL)?.run(async move || get_status(target, "/healthz").await)
}

fn check_nodes(cluster: &Cluster, kubectl: &Kubectl) -> Result<()> {
    let nodes = kubectl.json(&["get", "nodes"])?;
    let nodes = at(&nodes, "/items").as_array().cloned().unwrap_or_default();
    ensure!(nodes.len() == usize::from(cluster.settings.nodes), "{} nodes are there", nodes.len());
    for node in nodes {
        let mut conditions = at(&node, "/status/conditions").as_array().into_iter().flatten();
        let ready = conditions.find(|condition| at(condition, "/type") == "Ready");
        let ready = ready.unwrap_or(&Value::Null);
        let (name, reason) = (at(&node, "/metadata/name"), at(ready, "/message"));
        ensure!(at(ready, "/status") == "True", "{name} is not ready: {reason}");
    }
    Ok(())
}

fn check_daemon_set(cluster: &Cluster, kubectl: &Kubectl) -> Result<()> {
    let found = kubectl.json(&["--namespace", NAMESPACE, "get", "daemonset", "millrace"])?;
    let generation = at(&found, "/metadata/generation");
    ensure!(at(&found, "/status/observedGeneration") == generation, "it was not yet observed");
    let (ready, nodes) = (at(&found, "/status/numberReady"), cluster.settings.nodes);
    ensure!(
        *ready == nodes && *at(&found, "/status/updatedNumberScheduled") == nodes,
        "{ready} of {nodes} agents are ready"
    );
    Ok(())
}
