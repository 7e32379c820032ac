//! The dashboard, the rules and their tests in manifests/monitoring, made from tables of panels and alerts.

mod alerts;
mod expression;
mod grafana;
mod panels;
mod rules;

use std::collections::BTreeSet;
use std::fs;

use crate::markdown::{code, table};
use crate::root;
use panels::ROWS;

/// Returns each file, and its text. The chart can only read files of its own folder.
pub fn files() -> Vec<(&'static str, String)> {
    vec![
        ("manifests/monitoring/grafana-millrace.json", grafana::dashboard()),
        ("manifests/monitoring/rules.yaml", with_note(&rules::plain())),
        ("manifests/monitoring/rules-tests.yaml", with_note(&rules::tests())),
        ("manifests/monitoring/prometheusrule.yaml", with_note(&rules::object())),
        ("manifests/charts/millrace/files/grafana-millrace.json", grafana::dashboard()),
        ("manifests/charts/millrace/files/rules.yaml", with_note(&rules::plain())),
    ]
}

fn with_note(yaml: &str) -> String {
    format!("# Made from the code by `cargo xtask docs`; changes here are lost.\n{yaml}")
}

/// monitoring.md.
pub fn page() -> String {
    let alerts = alerts::all().map(|alert| {
        let name = alert.name;
        vec![
            format!("[{name}](../runbooks/{name}.md)"),
            alert.severity.to_owned(),
            format!("{} min", alert.minutes),
            format!("{}.", alert.summary),
            code(alert.expression),
        ]
    });
    let panels = ROWS.iter().flat_map(|row| {
        row.panels
            .iter()
            .map(|panel| vec![row.title.to_owned(), panel.title.to_owned(), panel.about.to_owned()])
    });
    format!(
        "\
# Dashboard and alerts

The files are in [manifests/monitoring](../../manifests/monitoring), and the chart installs them:
[metrics and alerts](../operations.md#metrics-and-alerts).

## Alerts

Each has a runbook, whose first line is the command to type.

{}
## Panels of the dashboard

{}",
        table(&["Alert", "Severity", "After", "Meaning", "Expression"], alerts),
        table(&["Row", "Panel", "Meaning"], panels)
    )
}

#[test]
fn every_expression_names_metrics_and_labels_of_the_agent() {
    let mut faults = Vec::new();
    let queries = ROWS.iter().flat_map(|row| row.panels).flat_map(|panel| {
        panel.queries.iter().map(move |(query, legend)| (panel.title, grafana::expression(query), *legend))
    });
    let alerts = alerts::all().map(|alert| (alert.name, alert.expression.to_owned(), alert.description));
    for (place, expression, text) in queries.chain(alerts) {
        let (found, known) = expression::check(&expression.replace("$__rate_interval", "5m"));
        faults.extend(found.into_iter().map(|fault| format!("{place}: {fault}: {expression}")));
        let unknown = labels_in(text).into_iter().filter(|label| !known.contains(label.as_str()));
        faults.extend(unknown.map(|label| format!("{place}: no metric has the label {label} of its text")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the labels of `{{label}}` in a legend, and of `{{ $labels.label }}` in an annotation.
fn labels_in(text: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let of_annotations = text.split("$labels.").skip(1).map(name);
    let of_legends = text.split("{{").skip(1).map(name).filter(|label| !label.is_empty());
    of_annotations.chain(of_legends).collect()
}

#[test]
fn every_alert_has_a_runbook_that_begins_with_a_command() {
    for alert in alerts::all() {
        let path = root().join("docs/runbooks").join(format!("{}.md", alert.name));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let first = text.lines().next().unwrap_or_default();
        let typed = first.strip_prefix("Type `").and_then(|rest| rest.split_once('`'));
        let (words, _) = typed.unwrap_or_else(|| panic!("{}: the first line is {first:?}", alert.name));
        let parsed = millrace::cli::command().try_get_matches_from(words.split(' '));
        assert!(parsed.is_ok(), "{}: {words}: {parsed:?}", alert.name);
        assert!(text.contains(&format!("# {}\n", alert.name)), "{} has no heading", alert.name);
    }
    let files = fs::read_dir(root().join("docs/runbooks")).unwrap().count();
    assert_eq!(files, alerts::all().count() + 1, "a runbook without an alert; README.md is the list");
}

#[test]
fn names_and_titles_are_unique() {
    let titles: Vec<&str> = ROWS.iter().flat_map(|row| row.panels).map(|panel| panel.title).collect();
    assert_eq!(titles.iter().collect::<BTreeSet<_>>().len(), titles.len());
    assert_eq!(alerts::all().map(|alert| alert.name).collect::<BTreeSet<_>>().len(), alerts::all().count());
}

#[test]
fn the_labels_of_a_text_are_found() {
    let text = "{{ or $labels.node $labels.instance \"all\" }} has {{ $value | humanize }} {{reason}}";
    assert_eq!(labels_in(text), ["node", "instance", "reason"]);
}
