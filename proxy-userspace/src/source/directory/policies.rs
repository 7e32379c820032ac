//! Reads the objects that NetworkPolicies depend on from manifests, once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde::de::DeserializeOwned;
use serde_norway::Value;

use super::manifest::{documents, join, read, text};
use super::tree::Tree;
use crate::model::{Severity, parse_address};
use crate::policy::{Change, Object, ObjectKey, Problem};

/// The objects in the manifests of a directory.
#[derive(Debug, Default)]
pub struct PolicyObjects {
    /// The Namespaces, pods and NetworkPolicies, each once.
    pub changes: Vec<Change>,
    /// The addresses of each Node.
    pub nodes: BTreeMap<String, BTreeSet<IpAddr>>,
    /// The files and objects that can't be read. Without them, no answer holds.
    pub unread: Vec<Problem>,
    /// The objects that come twice.
    pub problems: Vec<Problem>,
}

/// Reads the `.yaml`, `.yml` and `.json` files at or below a directory.
///
/// Objects of other kinds are passed over. Of several copies of an object, that in the first file by name
/// counts. A policy with a field that the API does not have counts as unread: the field may be a `from` that is spelled
/// wrong, without which the rule allows everyone. Fails if the directory itself can't be read.
pub fn read_policies(directory: &Path) -> io::Result<PolicyObjects> {
    let found = Tree::default().walk(directory, directory)?;
    let mut reader = Reader::default();
    for (folder, error) in found.unread {
        reader.refuse(&folder.into(), "", format!("can't be read: {error}"));
    }
    let files: BTreeSet<Arc<Path>> = found.files.into_iter().map(Into::into).collect();
    for file in &files {
        reader.read_file(file);
    }
    Ok(reader.found)
}

#[derive(Default)]
struct Reader {
    found: PolicyObjects,
    /// The file with the copy that counts.
    files: BTreeMap<ObjectKey, Arc<Path>>,
    /// The same of Nodes.
    node_files: BTreeMap<String, Arc<Path>>,
}

/// The type in a typed list such as `PodList`, which its items don't repeat.
#[derive(Clone, Copy)]
struct ItemType<'a> {
    version: &'a str,
    kind: &'a str,
}

impl Reader {
    fn read_file(&mut self, file: &Arc<Path>) {
        let text = read(file).map_err(|error| format!("can't be read: {error}"));
        match text.and_then(|text| documents(file, &text)) {
            Ok(documents) => {
                let several = documents.len() > 1;
                for (index, document) in documents.into_iter().enumerate() {
                    let place = if several { format!("document {}", index + 1) } else { String::new() };
                    self.read(file, document, &place, None);
                }
            }
            Err(message) => self.refuse(file, "", message),
        }
    }

    fn read(&mut self, file: &Arc<Path>, mut value: Value, place: &str, item: Option<ItemType<'_>>) {
        let version =
            text(&value, "apiVersion").or(item.map(|item| item.version)).unwrap_or_default().to_owned();
        let kind = text(&value, "kind").or(item.map(|item| item.kind)).unwrap_or_default().to_owned();
        match (version.as_str(), kind.as_str()) {
            ("v1", "Namespace") => self.decode(file, value, place, |one| Object::Namespace(Box::new(one))),
            ("v1", "Pod") => self.decode(file, value, place, |one| Object::Pod(Box::new(one))),
            ("networking.k8s.io/v1", "NetworkPolicy") => self.decode_policy(file, value, place),
            (_, "NetworkPolicy") => {
                let message =
                    format!("{version:?} is not the version of a NetworkPolicy; takes networking.k8s.io/v1");
                self.refuse(file, &join(place, "apiVersion"), message);
            }
            ("v1", "Node") => {
                if let Some(node) = self.parse::<Node>(file, value, place) {
                    self.add_node(file, &node);
                }
            }
            (_, "") => {
                self.refuse(file, &join(place, "kind"), "not set; takes the kind of the object".to_owned());
            }
            (_, list) => {
                let items = value.get_mut("items").map(std::mem::take);
                let (Some(kind), Some(Value::Sequence(items))) = (list.strip_suffix("List"), items) else {
                    return;
                };
                let item = ItemType { version: &version, kind };
                for (index, value) in items.into_iter().enumerate() {
                    let place = join(place, &format!("items[{index}]"));
                    self.read(file, value, &place, (!kind.is_empty()).then_some(item));
                }
            }
        }
    }

