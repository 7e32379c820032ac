//! The comparison of each page with the code.

use std::fs;
use std::path::Path;

use similar::TextDiff;

use crate::{flags, monitoring, page, root, tables};

const GENERATED: &str = "<!-- Made from the code by `cargo xtask docs`; changes here are lost. -->";

/// Writes the page, or compares it with the one in the repository.
fn check(name: &str, body: &str) {
    let (title, rest) = body.split_once('\n').unwrap();
    check_file(&page(name), &format!("{title}\n\n{GENERATED}\n{rest}"));
}

/// Writes the file, or compares it with the one in the repository.
fn check_file(path: &Path, text: &str) {
    if std::env::var_os("MILLRACE_WRITE").is_some_and(|value| value == "1") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        return;
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    let diff = TextDiff::from_lines(found.as_str(), text);
    let changes = diff.unified_diff().context_radius(0).header("file", "code").to_string();
    assert!(found == text, "{} differs from the code; run: cargo xtask docs\n{changes}", path.display());
}

#[test]
fn flags_are_those_of_the_command_line() {
    check("flags.md", &flags::page());
}

#[test]
fn configuration_is_the_table_of_the_files_fields() {
    check("configuration.md", &tables::configuration());
}

#[test]
fn annotations_are_those_that_the_model_reads() {
    check("annotations.md", &tables::annotations());
}

#[test]
fn metrics_are_those_of_the_catalogue() {
    check("metrics.md", &tables::metrics());
}

#[test]
fn reasons_are_those_that_programs_count() {
    check("reasons.md", &tables::reasons());
}

#[test]
fn exit_statuses_are_those_of_the_program() {
    check("exit-statuses.md", &tables::exit_statuses());
}

#[test]
fn checks_are_those_of_the_command() {
    check("checks.md", &tables::checks());
}

#[test]
fn dashboard_and_alerts_are_those_of_the_tables() {
    for (path, text) in monitoring::files() {
        check_file(&root().join(path), &text);
    }
    check("monitoring.md", &monitoring::page());
}
