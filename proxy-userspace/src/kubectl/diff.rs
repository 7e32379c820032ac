//! `kubectl millrace diff`: in what the nodes differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Client;
use serde::Serialize;
use serde_json::Value;

use super::agents::{self, Agent, Answer};
use super::arguments::DiffFormat;
use super::merge::documents;
use crate::cli::{API_VERSION, CliError, ExitStatus, Table, terminal_width};

/// The output with the Services.
const SERVICES: &str = "services";
/// The outputs that are compared.
const COMPARED: [&str; 3] = [SERVICES, "maps", "version"];
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
    not_compared: Vec<LeftOut>,
}

/// A node that was not compared with the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct LeftOut {
    node: String,
    /// The outputs that lack.
    outputs: Vec<&'static str>,
    why: String,
    /// It should have been compared.
    #[serde(skip)]
    is_failure: bool,
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

/// Why the Services of a node are not compared.
const IPVS: &str = "it is in IPVS mode, which has no names of Services";

/// What a node says, by object and field.
type Facts = BTreeMap<(String, String), String>;

/// Asks all nodes, and compares.
pub async fn run(client: &Client, agents: &[Agent], longest: Duration) -> Differences {
    let mut found = Differences::default();
    for command in COMPARED {
        let words = [command, "-o", "json"].map(str::to_owned);
        let mut answers = agents::ask(client, agents, &words, longest).await;
        found.add(command, &mut answers);
    }
    found
}

/// Whether the Services of a node are those of IPVS. After a mode change, a node may still have some of eBPF.
fn is_of_ipvs(document: &Value) -> bool {
    let items = document.get("items").and_then(Value::as_array).into_iter().flatten();
    text(document, "kind") == "ServiceList" && items.into_iter().any(|item| text(item, "mode") == "ipvs")
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
fn compare(nodes: &BTreeMap<String, Facts>) -> Vec<Difference> {
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
    items
}

impl Differences {
    /// Compares the answers of all nodes to a command.
    fn add(&mut self, command: &'static str, answers: &mut [Answer]) {
        let mut nodes = BTreeMap::new();
        for (node, document) in documents(answers) {
            if is_of_ipvs(&document) {
                self.leave_out(&node, command, IPVS, false);
            } else {
                nodes.insert(node, facts(&document));
            }
        }
        for answer in answers.iter().filter(|answer| !nodes.contains_key(&answer.node)) {
            let is_ipvs = self.not_compared.iter().any(|one| one.node == answer.node && one.why == IPVS);
            let has_no_maps = is_ipvs && answer.status == Some(ExitStatus::NoDataplane.number());
            if !is_ipvs || command != SERVICES {
                let why = answer.complaints().collect::<Vec<_>>().join("; ");
                let why = if why.is_empty() { "no answer" } else { &why };
                self.leave_out(&answer.node, command, why, !has_no_maps);
            }
        }
        self.items.extend(compare(&nodes));
        self.items.sort_by(|one, other| one.object.cmp(&other.object));
    }

    fn leave_out(&mut self, node: &str, output: &'static str, why: &str, is_failure: bool) {
        let same = self.not_compared.iter_mut().find(|one| one.node == node && one.why == why);
        if let Some(same) = same {
            same.outputs.push(output);
        } else {
            let (node, why) = (node.to_owned(), why.to_owned());
            self.not_compared.push(LeftOut { node, outputs: vec![output], why, is_failure });
        }
    }

    /// Returns a line for each node that was not compared.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        self.not_compared.iter().map(|LeftOut { node, outputs, why, .. }| {
            format!("{node} is left out of the comparison of {}: {why}", outputs.join(", "))
        })
    }

    /// Returns the exit status. A node that did not answer may differ.
    pub fn status(&self) -> ExitStatus {
        if !self.items.is_empty() {
            ExitStatus::Wrong
        } else if self.not_compared.iter().any(|one| one.is_failure) {
            ExitStatus::Failed
        } else {
            ExitStatus::Done
        }
    }

    /// Returns the output.
    pub fn text(&self, format: DiffFormat) -> Result<String, CliError> {
        if format == DiffFormat::Json {
            let Self { items, not_compared } = self;
            let list = serde_json::json!({
                "apiVersion": API_VERSION, "kind": "DifferenceList", "items": items, "not_compared": not_compared,
            });
            return Ok(serde_json::to_string_pretty(&list)? + "\n");
        }
        if self.items.is_empty() {
            let text = if self.not_compared.is_empty() {
                "the nodes agree\n"
            } else {
                "no difference was found, but not everything was compared\n"
            };
            return Ok(text.to_owned());
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
#[path = "diff_tests.rs"]
mod tests;
