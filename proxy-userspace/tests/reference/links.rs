//! The check of every relative link and anchor in the repository's Markdown.

use std::fs;
use std::path::{Path, PathBuf};

use crate::markdown::{anchors, links};
use crate::root;

/// Returns all Markdown files, without files of builds and hidden directories.
pub fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![root()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the reason why a link of this document is broken.
fn fault(document: &Path, target: &str) -> Option<String> {
    let has_scheme =
        target.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(char::is_alphanumeric));
    if has_scheme {
        return None;
    }
    if target.starts_with('/') {
        return Some("an absolute path; use one relative to the document".to_owned());
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let file = if path.is_empty() { document.to_owned() } else { document.parent().unwrap().join(path) };
    if !file.exists() {
        return Some("no such file".to_owned());
    }
    let anchor = anchor?;
    let text = fs::read_to_string(&file).unwrap_or_default();
    if file.extension().is_none_or(|extension| extension != "md") {
        // The anchor names a line of a source file.
        let lines = text.lines().count();
        let number = |line: &str| line.strip_prefix('L')?.parse::<usize>().ok();
        let is_there = |line: &str| number(line).is_some_and(|number| number <= lines);
        return (!anchor.split('-').all(is_there)).then(|| format!("no line #{anchor}"));
    }
    (!anchors(&text).iter().any(|found| found == anchor)).then(|| format!("no heading #{anchor}"))
}

#[test]
fn every_relative_link_and_anchor_resolves() {
    let mut faults = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for (line, target) in links(&text) {
            if let Some(fault) = fault(&document, &target) {
                let name = document.strip_prefix(root()).unwrap().display();
                faults.push(format!("{name}:{line}: {target}: {fault}"));
            }
        }
    }
    assert!(faults.is_empty(), "links that lead nowhere:\n{}", faults.join("\n"));
}

#[test]
fn a_broken_link_is_reported() {
    let document = root().join("README.md");
    for target in ["nowhere.md", "SECURITY.md#nowhere", "#nowhere-at-all", "/README.md", "Cargo.toml#L99999"]
    {
        assert!(fault(&document, target).is_some(), "{target}");
    }
    for target in ["SECURITY.md", "Cargo.toml#L1", "proxy-common/src", "https://aya-rs.dev", "mailto:a@b"] {
        assert_eq!(fault(&document, target), None, "{target}");
    }
}
