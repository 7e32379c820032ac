//! The wait of the chart's uninstall for the DaemonSet that cleans nodes up.

use std::fs;

use anyhow::{Context, Result};
use millrace_lab::agent::binary;
use millrace_lab::apiserver::Kube;
use millrace_lab::process::Process;
use serde_json::{Value, json};

use crate::fixture::{UNSERVED, shared};

const NAME: &str = "millrace-cleanup";

/// Puts the DaemonSet; no controller runs here.
fn put_daemonset(kube: &Kube) -> Result<()> {
    let labels = json!({"app": NAME});
    kube.put(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"namespace": "default", "name": NAME},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "done", "image": "millrace"}]},
            },
        },
    }))
}

/// Writes the status that the controller would write.
fn put_status(kube: &Kube, ready: i32) -> Result<()> {
    let path = format!("/apis/apps/v1/namespaces/default/daemonsets/{NAME}/status");
    let mut found: Value = serde_json::from_str(&kube.read(&path)?)?;
    let generation = found["metadata"]["generation"].clone();
    found["status"] = json!({
        "observedGeneration": generation, "numberReady": ready, "desiredNumberScheduled": 2,
        "currentNumberScheduled": 2, "numberMisscheduled": 0,
    });
    kube.replace(&path, &found).map(drop)
}

#[test]
fn the_wait_for_a_daemonset_ends_when_it_is_ready_on_each_node() -> Result<()> {
    let cluster = shared();
    let server = cluster.api_server()?;
    let node = cluster.bed().node(UNSERVED)?.namespace();
    let log = cluster.bed().directory().join("wait.log");
    let kubeconfig = server.admin_kubeconfig().display().to_string();
    let wait_for = format!("default/{NAME}");
    let arguments = ["cleanup", "--wait-for", &wait_for, "--kubeconfig", &kubeconfig].map(str::to_owned);
    let wait = Process::start(node, binary()?, arguments.to_vec(), &log)?;
    let said = |words: &str| {
        let is_said = || Ok(fs::read_to_string(&log)?.contains(words));
        cluster.proxy(1)?.wait_until(words, is_said).context(fs::read_to_string(&log)?)
    };
    said("not found")?;
    put_daemonset(server.kube())?;
    said("default/millrace-cleanup: no controller has seen it")?;
    put_status(server.kube(), 1)?;
    said("default/millrace-cleanup: ready on 1 of 2 nodes")?;
    assert!(wait.is_running());
    put_status(server.kube(), 2)?;
    assert!(wait.wait()?.success());
    server.kube().delete("apps/v1", "DaemonSet", "default", NAME)
}
