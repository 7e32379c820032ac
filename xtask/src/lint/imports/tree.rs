//! The modules of a crate and the imports between its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::source::{Mention, Module, Segments};

/// How far a name is followed through re-exports; no crate of ours needs half of it.
const LONGEST_CHAIN: usize = 16;

/// A crate: the modules of all its targets.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    /// The library's name, and its root among the nodes.
    library: Option<(String, usize)>,
}

#[derive(Debug)]
struct Node {
    /// Relative to the directory the targets' paths are relative to.
    file: PathBuf,
    /// Relative to `src`: `a/b` for `src/a/b.rs`, `src/a/b/mod.rs` and an inline module of `src/a.rs` named `b`.
    name: Segments,
    root: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    module: Module,
}

/// The place of a module.
struct Place {
    file: PathBuf,
    /// The directory with the files of its children.
    directory: PathBuf,
    parent: Option<usize>,
    name: Segments,
}

/// A use of one file by another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The file that imports.
    pub from: PathBuf,
    /// The line of the import in it.
    pub line: usize,
    /// The file imported.
    pub to: PathBuf,
    /// The path as it is written.
    pub written: String,
}

/// A path into another crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The file that names it.
    pub from: PathBuf,
    /// The line.
    pub line: usize,
    /// The path, with the names that `use` lines stand for.
    pub path: Segments,
}

impl Import {
    /// Returns the file, the line and what it imports, for a message.
    pub fn place(&self) -> String {
        let Self { from, line, to, written } = self;
        format!("{}:{line}: imports {written} ({})", from.display(), to.display())
    }
}

impl Foreign {
    /// Returns the file, the line and what it names, for a message.
    pub fn place(&self) -> String {
        format!("{}:{}: names {}", self.from.display(), self.line, self.path.join("::"))
    }
}

/// Returns a file's text.
pub type Read<'a> = &'a dyn Fn(&Path) -> Result<String>;

impl Tree {
    /// Reads a target from its root file on. `library` is the crate's name where the target is its library.
    pub fn add_target(&mut self, root: &Path, library: Option<&str>, read: Read<'_>) -> Result<()> {
        if let Some(name) = library {
            self.library = Some((name.replace('-', "_"), self.nodes.len()));
        }
        let directory = root.parent().unwrap_or(Path::new("")).to_path_buf();
        let place = Place { file: root.to_path_buf(), directory, parent: None, name: Vec::new() };
        self.add(place, parse(root, read)?, read)?;
        Ok(())
    }

    /// Adds a module and the ones below it; returns its index.
    fn add(&mut self, place: Place, mut module: Module, read: Read<'_>) -> Result<usize> {
        let inline = std::mem::take(&mut module.inline);
        let declared = std::mem::take(&mut module.declared);
        let index = self.nodes.len();
        let Place { file, directory, parent, name } = place;
        let root = parent.and_then(|parent| self.nodes.get(parent)).map_or(index, |parent| parent.root);
        let below = |child: &str, file: PathBuf| Place {
            file,
            directory: directory.join(child),
            parent: Some(index),
            name: name.iter().cloned().chain([child.to_owned()]).collect(),
        };
        let (file, name) = (file.clone(), name.clone());
        self.nodes.push(Node { file: file.clone(), name, root, parent, children: BTreeMap::new(), module });
        for (child, module) in inline {
            let at = self.add(below(&child, file.clone()), module, read)?;
            self.adopt(index, child, at);
        }
        for (child, path) in declared {
            let found = find(&file, &directory, &child, path.as_deref(), read)?;
            let module = parse(&found, read)?;
            let at = self.add(below(&child, found), module, read)?;
            self.adopt(index, child, at);
        }
        Ok(index)
    }

    fn adopt(&mut self, parent: usize, name: String, child: usize) {
        if let Some(node) = self.nodes.get_mut(parent) {
            node.children.insert(name, child);
        }
    }

    /// Returns every file with the name of its module.
    pub fn files(&self) -> BTreeMap<&Path, &[String]> {
        let mut files = BTreeMap::new();
        for node in &self.nodes {
            files.entry(node.file.as_path()).or_insert(node.name.as_slice());
        }
        files
    }

