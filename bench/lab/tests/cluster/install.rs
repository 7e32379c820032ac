//! The agent as it is installed: readiness and rights.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::kubernetes::{Cluster, Kubectl, Proxy, wait};
use serde_json::{Value, json};

use super::clients::{Client, Protocol};
use super::fixture::{CHANGE_LIMIT, NODES, Service, assets, proxy, shared};
use super::objects::{clients, service};

const AGENT: &str = "--as=system:serviceaccount:kube-system:millrace";
const UPDATE_LIMIT: Duration = Duration::from_mins(2);

#[test]
fn the_agents_may_read_what_they_serve_and_nothing_else() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    let kubectl = cluster.kubectl();
    let may = |verb: &str, what: &str| kubectl.run(&["auth", "can-i", verb, what, AGENT, "-A"]).is_ok();
    for what in ["services", "nodes", "endpointslices.discovery.k8s.io"] {
        assert!(may("list", what) && may("watch", what), "{what}");
    }
    for (verb, what) in [("get", "secrets"), ("list", "pods"), ("update", "services"), ("patch", "nodes")] {
        assert!(!may(verb, what), "{verb} {what}");
    }
}

#[test]
fn an_agent_that_cannot_serve_is_not_ready_and_stops_the_update_at_one_node() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    let kubectl = cluster.kubectl();
    // No API server is there. The agent runs, and is not ready.
    let environment = json!([{"name": "KUBERNETES_SERVICE_PORT", "value": "6444"}]);
    let patch =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "agent", "env": environment}]}}}});
    // Agents that are not yet available would all be replaced at once.
    wait_for_agents(&kubectl).unwrap();
    kubectl.run(&["-n", "kube-system", "patch", "daemonset/millrace", "-p", &patch.to_string()]).unwrap();
    let status = wait("the update's first node", UPDATE_LIMIT, || stopped(&kubectl));
    let reason =
        wait("the reason", UPDATE_LIMIT, || described(&kubectl, "Unhealthy", "this node is not ready"));
    roll_agents(&kubectl, "undo").unwrap();
    assert_eq!(status.unwrap()["numberUnavailable"], 1);
    let reason = reason.unwrap();
    assert!(reason.contains("source-listed") && reason.contains("6444"), "{reason}");
}

#[test]
fn a_path_that_no_node_has_stops_the_update_at_one_node() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    let kubectl = cluster.kubectl();
    wait_for_agents(&kubectl).unwrap();
    let upgraded = upgrade(&cluster, "--set hostPaths.cgroup=/run/no-cgroup");
    let reason = wait("the reason", UPDATE_LIMIT, || described(&kubectl, "FailedMount", "no-cgroup"));
    let agents = agents(&kubectl);
    cluster.install_millrace(&assets().unwrap()).unwrap();
    wait_for_agents(&kubectl).unwrap();
    upgraded.unwrap();
    assert!(reason.unwrap().contains("/run/no-cgroup is not a directory"));
    let ready = agents.unwrap().iter().filter(|pod| is_ready(pod)).count();
    assert_eq!(ready, usize::from(NODES) - 1, "agents serve on the other nodes");
}

#[test]
fn a_second_proxy_is_refused_while_kube_proxy_runs() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    let kubectl = cluster.kubectl();
    // The chart asks for the DaemonSet. What runs in it makes no difference.
    let mut object = clients()[0].clone();
    object["metadata"] = json!({"name": "kube-proxy", "namespace": "kube-system"});
    kubectl.apply(&[object]).unwrap();
    let is_there = wait("the DaemonSet", UPDATE_LIMIT, || {
        let found = kubectl.json(&["--namespace", "kube-system", "get", "daemonset", "kube-proxy"])?;
        ensure!(found["status"]["desiredNumberScheduled"] == NODES, "{}", found["status"]);
        Ok(())
    });
    let upgraded = cluster.install_millrace(&assets().unwrap());
    kubectl.run(&["--namespace", "kube-system", "delete", "daemonset", "kube-proxy"]).unwrap();
    is_there.unwrap();
    let refusal = upgraded.unwrap_err().to_string();
    assert!(refusal.contains("kube-proxy runs on 3 nodes, and two proxies would serve"), "{refusal}");
}

