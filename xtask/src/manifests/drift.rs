//! The chart with the values of a distribution, and the kustomize folder for it, have the same objects.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::render::{BASE, Renderer, at, objects};

/// The chart's own labels.
const LABELS: [&str; 4] = [
    "helm.sh/chart",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "app.kubernetes.io/instance",
];
/// The ConfigMap from which the kustomize folders have the API server's address; the chart has variables.
const ADDRESS: &str = "millrace-api-server";
const AGENT: &str = "/spec/template/spec/containers/0";
/// The labels by which the controllers of a Deployment avoid each other.
const CONTROLLERS: &str = "/spec/template/spec/affinity/podAntiAffinity/\
                           preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm/labelSelector/matchLabels";
const SET_UP: &str = "/spec/template/spec/initContainers/0";

pub fn check(renderer: &Renderer<'_>) -> Result<()> {
    let folder = |name: &str| renderer.workspace.root.join("manifests").join(name);
    let base = renderer.build(&folder("base"))?;
    same("base", &renderer.template_with("k8sServiceHost=192.0.2.10")?, &base, Addresses::Left)?;
    for name in ["kubeadm", "k3s", "kind"] {
        let chart = renderer.template(&renderer.values_of(name))?;
        let overlay = renderer.build(&folder("overlays").join(name))?;
        same(name, &chart, &overlay, Addresses::Compared)?;
    }
    let chart = renderer.template(&renderer.values_of("beside-kube-proxy"))?;
    let composed = renderer.compose(BASE, "beside-kube-proxy")?;
    same("beside-kube-proxy", &chart, &composed, Addresses::Left)?;
    let chart = renderer.template_with("k8sServiceHost=192.0.2.10,networkPolicy.enabled=true")?;
    let composed = renderer.compose(BASE, "network-policy")?;
    same("network-policy", &chart, &composed, Addresses::Left)?;
    let chart = renderer.template(&renderer.values_of("kind"))?;
    same("cleanup", &chart, &renderer.build(&folder("cleanup"))?, Addresses::Left)?;
    let chart = renderer.template_with("k8sServiceHost=192.0.2.10,serviceLB.enabled=true")?;
    same("controller", &chart, &renderer.build(&folder("controller"))?, Addresses::Left)
}

/// Whether the two have the same address of the API server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Addresses {
    Compared,
    /// The folder has none.
    Left,
}

/// Fails unless the chart has each object of the folder, and the agents have the same address.
fn same(name: &str, chart: &str, folder: &str, addresses: Addresses) -> Result<()> {
    let (chart, folder) = (objects(chart)?, objects(folder)?);
    if addresses == Addresses::Compared && address(&chart) != address(&folder) {
        bail!("{name}: the chart has the address {:?}, the folder {:?}", address(&chart), address(&folder));
    }
    for object in folder.iter().filter(|object| at(object, "/kind") != "ConfigMap") {
        let is_it = |other: &&Value| {
            at(other, "/kind") == at(object, "/kind")
                && at(other, "/metadata/name") == at(object, "/metadata/name")
        };
        let label = format!("{name}: {} {}", at(object, "/kind"), at(object, "/metadata/name"));
        let other = chart.iter().find(is_it).with_context(|| format!("{label}: the chart has none"))?;
        if let Some((path, ours, theirs)) = difference("", &plain(other), &plain(object)) {
            bail!("{label}: {path} is {ours} in the chart, and {theirs} in the folder");
        }
    }
    Ok(())
}

/// Returns the API server's host and port that the agent gets.
fn address(objects: &[Value]) -> [Option<String>; 2] {
    let agent = objects
        .iter()
        .find(|object| at(object, "/kind") == "DaemonSet" && at(object, "/metadata/name") == "millrace");
    let env = agent.and_then(|agent| agent.pointer(AGENT)?.get("env")?.as_array());
    let map = objects.iter().find(|object| {
        at(object, "/kind") == "ConfigMap"
            && at(object, "/metadata/name").as_str().is_some_and(|name| name.starts_with(ADDRESS))
    });
    ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"].map(|name| {
        let variable = env.into_iter().flatten().find(|variable| at(variable, "/name") == name);
        let value = variable
            .map(|variable| at(variable, "/value"))
            .or_else(|| map.map(|map| at(map, &format!("/data/{name}"))));
        value.and_then(Value::as_str).map(str::to_owned)
    })
}

