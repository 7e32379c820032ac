//! The nodes' answers, joined: tables get a column NODE, items of JSON a field `node`.

use serde_json::{Map, Value, json};

use super::agents::Answer;
use super::arguments::Call;
use crate::cli::{
    self, API_VERSION, CliError, ExitStatus, Format, Group, Table, columns_table, lines, terminal_width,
};

/// Returns the joined output of a command. An answer that can't be read becomes a complaint of its node.
pub fn text(call: &Call, answers: &mut [Answer]) -> Result<String, CliError> {
    if call.is_status() {
        return status_text(call, &statuses(answers));
    }
    Ok(match &call.format {
        // The tail of an event tells why, and an address that is cut is of no use: as on a node, a line may be long.
        Format::Table if is_of(call, "monitor") => rows(call, answers, None),
        Format::Table if call.has_rows() => rows(call, answers, terminal_width()),
        Format::Wide if call.has_rows() => rows(call, answers, None),
        Format::Table => tables(answers, call.no_headers, terminal_width()),
        Format::Wide => tables(answers, call.no_headers, None),
        Format::Name => names(answers),
        format if is_of(call, "monitor") => {
            rendered(format, &joined(&event_lists(answers)), call.no_headers)?
        }
        format => rendered(format, &joined(&documents(answers)), call.no_headers)?,
    })
}

fn is_of(call: &Call, command: &str) -> bool {
    call.words.first().is_some_and(|word| word == command)
}

/// Returns the status of all answers: that which all nodes have. If they differ, an object that some nodes have is
/// there, and else the gravest counts.
pub fn status(answers: &[Answer]) -> ExitStatus {
    let number = |answer: &Answer| answer.status.unwrap_or(ExitStatus::Failed.number());
    let missing = ExitStatus::NotFound.number();
    let is_missing_everywhere = answers.iter().all(|answer| number(answer) == missing);
    let counted = answers.iter().map(number).filter(|status| is_missing_everywhere || *status != missing);
    let gravest = counted.max().unwrap_or_default();
    ExitStatus::ALL.into_iter().find(|status| status.number() == gravest).unwrap_or(ExitStatus::Failed)
}

/// Returns the document of each node that answered one. The others complain.
pub fn documents(answers: &mut [Answer]) -> Vec<(String, Value)> {
    let answered = answers.iter_mut().filter(|answer| !answer.output.trim().is_empty());
    answered
        .filter_map(|answer| match serde_json::from_str(&answer.output) {
            Ok(document) => Some((answer.node.clone(), document)),
            Err(error) => {
                unreadable(answer, &error);
                None
            }
        })
        .collect()
}

