//! The metrics and labels that an expression of Prometheus names. promtool checks the rest of the language.

use std::collections::BTreeSet;

use millrace::metrics::{CATALOGUE, Kind};

/// Labels of each series from the scrape, not from the agent.
const OF_SCRAPE: [&str; 4] = ["cluster", "node", "instance", "job"];
/// The words of the language that are not followed by a bracket.
const WORDS: [&str; 6] = ["and", "or", "unless", "bool", "offset", "inf"];
/// The words before a list of labels.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// A selector or a list of labels in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A metric, and the labels in its braces.
    Metric(String, Vec<String>),
    /// Labels by which series are grouped or matched.
    Labels(Vec<String>),
}

/// Returns the parts of an expression in their order.
pub fn parts(expression: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '"') {
        rest = &rest[start..];
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = quoted.split_once('"').map_or("", |(_, after)| after);
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        let next = after.trim_start();
        rest = after;
        if word.starts_with(|c: char| c.is_ascii_digit()) || WORDS.contains(&word) {
            continue;
        }
        if BEFORE_LABELS.contains(&word) {
            let (labels, after) = between(next, '(', ')');
            parts.push(Part::Labels(labels.split(',').map(|label| label.trim().to_owned()).collect()));
            rest = after;
        } else if next.starts_with('{') {
            let (matchers, after) = between(next, '{', '}');
            parts.push(Part::Metric(word.to_owned(), labels(matchers)));
            rest = after;
        } else if !is_call(next) {
            parts.push(Part::Metric(word.to_owned(), Vec::new()));
        }
    }
    parts
}

/// Returns whether a function's arguments follow, or the labels of an aggregation.
fn is_call(next: &str) -> bool {
    let word = next.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    next.starts_with('(') || ["by", "without"].contains(&word)
}

/// Returns the text in a pair of brackets, and what follows. Strings may have brackets.
fn between(text: &str, open: char, close: char) -> (&str, &str) {
    let inside = text.strip_prefix(open).unwrap_or_else(|| panic!("no {open} in {text}"));
    let mut is_quoted = false;
    let end = inside.find(|c: char| {
        is_quoted ^= c == '"';
        c == close && !is_quoted
    });
    let end = end.unwrap_or_else(|| panic!("no {close} in {text}"));
    (&inside[..end], &inside[end + 1..])
}

/// Returns the names before the operators in a selector's braces.
fn labels(matchers: &str) -> Vec<String> {
    let outside = matchers.split('"').step_by(2);
    let names = outside.map(|text| text.trim_matches([',', ' ', '=', '!', '~']));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the labels of a metric of the catalogue under the name of its series.
fn labels_of(series: &str) -> Option<Vec<&'static str>> {
    if series == "up" {
        return Some(OF_SCRAPE.to_vec());
    }
    let mut of_bucket = Vec::new();
    let metric = CATALOGUE.iter().find(|metric| match metric.kind {
        Kind::Histogram => {
            let suffix = series.strip_prefix(metric.base()).unwrap_or_default();
            of_bucket = if suffix == "_bucket" { vec!["le"] } else { Vec::new() };
            ["_bucket", "_sum", "_count"].contains(&suffix)
        }
        Kind::Counter | Kind::Gauge => metric.name() == series,
    })?;
    Some(metric.labels.iter().copied().chain(of_bucket).chain(OF_SCRAPE).collect())
}

/// Returns what an expression names and the agent does not have, and the labels of all its metrics.
pub fn check(expression: &str) -> (Vec<String>, BTreeSet<&'static str>) {
    let (mut faults, mut known) = (Vec::new(), BTreeSet::new());
    let parts = parts(expression);
    for part in &parts {
        let Part::Metric(name, used) = part else { continue };
        let Some(labels) = labels_of(name) else {
            faults.push(format!("there is no metric {name}"));
            continue;
        };
        let unknown = used.iter().filter(|label| !labels.contains(&label.as_str()));
        faults.extend(unknown.map(|label| format!("{name} has no label {label}")));
        known.extend(labels);
    }
    for label in
        parts.iter().filter_map(|part| if let Part::Labels(labels) = part { Some(labels) } else { None })
    {
        let unknown = label.iter().filter(|label| !known.contains(label.as_str()));
        faults.extend(unknown.map(|label| format!("no metric of it has a label {label}")));
    }
    if known.is_empty() {
        faults.push("it names no metric".to_owned());
    }
    (faults, known)
}

#[test]
fn metrics_and_labels_are_found_in_the_language() {
    let metric = |name: &str, labels: &[&str]| {
        Part::Metric(name.to_owned(), labels.iter().map(|label| (*label).to_owned()).collect())
    };
    let by = |labels: &[&str]| Part::Labels(labels.iter().map(|label| (*label).to_owned()).collect());
    for (expression, expected) in [
        ("up == 0 or absent(up{job=\"x\"})", vec![metric("up", &[]), metric("up", &["job"])]),
        (
            "topk(10, sum by (a, b) (rate(x_total{c=~\"d|}e\",f!=\"g,h=\"}[5m]))) > 0.8",
            vec![by(&["a", "b"]), metric("x_total", &["c", "f"])],
        ),
        (
            "sum without (a) (x) / on (b) group_left (c) y offset 5m >= bool 1",
            vec![by(&["a"]), metric("x", &[]), by(&["b"]), by(&["c"]), metric("y", &[])],
        ),
        (
            "histogram_quantile(0.99, sum by (le) (rate(z_bucket[5m])))",
            vec![by(&["le"]), metric("z_bucket", &[])],
        ),
        ("label_replace(x, \"a b(\", \"$1\", \"c\", \".*\")", vec![metric("x", &[])]),
        ("time() - 8 * x{a=\"1\"}", vec![metric("x", &["a"])]),
    ] {
        assert_eq!(parts(expression), expected, "{expression}");
    }
}

#[test]
fn a_name_or_label_that_the_agent_does_not_have_is_a_fault() {
    for (expression, fault) in [
        ("millrace_nothing", "there is no metric millrace_nothing"),
        ("millrace_flows_expired", "there is no metric millrace_flows_expired"),
        (
            "kubeproxy_sync_proxy_rules_duration_seconds",
            "there is no metric kubeproxy_sync_proxy_rules_duration_seconds",
        ),
        ("millrace_ready{reason=\"x\"}", "millrace_ready has no label reason"),
        ("sum by (reason) (millrace_ready)", "no metric of it has a label reason"),
        ("time()", "it names no metric"),
    ] {
        assert_eq!(check(expression).0[0], fault);
    }
    let (faults, labels) =
        check("rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"1\",node=\"a\"}[5m])");
    assert!(faults.is_empty() && labels.contains("ip_family"), "{faults:?}");
}
