//! The alerts as rules for Prometheus and its operator, and the tests of the rules for promtool.

use std::fmt::Write as _;

use serde::Serialize;

use super::alerts::{self, Alert};

/// The folder of the runbooks in the repository, as a browser finds it.
const RUNBOOKS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/runbooks");
/// The name of the rules' file, which the tests of the rules load.
pub const RULES: &str = "rules.yaml";
/// The minute at which an alert of the tests fires.
const LATE: u32 = 150;

#[derive(Serialize)]
struct Groups {
    groups: [Group; 1],
}

#[derive(Serialize)]
struct Group {
    name: &'static str,
    rules: Vec<Rule>,
}

#[derive(Serialize)]
struct Rule {
    alert: &'static str,
    expr: &'static str,
    #[serde(rename = "for")]
    duration: String,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Serialize)]
struct Labels {
    severity: &'static str,
}

#[derive(Serialize)]
struct Annotations {
    summary: &'static str,
    description: &'static str,
    runbook_url: String,
}

fn groups() -> Groups {
    Groups { groups: [Group { name: "millrace", rules: alerts::all().map(rule).collect() }] }
}

fn rule(alert: &Alert) -> Rule {
    Rule {
        alert: alert.name,
        expr: alert.expression,
        duration: format!("{}m", alert.minutes),
        labels: Labels { severity: alert.severity },
        annotations: Annotations {
            summary: alert.summary,
            description: alert.description,
            runbook_url: format!("{RUNBOOKS}/{}.md", alert.name),
        },
    }
}

/// Returns the rules as Prometheus reads them.
pub fn plain() -> String {
    serde_norway::to_string(&groups()).unwrap()
}

/// Returns the rules as an object of Prometheus' operator.
pub fn object() -> String {
    let head = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: millrace\n  \
                namespace: kube-system\n  labels:\n    app.kubernetes.io/name: millrace\nspec:\n";
    plain().lines().fold(head.to_owned(), |text, line| text + "  " + line + "\n")
}

/// Returns promtool's tests. Each alert fires for its series, not before its time, and stays quiet for others.
pub fn tests() -> String {
    let mut text = format!("rule_files: [{RULES}]\nevaluation_interval: 1m\ntests:\n");
    for alert in alerts::all() {
        let early = alert.minutes - 1;
        add(&mut text, alert, "fires", alert.fires, &[(early, 0), (LATE, alert.firing)]);
        add(&mut text, alert, "stays quiet", alert.quiet, &[(LATE, 0)]);
    }
    text
}

fn add(text: &mut String, alert: &Alert, what: &str, series: &[(&str, &str)], firing: &[(u32, u32)]) {
    let name = alert.name;
    write!(text, "  - name: {name} {what}\n    interval: 1m\n    input_series:\n").unwrap();
    for (series, values) in series {
        writeln!(text, "      - {{series: '{series}', values: '{values}'}}").unwrap();
    }
    text.push_str("    promql_expr_test:\n");
    for (minute, count) in firing {
        let firing = format!("count(ALERTS{{alertname=\"{name}\",alertstate=\"firing\"}})");
        let samples =
            if *count == 0 { "[]".to_owned() } else { format!("[{{labels: '{{}}', value: {count}}}]") };
        write!(
            text,
            "      - expr: '{firing}'\n        eval_time: {minute}m\n        exp_samples: {samples}\n"
        )
        .unwrap();
    }
}
