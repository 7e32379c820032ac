//! `kubectl millrace diff`: in what the nodes differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Client;
use serde::Serialize;
use serde_json::Value;

use super::agents::{self, Agent};
use super::arguments::DiffFormat;
use super::error::KubectlError;
use super::merge::documents;
use crate::cli::{API_VERSION, CliError, Table, note, terminal_width};

/// The outputs that are compared.
const COMPARED: [&str; 3] = ["services", "maps", "version"];
/// The value of an object that a node does not have.
const ABSENT: &str = "absent";
/// Fields of a Service port that all nodes have alike. Counters and figures of a node's own endpoints are none.
const OF_PORT: [&str; 7] = [
    "addresses",
    "node_ports",
    "external_policy",
    "internal_policy",
    "forwarding",
    "algorithm",
    "affinity_seconds",
];

/// The differences of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    items: Vec<Difference>,
}

/// One field of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Difference {
    object: String,
    field: String,
    values: Vec<Held>,
}

/// A value, and the nodes that have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Held {
    value: String,
    nodes: Vec<String>,
}

/// What a node says, by object and field.
type Facts = BTreeMap<(String, String), String>;

/// Asks all nodes, and compares.
pub async fn run(client: &Client, agents: &[Agent], longest: Duration) -> Result<Differences, KubectlError> {
    let mut nodes: BTreeMap<String, Facts> = BTreeMap::new();
    for command in COMPARED {
        let words = [command, "-o", "json"].map(str::to_owned);
        let mut answers = agents::ask(client, agents, &words, longest).await;
        for (node, document) in documents(&mut answers) {
            nodes.entry(node).or_default().extend(facts(&document));
        }
        for answer in &answers {
            answer.complaints().for_each(|line| note(&format!("{}: {line}", answer.node)));
        }
    }
    Ok(compare(&nodes))
}

/// Returns what a document says that other nodes should say, too.
fn facts(document: &Value) -> Facts {
    let items = document.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    match text(document, "kind").as_str() {
        "ServiceList" => items.iter().flat_map(of_port).collect(),
        "MapList" => {
            items.iter().map(|map| fact(format!("map {}", text(map, "name")), "entries", map)).collect()
        }
        "Version" => {
            let version = document.pointer("/agent/version").map(shown).unwrap_or_default();
            let of_agent = (("agent".to_owned(), "version".to_owned()), version);
            [of_agent, fact("program".to_owned(), "layout_version", document)].into()
        }
        _ => Facts::new(),
    }
}

/// Returns the facts of a Service port. Of the lists, those with policy Cluster have the same endpoints everywhere.
fn of_port(port: &Value) -> Vec<((String, String), String)> {
    let object = format!("{}/{}:{}", text(port, "namespace"), text(port, "name"), text(port, "port"));
    let mut facts: Vec<_> = OF_PORT.iter().map(|field| fact(object.clone(), field, port)).collect();
    for list in port.get("lists").and_then(Value::as_array).into_iter().flatten() {
        let (family, kind) = (text(list, "family"), text(list, "list"));
        let mut add =
            |field: &str, value: String| facts.push(((object.clone(), format!("{family} {field}")), value));
        if kind == "Cluster" {
            add("endpoints", list.get("backends").map(shown).unwrap_or_default());
        }
        // A random list has slots by its history, a Maglev table by a flag.
        if text(list, "algorithm") == "maglev" {
            add(&format!("{kind} slots"), list.get("slots").map(shown).unwrap_or_default());
        }
        let frontends = list.get("frontends").and_then(Value::as_array).into_iter().flatten();
        let ranges: BTreeSet<String> = frontends
            .filter_map(|one| one.get("source_ranges").filter(|ranges| !ranges.is_null()))
            .map(shown)
            .collect();
        add(&format!("{kind} source ranges"), ranges.into_iter().collect::<Vec<_>>().join(" "));
    }
    facts
}

fn fact(object: String, field: &str, value: &Value) -> ((String, String), String) {
    ((object, field.to_owned()), value.get(field).map(shown).unwrap_or_default())
}

fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns a value in one line: a list without brackets, in order.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let mut items: Vec<String> = items.iter().map(shown).collect();
            items.sort();
            items.join(",")
        }
        other => other.to_string(),
    }
}

/// Returns the facts for which the nodes have more than one value.
fn compare(nodes: &BTreeMap<String, Facts>) -> Differences {
    let keys: BTreeSet<&(String, String)> = nodes.values().flat_map(BTreeMap::keys).collect();
    let mut items = Vec::new();
    for key in keys {
        let mut values: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (node, facts) in nodes {
            values.entry(facts.get(key).map_or(ABSENT, String::as_str)).or_default().push(node.clone());
        }
        if values.len() > 1 {
            let held = values.into_iter().map(|(value, nodes)| Held { value: value.to_owned(), nodes });
            items.push(Difference { object: key.0.clone(), field: key.1.clone(), values: held.collect() });
        }
    }
    // An object that a node lacks is one difference, not one for each of its fields.
    let mut lacking = BTreeSet::new();
    items.retain_mut(|one: &mut Difference| {
        let Some(place) = one.values.iter().position(|held| held.value == ABSENT) else { return true };
        let absent = one.values.remove(place);
        if one.values.len() > 1 {
            return true;
        }
        if !lacking.insert((one.object.clone(), absent.nodes.clone())) {
            return false;
        }
        "itself".clone_into(&mut one.field);
        for held in &mut one.values {
            "present".clone_into(&mut held.value);
        }
        one.values.insert(0, absent);
        true
    });
    Differences { items }
}

