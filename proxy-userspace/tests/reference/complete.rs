//! Each flag, field, annotation, metric, reason and status is documented, and each metric that documents name exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use millrace::cli::ExitStatus;
use millrace::config::file::FIELDS;
use millrace::metrics::CATALOGUE;
use millrace::model::ANNOTATIONS;
use proxy_common::verdict::{Program, Reason};

use crate::flags;
use crate::links::documents;
use crate::{root, text_of};

#[track_caller]
fn has_all(page: &str, names: impl IntoIterator<Item = String>) {
    let text = text_of(page);
    let missing: Vec<String> =
        names.into_iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/reference/{page} lacks {missing:?}; run: cargo xtask docs");
}

#[test]
fn every_flag_is_documented() {
    let text = text_of("flags.md");
    for name in flags::names().into_iter().map(|name| name.replace('|', "\\|")) {
        assert!(text.contains(&format!("#### {name}\n")) || text.contains(&format!("| `{name}`")), "{name}");
    }
}

#[test]
fn every_flag_that_manifests_give_exists() {
    let known: BTreeSet<String> = flags::names();
    let mut given = BTreeSet::new();
    for file in files(&root().join("manifests")) {
        let text = fs::read_to_string(&file).unwrap();
        // Items of lists, and values of patches.
        for line in text.lines().map(str::trim) {
            let flag = line
                .strip_prefix("- --")
                .or_else(|| line.split_once("value: ")?.1.trim_matches('"').strip_prefix("--"));
            let name = |flag: &str| {
                flag.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
                    .next()
                    .map(|name| format!("--{name}"))
            };
            given.extend(flag.and_then(name));
        }
    }
    assert!(given.len() > 20, "{given:?}");
    assert!(given.is_subset(&known), "unknown: {:?}", given.difference(&known));
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn every_field_of_the_file_is_documented_and_its_flags_exist() {
    has_all("configuration.md", FIELDS.iter().map(|field| field.path.to_owned()));
    let flags = flags::names();
    for field in FIELDS {
        assert!(field.flags.iter().all(|flag| flags.contains(*flag)), "{field:?}");
    }
}

#[test]
fn every_annotation_is_documented_and_its_flag_exists() {
    has_all("annotations.md", ANNOTATIONS.iter().map(|annotation| annotation.name.to_owned()));
    let flags = flags::names();
    assert!(ANNOTATIONS.iter().all(|annotation| flags.contains(annotation.flag)));
}

#[test]
fn every_metric_is_documented() {
    has_all("metrics.md", CATALOGUE.iter().map(millrace::metrics::Definition::name));
}

#[test]
fn every_reason_and_program_is_documented() {
    has_all("reasons.md", Reason::ALL.iter().map(|reason| reason.name().to_owned()));
    has_all("reasons.md", Program::ALL.iter().map(|program| program.name().to_owned()));
}

#[test]
fn every_exit_status_is_documented() {
    let text = text_of("exit-statuses.md");
    for status in ExitStatus::ALL {
        assert!(text.contains(&format!("| {} |", status.number())), "{status:?}");
    }
}

/// Whether a word of a document is a metric, one of a histogram's series, or the beginning of several.
fn is_metric(word: &str) -> bool {
    const CRATES: [&str; 2] = ["millrace_lab", "millrace_bench"];
    let of_controller = millrace::controller::METRICS.iter().any(|(name, _)| *name == word);
    of_controller
        || CATALOGUE.iter().any(|metric| {
            let base = metric.base();
            let is_series = word
                .strip_prefix(base)
                .is_some_and(|suffix| ["", "_total", "_bucket", "_count", "_sum"].contains(&suffix));
            is_series || word.ends_with('_') && base.starts_with(word)
        })
        || CRATES.contains(&word)
}

/// Former names, which the changelog has.
const FORMER: [&str; 2] = ["millrace_map_capacity", "millrace_snat_ports"];

#[test]
fn every_metric_of_the_controller_is_documented() {
    let text = fs::read_to_string(root().join("docs/service-lb.md")).unwrap();
    for (name, help) in millrace::controller::METRICS {
        assert!(text.contains(&format!("| `{name}` |")), "{name}: {help}");
    }
}

#[test]
fn every_metric_that_a_document_names_exists() {
    for document in documents() {
        let is_changelog = document.ends_with("CHANGELOG.md");
        let text = fs::read_to_string(&document).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("millrace_") || word.starts_with("kubeproxy_")) {
            let name = document.strip_prefix(root()).unwrap().display();
            let is_known = is_metric(word) || is_changelog && FORMER.contains(&word);
            assert!(is_known, "{name}: there is no metric {word}");
        }
    }
}