/// Returns the document of each node, and for a node without one its complaint.
pub fn statuses(answers: &mut [Answer]) -> Vec<(String, Value)> {
    let mut found = documents(answers);
    for answer in answers {
        if !found.iter().any(|(node, _)| *node == answer.node) {
            let why = answer.complaints().next().unwrap_or("no answer");
            found.push((answer.node.clone(), json!({"kind": "Status", "error": why})));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found
}

/// Returns a list of the events of each node that answered with lines of them: those before a line that can't be read.
fn event_lists(answers: &mut [Answer]) -> Vec<(String, Value)> {
    let answered = answers.iter_mut().filter(|answer| !answer.output.trim().is_empty());
    answered
        .map(|answer| {
            let mut events: Vec<Value> = Vec::new();
            let mut failure = None;
            for event in serde_json::Deserializer::from_str(&answer.output).into_iter() {
                match event {
                    Ok(event) => events.push(event),
                    Err(error) => failure = Some(error),
                }
            }
            if let Some(error) = failure {
                unreadable(answer, &error);
            }
            (answer.node.clone(), json!({"kind": "EventList", "items": events}))
        })
        .collect()
}

fn unreadable(answer: &mut Answer, error: &serde_json::Error) {
    // An answer without a status has its reason already.
    if answer.status.is_some() {
        answer.complain(&format!(
            "the answer can't be read: {error}; is its agent much older or newer than this program?"
        ));
    }
    answer.output.clear();
}

/// Returns one list of the items of all nodes. A document that is no list is an item itself.
fn joined(documents: &[(String, Value)]) -> Value {
    let mut kind = String::new();
    let mut items = Vec::new();
    for (node, document) in documents {
        let of_node = document.get("kind").and_then(Value::as_str).unwrap_or_default();
        if let Some(found) = document.get("items").and_then(Value::as_array) {
            of_node.clone_into(&mut kind);
            items.extend(found.iter().map(|item| with_node(node, item)));
        } else {
            kind = format!("{of_node}List");
            items.push(as_item(node, document));
        }
    }
    json!({"apiVersion": API_VERSION, "kind": kind, "items": items})
}

/// Returns an item with its node before its own fields.
fn with_node(node: &str, item: &Value) -> Value {
    let mut fields = Map::from_iter([("node".to_owned(), node.into())]);
    // A backend has a field `node`: the address of its node.
    fields.extend(item.as_object().into_iter().flatten().map(|(name, value)| match name.as_str() {
        "node" => ("backend_node".to_owned(), value.clone()),
        name => (name.to_owned(), value.clone()),
    }));
    Value::Object(fields)
}

/// Returns a document without its header, and with its node before its own fields.
fn as_item(node: &str, document: &Value) -> Value {
    let mut fields = Map::from_iter([("node".to_owned(), node.into())]);
    let of_document = document.as_object().into_iter().flatten();
    let is_header = |name: &str| ["apiVersion", "kind", "node"].contains(&name);
    let own = of_document.filter(|(name, _)| !is_header(name));
    fields.extend(own.map(|(name, value)| (name.clone(), value.clone())));
    Value::Object(fields)
}

fn rendered(format: &Format, list: &Value, no_headers: bool) -> Result<String, CliError> {
    let items = list.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    Ok(match format {
        Format::Yaml => serde_norway::to_string(list)?,
        Format::JsonLines => lines(items.iter().map(Value::to_string)),
        Format::JsonPath(path) => lines(path.values(list)),
        Format::Columns(columns) => columns_table(columns, items).text(no_headers, None),
        Format::Json | Format::Table | Format::Wide | Format::Name => {
            serde_json::to_string_pretty(list)? + "\n"
        }
    })
}

/// Returns the table of the rows of all nodes.
fn rows(call: &Call, answers: &mut [Answer], width: Option<usize>) -> String {
    let is_wide = call.format == Format::Wide;
    let (mut groups, mut lists) = (Vec::new(), Vec::new());
    let found = if is_of(call, "monitor") { event_lists(answers) } else { documents(answers) };
    for (node, list) in found {
        match cli::rows(&list, is_wide) {
            Ok(group) => {
                groups.push((node, group));
                lists.push(list);
            }
            Err(error) => {
                answers.iter_mut().filter(|one| one.node == node).for_each(|one| unreadable(one, &error));
            }
        }
    }
    let table = Group::joined(&groups, is_wide);
    let text = table.map(|table| table.text(call.no_headers, width)).unwrap_or_default();
    if is_of(call, "check") && !lists.is_empty() {
        format!("{text}{}\n", cli::check_summary(&lists))
    } else {
        text
    }
}

/// Returns each name with its node before it.
fn names(answers: &[Answer]) -> String {
    lines(
        answers.iter().flat_map(|answer| answer.output.lines().map(|name| format!("{}/{name}", answer.node))),
    )
}

/// Returns the tables of all nodes, joined where they have the same header. Lines that are no table get the node's
/// name before them.
fn tables(answers: &[Answer], no_headers: bool, width: Option<usize>) -> String {
    let mut joined: Vec<(Vec<String>, Table)> = Vec::new();
    let mut others = Vec::new();
    for answer in answers {
        for block in answer.output.split("\n\n") {
            let Some((header, rows)) = table(block) else {
                others.extend(block.lines().map(|line| format!("{}: {line}", answer.node)));
                continue;
            };
            let index = joined.iter().position(|(known, _)| *known == header).unwrap_or_else(|| {
                let titles = ["NODE".to_owned()].into_iter().chain(header.iter().cloned()).collect();
                joined.push((header, Table::titled(titles)));
                joined.len() - 1
            });
            if let Some((_, table)) = joined.get_mut(index) {
                for row in rows {
                    table.push_all([vec![answer.node.clone()], row].concat());
                }
            }
        }
    }
    let texts = joined.iter().map(|(_, table)| table.text(no_headers, width));
    texts.chain(Some(lines(others)).filter(|others| !others.is_empty())).collect::<Vec<_>>().join("\n")
}

/// Reads a table of `millrace`: titles in capitals, columns apart by two spaces at least, each cell below its title.
fn table(block: &str) -> Option<(Vec<String>, Vec<Vec<String>>)> {
    let mut lines = block.lines();
    let header = lines.next()?;
    let has_small = header.chars().any(char::is_lowercase);
    let starts = starts(header);
    if has_small || starts.is_empty() || header.starts_with(' ') {
        return None;
    }
    let cells = |line: &str| -> Vec<String> {
        let characters: Vec<char> = line.chars().collect();
        let ends = starts.iter().skip(1).copied().chain([characters.len().max(header.len())]);
        let cell = |(start, end): (usize, usize)| -> String {
            characters
                .iter()
                .skip(start)
                .take(end.saturating_sub(start))
                .collect::<String>()
                .trim_end()
                .to_owned()
        };
        starts.iter().copied().zip(ends).map(cell).collect()
    };
    Some((cells(header), lines.map(cells).collect()))
}

/// Returns the places where titles begin: after two spaces.
fn starts(header: &str) -> Vec<usize> {
    let characters: Vec<char> = header.chars().collect();
    let is_start = |place: usize| {
        let at = |back: usize| place.checked_sub(back).and_then(|place| characters.get(place)).copied();
        characters.get(place).is_some_and(|c| *c != ' ')
            && (place == 0 || at(1) == Some(' ') && at(2) == Some(' '))
    };
    (0..characters.len()).filter(|place| is_start(*place)).collect()
}

/// Returns the number of nodes whose agent is not ready, or does not answer.
pub fn not_ready(documents: &[(String, Value)]) -> usize {
    documents.iter().filter(|(_, status)| is_ready(status) != Some(true)).count()
}

fn is_ready(status: &Value) -> Option<bool> {
    status.pointer("/readiness/ready").and_then(Value::as_bool)
}

fn status_text(call: &Call, statuses: &[(String, Value)]) -> Result<String, CliError> {
    Ok(match &call.format {
        Format::Table => status_table(statuses).text(call.no_headers, terminal_width()),
        Format::Wide => status_table(statuses).text(call.no_headers, None),
        Format::Name => lines(statuses.iter().map(|(node, _)| node.clone())),
        format => rendered(format, &joined(statuses), call.no_headers)?,
    })
}

/// Returns a row for each node.
fn status_table(documents: &[(String, Value)]) -> Table {
    let mut table =
        Table::new(&["NODE", "READY", "VERSION", "MODE", "UPLINKS", "SERVICES", "DROPS", "PROBLEMS"]);
    table.wrap(Some(7));
    for (node, status) in documents {
        table.push([
            node.clone(),
            match is_ready(status) {
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
                None => "unknown".to_owned(),
            },
            status.pointer("/agent/version").and_then(Value::as_str).unwrap_or_default().to_owned(),
            mode(status).to_owned(),
            uplinks(status),
            status.get("services").and_then(Value::as_u64).map(|count| count.to_string()).unwrap_or_default(),
            if status.get("error").is_some() { String::new() } else { drops(status).to_string() },
            problems(status),
        ]);
    }
    table
}

fn mode(status: &Value) -> &'static str {
    match (status.get("attached").is_some(), status.get("ipvs").is_some()) {
        (true, false) => "ebpf",
        (true, true) => "ebpf,ipvs",
        (false, _) if status.get("mode").is_some() => "ipvs",
        (false, _) => "",
    }
}

/// Returns each uplink with the mode of its XDP program, or `tc`.
fn uplinks(status: &Value) -> String {
    let attached = status.get("attached").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let field =
        |one: &Value, name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let of = |hook: &str| attached.iter().filter(|one| field(one, "hook") == hook).collect::<Vec<_>>();
    let xdp = of("xdp");
    let name = |one: &&Value| {
        let device = field(one, "device");
        match xdp.iter().find(|xdp| field(xdp, "device") == device) {
            Some(xdp) => format!("{device} xdp/{}", field(xdp, "mode")),
            None => format!("{device} tc"),
        }
    };
    of("tc_ingress").iter().map(name).collect::<Vec<_>>().join(",")
}

fn drops(status: &Value) -> u64 {
    let counters = status.get("counters").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let dropped = counters.iter().filter(|counter| counter.get("drop").is_some_and(|drop| drop == true));
    dropped.filter_map(|counter| counter.get("packets")?.as_u64()).sum()
}

/// Returns the names of the conditions that fail, and the number of failures of the last sync.
fn problems(status: &Value) -> String {
    if let Some(why) = status.get("error").and_then(Value::as_str) {
        return why.to_owned();
    }
    let failing = status.pointer("/readiness/failing").and_then(Value::as_array);
    let names =
        failing.into_iter().flatten().filter_map(|one| Some(one.get("condition")?.as_str()?.to_owned()));
    let failures = status.pointer("/readiness/failures").and_then(Value::as_array).map_or(0, Vec::len);
    let failures = (failures > 0).then(|| format!("{failures} of the sync"));
    let texts: Vec<String> = names.chain(failures).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(",") }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
