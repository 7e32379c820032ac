//! The output: a line for each test, JSON, or JUnit's XML.

use std::fmt::Write;

use clap::ValueEnum;
use serde::Serialize;

use super::plan::Test;
use crate::check::{Counts, Finding, Outcome};
use crate::cli::{API_VERSION, CliError, Table, terminal_width};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TestFormat {
    /// A line for each test
    Table,
    /// A JSON document
    Json,
    /// JUnit's XML, which CI systems read
    Junit,
}

/// A test, as in JSON.
#[derive(Debug, Serialize)]
struct Item<'a> {
    result: &'static str,
    test: &'static str,
    about: &'static str,
    found: &'a str,
    remedy: &'a str,
}

/// Returns the output.
pub fn text(verdicts: &[(Test, Finding)], format: TestFormat) -> Result<String, CliError> {
    let counts = Counts::of(verdicts.iter().map(|(_, finding)| finding));
    Ok(match format {
        TestFormat::Table => format!("{}{counts}\n", table(verdicts, terminal_width())),
        TestFormat::Json => {
            let items: Vec<Item<'_>> = verdicts.iter().map(|(test, finding)| item(*test, finding)).collect();
            let list = serde_json::json!({"apiVersion": API_VERSION, "kind": "TestList", "items": items});
            serde_json::to_string_pretty(&list)? + "\n"
        }
        TestFormat::Junit => junit(verdicts, counts),
    })
}

fn item(test: Test, finding: &Finding) -> Item<'_> {
    let Finding { found, remedy, .. } = finding;
    Item { result: finding.outcome.name(), test: test.id, about: test.about, found, remedy }
}

fn table(verdicts: &[(Test, Finding)], width: Option<usize>) -> String {
    let mut table = Table::new(&["RESULT", "TEST", "FOUND"]);
    table.wrap(Some(2));
    for (test, finding) in verdicts {
        let remedy =
            if finding.remedy.is_empty() { String::new() } else { format!("\n-> {}", finding.remedy) };
        let found = format!("{}: {}{remedy}", test.about, finding.found);
        table.push([finding.outcome.name().to_owned(), test.id.to_owned(), found]);
    }
    table.text(false, width)
}

fn junit(verdicts: &[(Test, Finding)], counts: Counts) -> String {
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuite name=\"millrace\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n",
        verdicts.len(),
        counts.failed,
        counts.skipped
    );
    for (test, finding) in verdicts {
        let found = escaped(&finding.found);
        let result = match finding.outcome {
            Outcome::Pass | Outcome::Warn => format!("<system-out>{found}</system-out>"),
            Outcome::Skip => format!("<skipped message=\"{found}\"/>"),
            Outcome::Fail => {
                format!("<failure message=\"{}\">{found}\n{}</failure>", test.about, escaped(&finding.remedy))
            }
        };
        // Writing to a String can't fail.
        let _ = writeln!(text, "  <testcase classname=\"millrace\" name=\"{}\">{result}</testcase>", test.id);
    }
    text + "</testsuite>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::plan::ALL;
    use super::*;

    fn verdicts() -> Vec<(Test, Finding)> {
        vec![
            (ALL[0], Finding::pass("12 answered by 6 servers")),
            (
                ALL[1],
                Finding::fail("1 of 2 probes went wrong:\nnode-1 > 10.96.0.1:80/tcp: no answer", "explain"),
            ),
            (ALL[2], Finding::skip("needs two nodes")),
        ]
    }

    #[test]
    fn a_table_has_what_to_do_below_a_failure_and_the_counts_last() {
        assert_eq!(
            text(&verdicts(), TestFormat::Table).unwrap(),
            "RESULT  TEST             FOUND\n\
             PASS    clusterip.pod    a pod reaches a ClusterIP: 12 answered by 6 servers\n\
             FAIL    clusterip.host   a process of a node reaches a ClusterIP: 1 of 2 probes went wrong:\n                         \
             node-1 > 10.96.0.1:80/tcp: no answer\n                         \
             -> explain\n\
             SKIP    clusterip.large  what is larger than a packet arrives: needs two nodes\n\
             1 passed, 0 warnings, 1 failed, 1 skipped\n"
        );
    }

    #[test]
    fn junit_escapes_what_was_found() {
        let text = text(&verdicts(), TestFormat::Junit).unwrap();
        assert!(text.contains("tests=\"3\" failures=\"1\" skipped=\"1\""), "{text}");
        assert!(text.contains("node-1 &gt; 10.96.0.1:80/tcp: no answer\nexplain</failure>"), "{text}");
        assert!(text.contains("<skipped message=\"needs two nodes\"/>"), "{text}");
    }

    #[test]
    fn json_has_an_item_for_each_test() {
        let text = text(&verdicts(), TestFormat::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["kind"], "TestList");
        assert_eq!(json["items"][1]["result"], "FAIL");
        assert_eq!(json["items"][1]["remedy"], "explain");
    }
}
