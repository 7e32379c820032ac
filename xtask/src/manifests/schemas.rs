//! JSON schemas of Kubernetes' kinds, from the OpenAPI document in the sources of the release that the API server
//! tests use. Go has them in its module cache.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::render::at;
use crate::setup::KUBERNETES;
use crate::workspace::Workspace;

const PREFIX: &str = "#/definitions/";
/// Definitions whose JSON is of more types than the document says.
const LOOSE: [(&str, &[&str]); 2] = [
    ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", &["string", "integer"]),
    ("io.k8s.apimachinery.pkg.api.resource.Quantity", &["string", "number"]),
];

/// Returns the folder in the cache with a schema for each kind, under the name by which kubeconform looks for it.
pub fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let folder = KUBERNETES.cached(workspace, "schemas")?;
    if !folder.join("daemonset-apps-v1.json").is_file() {
        let document = fs::read(KUBERNETES.source(workspace)?.join("api/openapi-spec/swagger.json"))?;
        write(&serde_json::from_slice(&document)?, &folder).context("can't write the schemas")?;
    }
    Ok(folder)
}

/// Writes the schemas of all kinds. The folder has its name only when it is complete.
fn write(document: &Value, folder: &Path) -> Result<()> {
    let definitions = strict(at(document, "/definitions").as_object().context("no definitions")?);
    let partial = folder.with_extension("partial");
    fs::create_dir_all(&partial)?;
    for (name, definition) in at(document, "/definitions").as_object().into_iter().flatten() {
        for kind in at(definition, "/x-kubernetes-group-version-kind").as_array().into_iter().flatten() {
            let schema = json!({
                "$ref": format!("{PREFIX}{name}"),
                "definitions": needed(&definitions, name),
            });
            fs::write(partial.join(file_name(kind)), serde_json::to_vec(&schema)?)?;
        }
    }
    Ok(fs::rename(partial, folder)?)
}

/// Returns kubeconform's name of a kind's schema: kind, first word of the group, version.
fn file_name(kind: &Value) -> String {
    let word = |key: &str| kind.get(key).and_then(Value::as_str).unwrap_or_default().to_lowercase();
    let group = word("group");
    let group = group.split('.').next().filter(|group| !group.is_empty());
    let group = group.map(|group| format!("-{group}")).unwrap_or_default();
    format!("{}{group}-{}.json", word("kind"), word("version"))
}

/// Returns the definitions with no room for unknown fields.
fn strict(definitions: &Map<String, Value>) -> Map<String, Value> {
    let mut strict = definitions.clone();
    for (name, definition) in &mut strict {
        if let Some((_, types)) = LOOSE.iter().find(|(loose, _)| loose == name) {
            *definition = json!({"type": types});
        } else if let Some(fields) = definition.as_object_mut()
            && fields.contains_key("properties")
        {
            fields.insert("additionalProperties".to_owned(), json!(false));
        }
        // `int-or-string` and its like are no formats of JSON schema.
        remove_formats(definition);
    }
    strict
}

fn remove_formats(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| name != "format" || !field.is_string());
            fields.values_mut().for_each(remove_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_formats),
        _ => {}
    }
}

/// Returns a definition with all that it refers to.
fn needed(definitions: &Map<String, Value>, name: &str) -> Map<String, Value> {
    let mut names = BTreeSet::from([name.to_owned()]);
    let mut waiting = vec![name.to_owned()];
    while let Some(next) = waiting.pop() {
        for found in definitions.get(&next).map(references).unwrap_or_default() {
            if names.insert(found.clone()) {
                waiting.push(found);
            }
        }
    }
    definitions
        .iter()
        .filter(|(name, _)| names.contains(*name))
        .map(|(n, d)| (n.clone(), d.clone()))
        .collect()
}

fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(PREFIX));
            own.map(str::to_owned).into_iter().chain(fields.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_has_what_its_kind_refers_to_and_no_room_for_unknown_fields() {
        let loose = LOOSE[0].0;
        let definitions = json!({
            "Kind": {"properties": {"spec": {"$ref": "#/definitions/Spec"}}},
            "Spec": {"properties": {"port": {"$ref": format!("#/definitions/{loose}")}, "own": {"$ref": "#/definitions/Spec"}}},
            loose: {"type": "string", "format": "int-or-string"},
            "Other": {"type": "object"},
        });
        let strict = strict(definitions.as_object().unwrap());
        let needed = needed(&strict, "Kind");
        assert_eq!(needed.keys().collect::<Vec<_>>(), ["Kind", "Spec", loose]);
        assert_eq!(needed["Spec"]["additionalProperties"], false);
        assert_eq!(needed[loose], json!({"type": ["string", "integer"]}));
    }

    #[test]
    fn kinds_have_the_file_names_that_kubeconform_looks_for() {
        let name =
            |group, version, kind| file_name(&json!({"group": group, "version": version, "kind": kind}));
        assert_eq!(name("", "v1", "ConfigMap"), "configmap-v1.json");
        assert_eq!(name("apps", "v1", "DaemonSet"), "daemonset-apps-v1.json");
        assert_eq!(name("rbac.authorization.k8s.io", "v1", "ClusterRole"), "clusterrole-rbac-v1.json");
    }
}