/// Returns an object without what differs on purpose: the chart's labels, the address of the API server, and the
/// set-up's flags, of which the chart passes all.
fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    let places =
        ["/metadata/labels", "/spec/selector/matchLabels", "/spec/template/metadata/labels", CONTROLLERS];
    for labels in places {
        if let Some(labels) = object.pointer_mut(labels).and_then(Value::as_object_mut) {
            labels.retain(|name, _| !LABELS.contains(&name.as_str()));
        }
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !name.starts_with("helm.sh/hook"));
    }
    if let Some(agent) = object.pointer_mut(AGENT).and_then(Value::as_object_mut) {
        agent.remove("envFrom");
        if let Some(env) = agent.get_mut("env").and_then(Value::as_array_mut) {
            env.retain(|variable| {
                !at(variable, "/name").as_str().is_some_and(|name| name.starts_with("KUBERNETES_"))
            });
        }
    }
    if at(&object, SET_UP).get("name").is_some_and(|name| name == "set-up")
        && let Some(args) = object.pointer_mut(&format!("{SET_UP}/args"))
    {
        *args = Value::Null;
    }
    without_empty(object)
}

/// Removes nulls, empty lists and empty objects, which mean the same as nothing.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, field)| (name, without_empty(field)));
            let is_there =
                |(_, field): &(String, Value)| !field.is_null() && field != &json!({}) && field != &json!([]);
            Value::Object(fields.filter(is_there).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_empty).collect()),
        other => other,
    }
}

/// Returns the first place where two values differ, and both contents.
fn difference(path: &str, left: &Value, right: &Value) -> Option<(String, String, String)> {
    let (left_fields, right_fields) = (left.as_object(), right.as_object());
    if let (Some(left), Some(right)) = (left_fields, right_fields) {
        let names = left.keys().chain(right.keys());
        let field =
            |fields: &Map<String, Value>, name: &str| fields.get(name).cloned().unwrap_or(Value::Null);
        return names
            .into_iter()
            .find_map(|name| difference(&format!("{path}.{name}"), &field(left, name), &field(right, name)));
    }
    if let (Some(left), Some(right)) = (left.as_array(), right.as_array())
        && left.len() == right.len()
    {
        let pairs = left.iter().zip(right).enumerate();
        return pairs
            .into_iter()
            .find_map(|(index, (left, right))| difference(&format!("{path}[{index}]"), left, right));
    }
    (left != right).then(|| (path.trim_start_matches('.').to_owned(), left.to_string(), right.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "
kind: DaemonSet
metadata: {name: millrace}
spec: {template: {spec: {containers: [{name: agent, args: [agent], envFrom: [{configMapRef: {name: x}}]}]}}}
---
kind: ConfigMap
metadata: {name: millrace-api-server-abc}
data: {KUBERNETES_SERVICE_HOST: 192.0.2.10, KUBERNETES_SERVICE_PORT: \"6443\"}
";

    fn chart(args: &str, host: &str) -> String {
        format!(
            "
kind: DaemonSet
metadata: {{name: millrace, labels: {{helm.sh/chart: millrace-1}}}}
spec: {{template: {{spec: {{containers: [{{name: agent, args: {args}, env: [
  {{name: KUBERNETES_SERVICE_HOST, value: {host}}}, {{name: KUBERNETES_SERVICE_PORT, value: \"6443\"}}]}}]}}}}}}
"
        )
    }

    #[test]
    fn the_first_difference_is_named_with_both_contents() {
        same("x", &chart("[agent]", "192.0.2.10"), FOLDER, Addresses::Compared).unwrap();
        let other =
            same("x", &chart("[agent, --xdp=off]", "192.0.2.10"), FOLDER, Addresses::Left).unwrap_err();
        let place = "x: \"DaemonSet\" \"millrace\": spec.template.spec.containers[0].args is ";
        assert!(other.to_string().starts_with(place), "{other}");
        let other = same("x", &chart("[agent]", "192.0.2.11"), FOLDER, Addresses::Compared).unwrap_err();
        assert!(other.to_string().contains("192.0.2.11"), "{other}");
        same("x", "", FOLDER, Addresses::Left).unwrap_err();
    }
}
