//! The licences of everything in the program. Most ask that their text goes with each copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::crates::Crates;
use crate::command;
use crate::setup::zig;
use crate::workspace::Workspace;

/// The starts of the names of files with a licence, in capitals.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
/// The parts of zig that the linker takes from it.
const OF_ZIG: [(&str, &str); 2] =
    [("musl", "lib/libc/musl/COPYRIGHT"), ("libunwind", "lib/libunwind/LICENSE.TXT")];
const LINE: &str = "------------------------------------------------------------------------------";

/// Returns one text with the licences of these crates, of the standard library and of the C library.
///
/// Each different text is there once, after the names of those that it belongs to.
pub fn text(workspace: &Workspace, crates: &Crates) -> Result<String> {
    let folders = folders(workspace)?;
    let mut texts: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let mut bare = Vec::new();
    for (id, found) in crates {
        let folder = folders.get(id).with_context(|| format!("cargo metadata does not show {id}"))?;
        let files = if folder.starts_with(&workspace.root) { read(&workspace.root)? } else { read(folder)? };
        if files.is_empty() {
            bare.push(format!("{id}: {}", found.licence));
        }
        for text in files {
            texts.entry(text).or_default().insert(id);
        }
    }
    let zig = zig(workspace).with_file_name("");
    for (name, path) in OF_ZIG {
        let path = zig.join(path);
        let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        texts.entry(text).or_default().insert(name);
    }
    write(&texts, &bare)
}

fn write(texts: &BTreeMap<String, BTreeSet<&str>>, bare: &[String]) -> Result<String> {
    let mut all = "Licences of the parts of the program millrace.\n\n\
                   The standard library of Rust is under MIT OR Apache-2.0.\n"
        .to_owned();
    if !bare.is_empty() {
        writeln!(all, "These crates have a licence, and no file with its text:\n  {}", bare.join("\n  "))?;
    }
    let mut sections: Vec<_> = texts.iter().map(|(text, names)| (names, text)).collect();
    sections.sort();
    for (names, text) in sections {
        let names: Vec<&str> = names.iter().copied().collect();
        write!(all, "\n{LINE}\n{}\n{LINE}\n{}\n", names.join("\n"), text.trim_end())?;
    }
    Ok(all)
}

/// Returns the folder of each package by `name@version`.
fn folders(workspace: &Workspace) -> Result<BTreeMap<String, PathBuf>> {
    let mut cargo = workspace.cargo();
    let metadata = command::output(cargo.args(["metadata", "--locked", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata prints no JSON")?;
    let folder = |package: &Value| {
        let field = |name: &str| package.get(name).and_then(Value::as_str);
        let id = format!("{}@{}", field("name")?, field("version")?);
        Some((id, Path::new(field("manifest_path")?).parent()?.to_path_buf()))
    };
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.context("cargo metadata has no packages")?;
    Ok(packages.iter().filter_map(folder).collect())
}

/// Returns the licences in a folder, and in its folder of licences.
fn read(folder: &Path) -> Result<BTreeSet<String>> {
    let mut texts = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| format!("can't list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if !NAMES.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        if path.is_dir() {
            texts.append(&mut read(&path)?);
        } else {
            let bytes = fs::read(&path).with_context(|| format!("can't read {}", path.display()))?;
            texts.insert(String::from_utf8_lossy(&bytes).replace('\r', ""));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::super::crates;
    use super::super::platform::Arch;
    use super::*;

    #[test]
    fn each_text_is_there_once_with_the_names_of_its_crates() {
        let texts = BTreeMap::from([
            ("Apache".to_owned(), BTreeSet::from(["a@1", "b@1"])),
            ("MIT".to_owned(), BTreeSet::from(["b@1"])),
        ]);
        let written = write(&texts, &["c@1: MIT".to_owned()]).unwrap();
        assert!(written.contains(&format!("\na@1\nb@1\n{LINE}\nApache\n")), "{written}");
        assert!(written.contains(&format!("\nb@1\n{LINE}\nMIT\n")), "{written}");
        assert!(written.contains("c@1: MIT"), "{written}");
    }

    #[test]
    fn every_crate_of_the_program_has_a_folder_and_most_have_a_licence_file() {
        let workspace = Workspace::locate().unwrap();
        let crates = crates::read(&workspace, Arch::Amd64).unwrap();
        let folders = folders(&workspace).unwrap();
        let with_text = crates.keys().filter(|id| !read(&folders[*id]).unwrap().is_empty()).count();
        assert!(with_text * 10 > crates.len() * 8, "{with_text} of {}", crates.len());
    }
}