    /// Returns the imports between different files, each once, at its first line.
    ///
    /// A re-export is looked through: the import is of the file that defines the name, and also of the file
    /// that is written, because its module has to be read to find the other one.
    pub fn imports(&self) -> Vec<Import> {
        let mut found: BTreeMap<(&Path, &Path), Import> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for mention in &node.module.mentions {
                let mut targets = BTreeSet::new();
                self.resolve(index, &mention.path, LONGEST_CHAIN, &mut targets);
                for target in targets {
                    let (Some(target), from) = (self.nodes.get(target), &node.file) else { continue };
                    if &target.file == from {
                        continue;
                    }
                    let import = import(from, mention, &target.file);
                    let known = found.entry((from, &target.file)).or_insert_with(|| import.clone());
                    if import.line < known.line {
                        *known = import;
                    }
                }
            }
        }
        found.into_values().collect()
    }

    /// Returns the paths into other crates.
    pub fn foreign(&self) -> Vec<Foreign> {
        let mut found = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for Mention { path, line } in &node.module.mentions {
                let Some(first) = path.first() else { continue };
                let written = match node.module.imported.get(first) {
                    Some(behind) if behind != path => {
                        behind.iter().chain(path.iter().skip(1)).cloned().collect()
                    }
                    _ => path.clone(),
                };
                let is_ours = written.first().is_some_and(|first| self.start(index, first).is_some());
                if !is_ours {
                    found.push(Foreign { from: node.file.clone(), line: *line, path: written });
                }
            }
        }
        found
    }

    /// Returns the module that a path's first segment names from inside another, if it is one of ours.
    fn start(&self, from: usize, segment: &str) -> Option<usize> {
        let node = self.nodes.get(from)?;
        match (segment, &self.library) {
            ("crate", _) => Some(node.root),
            ("self", _) => Some(from),
            ("super", _) => node.parent,
            (name, Some((library, root))) if name == library => Some(*root),
            (name, _) => node.children.get(name).copied(),
        }
    }

    /// Collects the modules a path leads to: where it ends as written, and where re-exports lead on to.
    fn resolve(&self, from: usize, path: &[String], chain: usize, targets: &mut BTreeSet<usize>) {
        let Some((first, rest)) = path.split_first() else { return };
        if chain == 0 {
            return;
        }
        if let Some(start) = self.start(from, first) {
            self.walk(start, rest, chain, targets);
        } else if let Some(behind) = self.nodes.get(from).and_then(|node| node.module.imported.get(first))
            && behind != path
        {
            let whole: Segments = behind.iter().chain(rest).cloned().collect();
            self.resolve(from, &whole, chain - 1, targets);
        }
    }

    fn walk(&self, mut at: usize, mut rest: &[String], chain: usize, targets: &mut BTreeSet<usize>) {
        while let Some((name, tail)) = rest.split_first() {
            let Some(node) = self.nodes.get(at) else { return };
            let next = if name == "super" { node.parent } else { node.children.get(name).copied() };
            let Some(next) = next else { break };
            (at, rest) = (next, tail);
        }
        targets.insert(at);
        let (Some(node), Some(name)) = (self.nodes.get(at), rest.first()) else { return };
        if node.module.defined.contains(name) {
            return;
        }
        if node.module.imported.contains_key(name) {
            self.resolve(at, rest, chain - 1, targets);
            return;
        }
        for glob in &node.module.globs {
            let whole: Segments = glob.iter().chain(rest).cloned().collect();
            if self.defines(at, &whole) {
                self.resolve(at, &whole, chain - 1, targets);
            }
        }
    }

    /// Whether a path behind a `*` ends in a name that its module defines or imports.
    fn defines(&self, from: usize, path: &[String]) -> bool {
        let Some((name, module)) = path.split_last() else { return false };
        let mut targets = BTreeSet::new();
        self.resolve(from, module, LONGEST_CHAIN, &mut targets);
        targets
            .iter()
            .filter_map(|target| self.nodes.get(*target))
            .any(|node| node.module.defined.contains(name) || node.module.imported.contains_key(name))
    }
}

fn import(from: &Path, mention: &Mention, to: &Path) -> Import {
    let written = mention.path.join("::");
    Import { from: from.to_path_buf(), line: mention.line, to: to.to_path_buf(), written }
}

fn parse(file: &Path, read: Read<'_>) -> Result<Module> {
    let text = read(file).with_context(|| file.display().to_string())?;
    Module::parse(&text).with_context(|| file.display().to_string())
}

/// Returns the file of a module that a parent in `directory` declares.
fn find(parent: &Path, directory: &Path, name: &str, path: Option<&str>, read: Read<'_>) -> Result<PathBuf> {
    if let Some(path) = path {
        return Ok(parent.parent().unwrap_or(Path::new("")).join(path));
    }
    let candidates = [directory.join(format!("{name}.rs")), directory.join(name).join("mod.rs")];
    let file = candidates.into_iter().find(|file| read(file).is_ok());
    file.with_context(|| format!("{}: mod {name} has no file", parent.display()))
}