impl Differences {
    /// Whether all nodes agree.
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the output.
    pub fn text(&self, format: DiffFormat) -> Result<String, CliError> {
        if format == DiffFormat::Json {
            let list =
                serde_json::json!({"apiVersion": API_VERSION, "kind": "DifferenceList", "items": self.items});
            return Ok(serde_json::to_string_pretty(&list)? + "\n");
        }
        if self.is_empty() {
            return Ok("the nodes agree\n".to_owned());
        }
        let mut table = Table::new(&["OBJECT", "FIELD", "VALUE", "NODES"]);
        for one in &self.items {
            for held in &one.values {
                table.push([one.object.clone(), one.field.clone(), held.value.clone(), held.nodes.join(",")]);
            }
        }
        Ok(table.text(false, terminal_width()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn services(endpoints: &[&str], slots: u32, packets: u64) -> Value {
        let list = |kind: &str, backends: &[&str]| {
            json!({"family": "IPv4", "list": kind, "algorithm": "maglev", "slots": slots, "backends": backends,
                "frontends": [{"source_ranges": ["192.0.2.0/24"]}, {"source_ranges": null}]})
        };
        let lists = [list("Cluster", endpoints), list("Local", &endpoints[..1])];
        json!({"kind": "ServiceList", "items": [{"namespace": "shop", "name": "web", "port": "http",
            "addresses": ["203.0.113.1"], "forwarding": "dsr", "packets": packets, "lists": lists}]})
    }

    fn nodes(documents: &[(&str, Value)]) -> BTreeMap<String, Facts> {
        let mut nodes: BTreeMap<String, Facts> = BTreeMap::new();
        for (node, document) in documents {
            nodes.entry((*node).to_owned()).or_default().extend(facts(document));
        }
        nodes
    }

    #[test]
    fn counters_local_lists_and_the_order_of_endpoints_may_differ() {
        let same = [
            ("a", services(&["10.0.0.1:80", "10.0.0.2:80"], 4093, 1)),
            ("b", services(&["10.0.0.2:80", "10.0.0.1:80"], 4093, 9)),
        ];
        let found = compare(&nodes(&same));
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(found.text(DiffFormat::Table).unwrap(), "the nodes agree\n");
    }

    #[test]
    fn endpoints_lengths_of_tables_and_versions_are_compared() {
        let version =
            |version: &str| json!({"kind": "Version", "layout_version": 6, "agent": {"version": version}});
        let map =
            |entries: u32| json!({"kind": "MapList", "items": [{"name": "SELECTION", "entries": entries}]});
        let found = compare(&nodes(&[
            ("a", services(&["10.0.0.1:80"], 4093, 1)),
            ("a", version("0.1.0")),
            ("a", map(1024)),
            ("b", services(&["10.0.0.1:80", "10.0.0.2:80"], 8191, 1)),
            ("b", version("0.2.0")),
            ("b", map(2048)),
        ]));
        assert_eq!(
            found.text(DiffFormat::Table).unwrap(),
            "OBJECT         FIELD               VALUE                    NODES\n\
             agent          version             0.1.0                    a\n\
             agent          version             0.2.0                    b\n\
             map SELECTION  entries             1024                     a\n\
             map SELECTION  entries             2048                     b\n\
             shop/web:http  IPv4 Cluster slots  4093                     a\n\
             shop/web:http  IPv4 Cluster slots  8191                     b\n\
             shop/web:http  IPv4 Local slots    4093                     a\n\
             shop/web:http  IPv4 Local slots    8191                     b\n\
             shop/web:http  IPv4 endpoints      10.0.0.1:80              a\n\
             shop/web:http  IPv4 endpoints      10.0.0.1:80,10.0.0.2:80  b\n"
        );
        let json: Value = serde_json::from_str(&found.text(DiffFormat::Json).unwrap()).unwrap();
        assert_eq!(json["items"][0]["values"][1], json!({"value": "0.2.0", "nodes": ["b"]}));
    }

    #[test]
    fn a_service_that_a_node_lacks_is_one_difference() {
        let empty = json!({"kind": "ServiceList", "items": []});
        let found = compare(&nodes(&[("a", services(&["10.0.0.1:80"], 4093, 1)), ("b", empty)]));
        let text = found.text(DiffFormat::Table).unwrap();
        assert_eq!(
            text,
            "OBJECT         FIELD   VALUE    NODES\n\
             shop/web:http  itself  absent   b\n\
             shop/web:http  itself  present  a\n"
        );
        let three = [
            ("a", services(&["10.0.0.1:80"], 4093, 1)),
            ("b", json!({"kind": "ServiceList", "items": []})),
            ("c", services(&["10.0.0.2:80"], 4093, 1)),
        ];
        let fields: Vec<String> = compare(&nodes(&three)).items.into_iter().map(|one| one.field).collect();
        assert_eq!(fields, ["itself", "IPv4 endpoints"]);
    }
}
