//! Parses the text of one file into objects.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_norway::Value;

use super::depth;
use super::kinds::{Broken, Manifests};
use crate::model::Severity;
use crate::source::feed::Fault;

/// The largest file, in bytes. A Service with its slices takes a few kilobytes, so a larger file is
/// a mistake.
const LARGEST_FILE: u64 = 256 << 20;
/// Returns the bytes of a file, unless it is too large.
pub(super) fn read(file: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(file)?;
    if file.metadata()?.len() > LARGEST_FILE {
        return Err(io::Error::other(format!("it is larger than {} MiB", LARGEST_FILE >> 20)));
    }
    let mut text = Vec::new();
    // The file may grow during the read. The rest is read when its writer closes it.
    file.take(LARGEST_FILE).read_to_end(&mut text)?;
    Ok(text)
}

/// The contents of a file.
#[derive(Debug)]
pub(super) struct Manifest<F: Manifests> {
    /// The objects in their order. The same object may come twice.
    pub objects: Vec<F::Object>,
    /// Objects that can't be read, and what takes their place if they never could.
    pub broken: BTreeMap<F::Key, Option<F::Object>>,
    /// Objects of other kinds, by apiVersion and kind.
    pub foreign: BTreeMap<String, Foreign>,
    /// The problems, by object.
    pub problems: Vec<F::Problem>,
}

// The derived one would ask for more.
impl<F: Manifests> Default for Manifest<F> {
    fn default() -> Self {
        Self { objects: Vec::new(), broken: BTreeMap::new(), foreign: BTreeMap::new(), problems: Vec::new() }
    }
}

/// Objects of one kind that is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    pub count: usize,
    /// The name of the first one.
    pub name: String,
    /// The place of the first one in its file, with the field that names the kind.
    pub place: String,
}

/// Parses a file of YAML documents, or of JSON if its name says so.
///
/// An unreadable object leaves the others alone. Text that is no YAML at all is one message for the
/// whole file.
pub(super) fn parse<F: Manifests>(file: &Arc<Path>, text: &[u8]) -> Result<Manifest<F>, String> {
    let documents = documents(file, text)?;
    let several = documents.len() > 1;
    let mut reader = Reader { file, manifest: Manifest::default() };
    for (index, document) in documents.into_iter().enumerate() {
        let place = if several { format!("document {}", index + 1) } else { String::new() };
        if !document.is_null() {
            reader.read(document, &place, None);
        }
    }
    Ok(reader.manifest)
}

/// Returns the documents of a file. The error is for the whole file.
pub(super) fn documents(file: &Path, text: &[u8]) -> Result<Vec<Value>, String> {
    // Some editors put a byte order mark before UTF-8.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if file.extension().is_some_and(|extension| extension == "json") {
        let values = serde_json::Deserializer::from_slice(text).into_iter();
        return values.collect::<Result<_, _>>().map_err(|error| format!("is not JSON: {error}"));
    }
    if depth::is_too_deep(text) {
        return Err(format!("nests more than {} brackets; no object does", depth::DEEPEST));
    }
    let documents = serde_norway::Deserializer::from_slice(text).map(Value::deserialize);
    documents.collect::<Result<_, _>>().map_err(|error| format!("is not YAML: {error}"))
}

struct Reader<'a, F: Manifests> {
    file: &'a Arc<Path>,
    manifest: Manifest<F>,
}

/// The type in a typed list such as `ServiceList`, which its items don't repeat.
#[derive(Clone, Copy)]
struct ItemType<'a> {
    version: &'a str,
    kind: &'a str,
}

impl<F: Manifests> Reader<'_, F> {
    fn read(&mut self, value: Value, place: &str, item: Option<ItemType<'_>>) {
        let version =
            text(&value, "apiVersion").or(item.map(|item| item.version)).unwrap_or_default().to_owned();
        let kind = text(&value, "kind").or(item.map(|item| item.kind)).unwrap_or_default().to_owned();
        match (version.as_str(), kind.as_str()) {
            (_, "") => self.refuse(place, "kind", format!("not set; {}", F::TAKES)),
            (version, name) if let Some(kind) = F::kind(version, name) => {
                self.decode(kind, version, value, place);
            }
            (_, list) if list.ends_with("List") && value.get("items").is_some() => {
                let kind = list.strip_suffix("List").unwrap_or_default();
                let item = ItemType { version: &version, kind };
                self.read_items(value, place, (!kind.is_empty()).then_some(item));
            }
            _ => {
                let foreign = self.manifest.foreign.entry(format!("{version} {kind}"));
                let name = value.get("metadata").and_then(|metadata| text(metadata, "name"));
                let (name, place) = (name.unwrap_or_default().to_owned(), join(place, "kind"));
                foreign.or_insert(Foreign { count: 0, name, place }).count += 1;
            }
        }
    }

    fn read_items(&mut self, mut list: Value, place: &str, item: Option<ItemType<'_>>) {
        let Some(Value::Sequence(items)) = list.get_mut("items").map(std::mem::take) else {
            return self.refuse(place, "items", "is no list; takes a list of objects".to_owned());
        };
        for (index, value) in items.into_iter().enumerate() {
            self.read(value, &join(place, &format!("items[{index}]")), item);
        }
    }

    fn decode(&mut self, kind: F::Kind, version: &str, value: Value, place: &str) {
        let Some(key) = key::<F>(kind, &value) else {
            return self.refuse(place, "metadata.name", format!("not set; a {kind} has a name"));
        };
        match F::decode(kind, version, value) {
            Ok(object) => self.manifest.objects.push(object),
            Err(Broken { field, message, stand_in }) => {
                self.manifest.broken.insert(key.clone(), stand_in);
                self.report(Some(key), field, message);
            }
        }
    }

    fn refuse(&mut self, place: &str, field: &str, message: String) {
        self.report(None, join(place, field), message);
    }

    fn report(&mut self, object: Option<F::Key>, field: String, message: String) {
        let file = Some(self.file.clone());
        let fault = Fault { file, object, field, message, severity: Severity::Warning };
        self.manifest.problems.push(F::problem(fault));
    }
}

/// Returns the key of an object whose other fields may be unreadable.
fn key<F: Manifests>(kind: F::Kind, value: &Value) -> Option<F::Key> {
    let metadata = value.get("metadata")?;
    let name = text(metadata, "name").filter(|name| !name.is_empty())?.to_owned();
    let namespace = text(metadata, "namespace").map(str::to_owned);
    Some(F::key(kind, &ObjectMeta { name: Some(name), namespace, ..ObjectMeta::default() }))
}

/// Returns the text in a field.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str)
}

/// Returns a field with the place of its object in the file.
pub(super) fn join(place: &str, field: &str) -> String {
    if place.is_empty() { field.to_owned() } else { format!("{place}: {field}") }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