#[test]
fn the_variant_with_nft_serves_by_ebpf_too() {
    if proxy() != Proxy::Millrace || std::env::var_os("MILLRACE_LONG").is_none() {
        return;
    }
    let cluster = shared();
    let kubectl = cluster.kubectl();
    let object = service("variant", "web", json!({}));
    let service = Service::put(&kubectl, object, &[]).unwrap();
    let target = SocketAddr::new(service.cluster_ips()[0].parse().unwrap(), 80);
    let exec = |words: &[&str]| {
        let agent: &[&str] = &["--namespace", "kube-system", "exec", "daemonset/millrace", "--"];
        kubectl.run(&[agent, words].concat())
    };
    exec(&["nft", "--version"]).unwrap_err();
    let upgraded = upgrade(&cluster, concat!("--set image.tag=", env!("CARGO_PKG_VERSION"), "-ipvs"));
    let ready = wait_for_agents(&kubectl);
    let version = exec(&["nft", "--version"]);
    let status = exec(&["millrace", "status"]);
    let client = Client::in_pod(&cluster, 1).unwrap();
    let answer = wait("an answer", CHANGE_LIMIT, || client.ask(Protocol::Http, target, "hostname"));
    cluster.install_millrace(&assets().unwrap()).unwrap();
    wait_for_agents(&kubectl).unwrap();
    upgraded.unwrap();
    ready.unwrap();
    assert!(version.unwrap().starts_with("nftables v"));
    assert!(status.unwrap().contains("nothing"), "a condition fails");
    answer.unwrap();
}

/// Sets values of the chart, beside those of the release.
pub fn upgrade(cluster: &Cluster, values: &str) -> Result<()> {
    let script = format!(
        "helm upgrade millrace manifests/charts/millrace --namespace kube-system --reuse-values {values}"
    );
    let upgraded = cluster.shell(&script, &assets()?).output().context("can't run helm")?;
    ensure!(upgraded.status.success(), "helm: {}", String::from_utf8_lossy(&upgraded.stderr));
    Ok(())
}

/// Returns the line of `kubectl describe` about an agent that is not ready with these two texts.
fn described(kubectl: &Kubectl, kind: &str, text: &str) -> Result<String> {
    let pods = agents(kubectl)?;
    let waiting = pods.iter().find(|pod| !is_ready(pod));
    let name = waiting.and_then(|pod| pod["metadata"]["name"].as_str()).context("all agents are ready")?;
    // For several pods, kubectl leaves the Events out.
    let lines = kubectl.run(&["--namespace", "kube-system", "describe", "pod", name])?;
    let line = lines.lines().find(|line| line.contains(kind) && line.contains(text));
    Ok(line.context("no event says why")?.trim().to_owned())
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["ready"] == true
}

/// Returns the agents' pods.
fn agents(kubectl: &Kubectl) -> Result<Vec<Value>> {
    let label = "app.kubernetes.io/name=millrace";
    let pods = kubectl.json(&["--namespace", "kube-system", "get", "pods", "--selector", label])?;
    Ok(pods["items"].as_array().cloned().unwrap_or_default())
}

/// Rolls the agents out anew, by `restart` or `undo`, and waits for them.
pub fn roll_agents(kubectl: &Kubectl, how: &str) -> Result<()> {
    kubectl.run(&["-n", "kube-system", "rollout", how, "daemonset/millrace"])?;
    wait_for_agents(kubectl)
}

/// Waits until all agents are of the newest version, and have been ready for as long as an update asks.
pub fn wait_for_agents(kubectl: &Kubectl) -> Result<()> {
    kubectl.run(&["-n", "kube-system", "rollout", "status", "daemonset/millrace", "--timeout=180s"]).map(drop)
}

/// Returns the status of the DaemonSet when one new agent runs and is not ready.
fn stopped(kubectl: &Kubectl) -> Result<Value> {
    let found = kubectl.json(&["--namespace", "kube-system", "get", "daemonset", "millrace"])?;
    let status = &found["status"];
    ensure!(status["observedGeneration"] == found["metadata"]["generation"], "not yet observed");
    ensure!(status["updatedNumberScheduled"] == 1, "{status}");
    ensure!(status["numberReady"] == NODES - 1, "{status}");
    let pods = agents(kubectl)?;
    let is_waiting = |pod: &&Value| pod["status"]["phase"] == "Running" && !is_ready(pod);
    ensure!(pods.iter().filter(is_waiting).count() == 1, "no agent runs without being ready");
    Ok(status.clone())
}
