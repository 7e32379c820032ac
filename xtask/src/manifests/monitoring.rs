//! The rules, by promtool, and the objects for Prometheus' operator and Grafana in the chart.

use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::render::{Renderer, at, objects};
use crate::command;

const FOLDER: &str = "manifests/monitoring";
const RULES: &str = "rules.yaml";
const TESTS: &str = "rules-tests.yaml";
const DASHBOARD: &str = "grafana-millrace.json";

/// Checks the rules' language, and runs their tests.
pub fn rules(renderer: &Renderer<'_>) -> Result<()> {
    let folder = renderer.workspace.root.join(FOLDER);
    for (verb, file) in [("check", RULES), ("test", TESTS)] {
        let mut promtool = renderer.workspace.command(renderer.prometheus.join("promtool"));
        command::output(promtool.args([verb, "rules", file]).current_dir(&folder))?;
    }
    Ok(())
}

/// Checks what Kubernetes' schemas do not know: that the monitor selects the agents' pods and a port of theirs, and
/// gives the labels that the rules name.
pub fn chart(renderer: &Renderer<'_>) -> Result<()> {
    let objects = objects(&renderer.template(&renderer.values_of("everything"))?)?;
    let find = |kind: &str, name: &str| {
        let is_it = |object: &&Value| at(object, "/kind") == kind && at(object, "/metadata/name") == name;
        objects.iter().find(is_it).with_context(|| format!("the chart has no {kind} {name}"))
    };
    monitor_finds_agents(find("PodMonitor", "millrace")?, find("DaemonSet", "millrace")?)?;

    let shipped = |file: &str| fs::read_to_string(renderer.workspace.root.join(FOLDER).join(file));
    let rules: Value = serde_norway::from_str(&shipped(RULES)?)?;
    if at(find("PrometheusRule", "millrace")?, "/spec") != &rules {
        bail!("the chart's PrometheusRule is not {RULES}");
    }
    let map = find("ConfigMap", "millrace-dashboard")?;
    let text = at(map, &format!("/data/{DASHBOARD}")).as_str().unwrap_or_default();
    let dashboard = serde_json::from_str::<Value>(text).context("the chart's dashboard is no JSON")?;
    if dashboard != serde_json::from_str::<Value>(&shipped(DASHBOARD)?)? {
        bail!("the chart's dashboard is not {DASHBOARD}");
    }
    Ok(())
}

fn monitor_finds_agents(monitor: &Value, agents: &Value) -> Result<()> {
    let labels = at(agents, "/spec/template/metadata/labels");
    let selector = at(monitor, "/spec/selector/matchLabels").as_object().context("no selector")?;
    if let Some((name, value)) = selector.iter().find(|(name, value)| labels.get(*name) != Some(value)) {
        bail!("the agents' pods have no label {name}={value}");
    }
    let endpoint = at(monitor, "/spec/podMetricsEndpoints/0");
    let ports = at(agents, "/spec/template/spec/containers/0/ports").as_array();
    if !ports.into_iter().flatten().any(|port| at(port, "/name") == at(endpoint, "/port")) {
        bail!("the agents' pods have no port {}", at(endpoint, "/port"));
    }
    for (object, pointer, value) in [
        (monitor, "/spec/jobLabel", Value::from("app.kubernetes.io/name")),
        (endpoint, "/honorLabels", Value::from(true)),
        (endpoint, "/relabelings/0/targetLabel", Value::from("node")),
    ] {
        if at(object, pointer) != &value {
            bail!(
                "{pointer} of the PodMonitor is {}, not {value}: the rules rely on it",
                at(object, pointer)
            );
        }
    }
    Ok(())
}
