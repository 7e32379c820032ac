//! Folders that use one above them, and crates where they don't belong.

use std::collections::BTreeMap;
use std::path::Path;

use super::rules::{Apart, Layout, Never, Only, Uses};
use super::tree::{Foreign, Import};

/// A package's files, each with the path of its module.
pub type Files<'a> = BTreeMap<&'a Path, &'a [String]>;

/// Returns a line for each dependency of a package that its rule leaves out.
pub fn packages(name: &str, dependencies: &[String], rules: &[Uses]) -> Vec<String> {
    let Some(rule) = rules.iter().find(|rule| rule.name == name) else {
        return vec![format!("{name}: this package is in no rule")];
    };
    let forbidden = dependencies.iter().filter(|dependency| !rule.may_use.contains(&dependency.as_str()));
    forbidden
        .map(|dependency| {
            format!("{name}: depends on {dependency}; it may depend on {}", names(rule.may_use))
        })
        .collect()
}

/// Returns a line for each import of a folder that the importing folder's rule leaves out.
pub fn folders(files: &Files<'_>, imports: &[Import], rules: &Layout) -> Vec<String> {
    let is_known = |name: &str| rules.roots.contains(&name) || rules.folders.below(name).is_some();
    let mut faults: Vec<String> = files
        .keys()
        .filter(|file| !is_known(folder(files, file)))
        .map(|file| format!("{}: this file's folder is in no rule", file.display()))
        .collect();
    for import in imports {
        let (from, to) = (folder(files, &import.from), folder(files, &import.to));
        let Some(may_use) = rules.folders.below(from) else { continue };
        if from != to && !may_use.contains(&to) {
            faults.push(format!("{}; {from} may use {}", import.place(), names(&may_use)));
        }
    }
    faults
}

/// Returns a line for each path that a folder names and must not.
pub fn never(files: &Files<'_>, foreign: &[Foreign], rule: &Never) -> Vec<String> {
    let inside = foreign.iter().filter(|path| is_in(files, &path.from, rule.folder));
    inside
        .filter(|path| rule.paths.iter().any(|pattern| matches(&path.path, pattern)))
        .map(|path| format!("{}; {} must not: {}", path.place(), rule.folder, rule.why))
        .collect()
}

/// Returns a line for each import from one folder to another that it must stay apart from.
pub fn apart(files: &Files<'_>, imports: &[Import], rule: &Apart) -> Vec<String> {
    let folder_of = |file: &Path| rule.folders.iter().find(|folder| is_in(files, file, folder));
    let mut faults = Vec::new();
    for import in imports {
        let (Some(from), Some(to)) = (folder_of(&import.from), folder_of(&import.to)) else { continue };
        if from != to {
            faults.push(format!("{}; {from} must not: {}", import.place(), rule.why));
        }
    }
    faults
}

/// Returns a line for each mention of a crate outside the folders it belongs to.
pub fn only(files: &Files<'_>, foreign: &[Foreign], rule: &Only) -> Vec<String> {
    let named = foreign.iter().filter(|path| matches(&path.path, rule.krate));
    named
        .filter(|path| !rule.folders.iter().any(|folder| is_in(files, &path.from, folder)))
        .map(|path| format!("{}; only {} may: {}", path.place(), names(rule.folders), rule.why))
        .collect()
}

/// Returns the folder or file directly below `src` that a file is in, or a root file's own name.
fn folder<'a>(files: &Files<'a>, file: &'a Path) -> &'a str {
    let stem = || file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    files.get(file).and_then(|module| module.first()).map_or_else(stem, String::as_str)
}

fn is_in(files: &Files<'_>, file: &Path, folder: &str) -> bool {
    let module = files.get(file).copied().unwrap_or_default();
    let mut names = module.iter();
    folder.split('/').all(|part| names.next().is_some_and(|name| name == part))
}

fn matches(path: &[String], pattern: &str) -> bool {
    let mut segments = path.iter();
    pattern.split("::").all(|part| {
        segments.next().is_some_and(|segment| {
            part.strip_suffix('*').map_or(segment == part, |prefix| segment.starts_with(prefix))
        })
    })
}

fn names(names: &[&str]) -> String {
    if names.is_empty() { "nothing of the others".to_owned() } else { names.join(", ") }
}
