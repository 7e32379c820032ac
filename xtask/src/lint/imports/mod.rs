//! The lint of imports: no circles among files, no folder that uses one above it, no I/O in pure folders.
//!
//! It reads the `use` lines and the paths in the code of every package. `rules` says what is allowed.

mod circles;
mod layers;
mod rules;
mod source;
#[cfg(test)]
mod tests;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command;
use crate::workspace::Workspace;
use tree::Tree;

/// Checks every package of the workspace and prints one line for each import that breaks a rule.
pub fn check(workspace: &Workspace) -> Result<()> {
    let mut faults = Vec::new();
    for package in packages(workspace)? {
        faults.extend(layers::packages(&package.name, &package.dependencies, rules::PACKAGES));
        let tree = read(&package, &workspace.root)?;
        faults.extend(faults_of(&package.name, &tree));
    }
    for fault in &faults {
        eprintln!("{fault}");
    }
    match faults.len() {
        0 => Ok(()),
        1 => bail!("1 import breaks the rules of xtask/src/lint/imports/rules.rs"),
        count => bail!("{count} imports break the rules of xtask/src/lint/imports/rules.rs"),
    }
}

/// Returns the faults of a package's files, one line each.
fn faults_of(package: &str, tree: &Tree) -> Vec<String> {
    let (files, imports, foreign) = (tree.files(), tree.imports(), tree.foreign());
    let mut faults = circles::faults(&files, &imports);
    for folders in rules::FOLDERS.iter().filter(|folders| folders.package == package) {
        faults.extend(layers::folders(&files, &imports, folders));
    }
    for never in rules::NEVER.iter().filter(|never| never.package == package) {
        faults.extend(layers::never(&files, &foreign, never));
    }
    for apart in rules::APART.iter().filter(|apart| apart.package == package) {
        faults.extend(layers::apart(&files, &imports, apart));
    }
    for only in rules::ONLY.iter().filter(|only| only.package == package) {
        faults.extend(layers::only(&files, &foreign, only));
    }
    faults
}

/// A package of the workspace, as cargo describes it.
struct Package {
    name: String,
    /// The packages of the workspace it depends on, tests left out.
    dependencies: Vec<String>,
    /// The root file of each target, and the crate's name where the target is the library.
    targets: Vec<(PathBuf, Option<String>)>,
}

fn packages(workspace: &Workspace) -> Result<Vec<Package>> {
    let mut cargo = workspace.cargo();
    let text = command::output(cargo.args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata is no JSON")?;
    list(&metadata, "packages").iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package> {
    let is_ours = |dependency: &&Value| dependency.get("path").is_some_and(Value::is_string);
    let is_for_tests = |dependency: &&Value| dependency.get("kind").is_some_and(|kind| kind == "dev");
    let dependencies = list(value, "dependencies").iter().filter(is_ours).filter(|d| !is_for_tests(d));
    let mut targets = Vec::new();
    for target in list(value, "targets") {
        let has_kind = |kind: &str| list(target, "kind").iter().any(|found| found == kind);
        if has_kind("lib") || has_kind("bin") {
            let library = if has_kind("lib") { Some(text(target, "name")?) } else { None };
            targets.push((PathBuf::from(text(target, "src_path")?), library));
        }
    }
    let dependencies = dependencies.map(|dependency| text(dependency, "name")).collect::<Result<_>>()?;
    Ok(Package { name: text(value, "name")?, dependencies, targets })
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text(value: &Value, key: &str) -> Result<String> {
    let text = value.get(key).and_then(Value::as_str);
    text.map(str::to_owned).with_context(|| format!("cargo metadata has no {key}"))
}

fn read(package: &Package, root: &Path) -> Result<Tree> {
    let read = |file: &Path| Ok(fs::read_to_string(root.join(file))?);
    let mut tree = Tree::default();
    for (file, library) in &package.targets {
        tree.add_target(file.strip_prefix(root).unwrap_or(file), library.as_deref(), &read)?;
    }
    Ok(tree)
}
