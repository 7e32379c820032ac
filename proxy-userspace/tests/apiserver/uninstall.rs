//! The wait of the chart's uninstall for the DaemonSet that cleans nodes up.

use std::fs;

use anyhow::{Context, Result};
use millrace_lab::agent::binary;
use millrace_lab::apiserver::Kube;
use millrace_lab::process::Process;
use serde_json::{Value, json};

use crate::fixture::{UNSERVED, shared};

const NAME: &str = "millrace-cleanup";

/// Puts the DaemonSet with the status that its controller would write. No controller runs here.
fn put_daemonset(kube: &Kube, status: Value) -> Result<()> {
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
        "status": status,
    }))
}

/// Returns the status with so many of two nodes ready.
fn ready(nodes: i32) -> Value {
    json!({
        "observedGeneration": 1, "numberReady": nodes, "desiredNumberScheduled": 2,
        "currentNumberScheduled": 2, "numberMisscheduled": 0,
    })
}

/// Lets the agents' account ask for the DaemonSet, as the chart lets its hook's.
fn grant(kube: &Kube) -> Result<()> {
    let metadata = json!({"namespace": "default", "name": NAME});
    let rule = json!({"apiGroups": ["apps"], "resources": ["daemonsets"], "resourceNames": [NAME], "verbs": ["get"]});
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let subject = json!({"kind": "ServiceAccount", "name": "millrace", "namespace": "kube-system"});
    kube.put_all([
        json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]}),
        json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "subjects": [subject],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": NAME},
        }),
    ])
}

#[test]
fn the_wait_for_a_daemonset_ends_when_it_is_ready_on_each_node() -> Result<()> {
    let cluster = shared();
    let server = cluster.api_server()?;
    let node = cluster.bed().node(UNSERVED)?.namespace();
    let log = cluster.bed().directory().join("wait.log");
    let kubeconfig = server.kubeconfig().display().to_string();
    let wait_for = format!("default/{NAME}");
    let arguments = ["cleanup", "--wait-for", &wait_for, "--kubeconfig", &kubeconfig].map(str::to_owned);
    let wait = Process::start(node, binary()?, arguments.to_vec(), &log)?;
    let said = |words: &str| {
        let is_said = || Ok(fs::read_to_string(&log)?.contains(words));
        cluster.proxy(1)?.wait_until(words, is_said).context(fs::read_to_string(&log)?)
    };
    said(
        "default/millrace-cleanup: the API server does not tell: daemonsets.apps \"millrace-cleanup\" is forbidden",
    )?;
    grant(server.kube())?;
    said("daemonsets.apps \"millrace-cleanup\" not found")?;
    put_daemonset(server.kube(), Value::Null)?;
    said("default/millrace-cleanup: no controller has seen it")?;
    put_daemonset(server.kube(), ready(1))?;
    said("default/millrace-cleanup: ready on 1 of 2 nodes")?;
    assert!(wait.is_running());
    put_daemonset(server.kube(), ready(2))?;
    assert!(wait.wait()?.success());
    server.kube().delete("apps/v1", "DaemonSet", "default", NAME)
}
