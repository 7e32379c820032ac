//! Millrace, installed as a user would; and the wait for nodes and proxy.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::plan::{API_PORT, CONTROL, PODS, Plan, node_name};
use super::programs::Assets;
use super::{Cluster, Kubectl, Proxy, wait};
use crate::traffic::get_status;

/// The version of the image, which is the workspace's.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The port of a proxy's health check.
const HEALTHZ: u16 = 10256;
const READY_LIMIT: Duration = Duration::from_mins(3);

/// Applies the agent's manifests with the address of the API server, the image and the pods' ranges.
pub(super) fn millrace(cluster: &Cluster) -> Result<()> {
    let overlay = cluster.directory.join("millrace");
    let base = overlay.join("base");
    copy(&Assets::manifests().join("base"), &base)?;
    let arguments =
        [format!("--cluster-cidr={PODS}"), format!("--proxy-mode={}", cluster.settings.mode.flag())];
    let added = arguments.map(
        |argument| json!({"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": argument}),
    );
    let [address, _] = Plan::control();
    let literals =
        [format!("KUBERNETES_SERVICE_HOST={address}"), format!("KUBERNETES_SERVICE_PORT={API_PORT}")];
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "kube-system",
        "resources": ["base"],
        "images": [{"name": "millrace", "newTag": VERSION}],
        "configMapGenerator": [{"name": "millrace-api-server", "literals": literals}],
        "patches": [{
            "target": {"kind": "DaemonSet", "name": "millrace"},
            "patch": Value::from(added.to_vec()).to_string(),
        }],
    });
    fs::write(overlay.join("kustomization.yaml"), kustomization.to_string())?;
    let path = overlay.to_str().context("the path of the manifests is no text")?;
    cluster.kubectl().run(&["apply", "--kustomize", path]).map(drop)
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
    let nodes = nodes["items"].as_array().cloned().unwrap_or_default();
    ensure!(nodes.len() == usize::from(cluster.settings.nodes), "{} nodes are there", nodes.len());
    for node in nodes {
        let conditions = node.pointer("/status/conditions").and_then(Value::as_array).cloned();
        let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
        let ready = ready.unwrap_or_default();
        ensure!(ready["status"] == "True", "{} is not ready: {}", node["metadata"]["name"], ready["message"]);
    }
    Ok(())
}

fn check_daemon_set(cluster: &Cluster, kubectl: &Kubectl) -> Result<()> {
    let found = kubectl.json(&["--namespace", "kube-system", "get", "daemonset", "millrace"])?;
    let status = &found["status"];
    ensure!(status["observedGeneration"] == found["metadata"]["generation"], "it was not yet observed");
    ensure!(
        status["numberReady"] == cluster.settings.nodes
            && status["updatedNumberScheduled"] == cluster.settings.nodes,
        "{} of {} agents are ready",
        status["numberReady"],
        cluster.settings.nodes
    );
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("can't read {}", from.display()))? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