    fn decode_policy(&mut self, file: &Arc<Path>, value: Value, place: &str) {
        let given = value.get("spec").cloned().unwrap_or_default();
        let name = value.get("metadata").and_then(|metadata| text(metadata, "name")).unwrap_or_default();
        let place_of_fields = join(place, name);
        let Some(policy) = self.parse::<NetworkPolicy>(file, value, place) else { return };
        let kept = serde_norway::to_value(&policy.spec).unwrap_or_default();
        match unknown_field(&given, &kept, "spec") {
            Some(field) => {
                let message = "is not a field of a NetworkPolicy".to_owned();
                self.refuse(file, &join(&place_of_fields, &field), message);
            }
            None => self.add(file, Object::NetworkPolicy(Box::new(policy))),
        }
    }

    fn decode<T: DeserializeOwned>(
        &mut self,
        file: &Arc<Path>,
        value: Value,
        place: &str,
        wrap: impl Fn(T) -> Object,
    ) {
        if let Some(object) = self.parse(file, value, place).map(wrap) {
            self.add(file, object);
        }
    }

    fn add(&mut self, file: &Arc<Path>, object: Object) {
        let key = object.key();
        if let Some(first) = self.files.get(&key) {
            let problem = warning(file, Some(key), String::new(), copy_of(first));
            self.found.problems.push(problem);
            return;
        }
        self.files.insert(key, file.clone());
        self.found.changes.push(Change::Upsert { object, file: Some(file.clone()) });
    }

    /// Parses an object with a name.
    fn parse<T: DeserializeOwned>(&mut self, file: &Arc<Path>, value: Value, place: &str) -> Option<T> {
        let name = value.get("metadata").and_then(|metadata| text(metadata, "name")).unwrap_or_default();
        if name.is_empty() {
            self.refuse(
                file,
                &join(place, "metadata.name"),
                "not set; takes the name of the object".to_owned(),
            );
            return None;
        }
        let place = join(place, name);
        match serde_path_to_error::deserialize::<_, T>(value) {
            Ok(object) => Some(object),
            Err(error) => {
                let field = join(&place, &error.path().to_string());
                self.refuse(file, &field, error.into_inner().to_string());
                None
            }
        }
    }

    fn add_node(&mut self, file: &Arc<Path>, node: &Node) {
        let name = node.metadata.name.clone().unwrap_or_default();
        if let Some(first) = self.node_files.get(&name) {
            let problem = warning(file, None, format!("Node {name}"), copy_of(first));
            self.found.problems.push(problem);
            return;
        }
        self.node_files.insert(name.clone(), file.clone());
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        // Host names are among them.
        let addresses = addresses.filter_map(|address| parse_address(&address.address)).collect();
        self.found.nodes.insert(name, addresses);
    }

    fn refuse(&mut self, file: &Arc<Path>, field: &str, message: String) {
        self.found.unread.push(warning(file, None, field.to_owned(), message));
    }
}

fn copy_of(first: &Path) -> String {
    format!("is in {}, too, which comes first; this copy is ignored", first.display())
}

/// Returns the path of a field that was given and that reading has not kept.
pub(super) fn unknown_field(given: &Value, kept: &Value, place: &str) -> Option<String> {
    match given {
        // A null is as good as nothing.
        Value::Mapping(given) => {
            given.iter().filter(|(_, value)| !value.is_null()).find_map(|(name, value)| {
                let place = format!("{place}.{}", name.as_str().unwrap_or("?"));
                match kept.get(name) {
                    Some(kept) => unknown_field(value, kept, &place),
                    None => Some(place),
                }
            })
        }
        Value::Sequence(given) => given.iter().enumerate().find_map(|(index, value)| {
            unknown_field(value, kept.get(index).unwrap_or(&Value::Null), &format!("{place}[{index}]"))
        }),
        _ => None,
    }
}

fn warning(file: &Arc<Path>, object: Option<ObjectKey>, field: String, message: String) -> Problem {
    Problem { file: Some(file.clone()), object, field, message, severity: Severity::Warning }
}

#[cfg(test)]
#[path = "policies_tests.rs"]
mod tests;
