//! Circles among files that import each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use super::layers::Files;
use super::tree::Import;

type Graph<'a> = BTreeMap<&'a Path, BTreeMap<&'a Path, &'a Import>>;

/// Returns a line for each import of the shortest way round each circle.
///
/// An import between a file and one of its ancestors makes no circle. A folder's `mod.rs` names its files,
/// and they may use what it defines for them all: they are one topic, read together.
pub fn faults(files: &Files<'_>, imports: &[Import]) -> Vec<String> {
    let graph = graph(files, imports);
    let mut faults = Vec::new();
    for circle in circles(&graph) {
        let size = circle.len();
        let ways = circle.iter().filter_map(|file| way_round(&graph, file));
        let Some(shortest) = ways.min_by_key(Vec::len) else { continue };
        faults.extend(
            shortest
                .into_iter()
                .map(|import| format!("{}; this is part of a circle of {size} files", import.place())),
        );
    }
    faults
}

fn graph<'a>(files: &Files<'_>, imports: &'a [Import]) -> Graph<'a> {
    let module = |file: &Path| files.get(file).copied().unwrap_or_default();
    let mut graph = Graph::new();
    for import in imports {
        let (from, to) = (module(&import.from), module(&import.to));
        if !from.starts_with(to) && !to.starts_with(from) {
            graph.entry(&import.from).or_default().insert(&import.to, import);
        }
    }
    graph
}

/// Returns each set of files that import each other, directly or through others.
pub fn circles<'a>(graph: &Graph<'a>) -> BTreeSet<BTreeSet<&'a Path>> {
    let behind: BTreeMap<&Path, BTreeSet<&Path>> =
        graph.keys().map(|file| (*file, reachable(graph, file).into_keys().collect())).collect();
    let reaches = |from: &Path, to: &Path| behind.get(from).is_some_and(|files| files.contains(to));
    let in_circles = graph.keys().copied().filter(|file| reaches(file, file));
    in_circles
        .map(|file| {
            graph.keys().copied().filter(|other| reaches(file, other) && reaches(other, file)).collect()
        })
        .collect()
}

/// Returns the files that a file imports, directly or through others, each with the import that leads there
/// first. A search in breadth: every way back along these imports is a shortest one.
fn reachable<'a>(graph: &Graph<'a>, start: &Path) -> BTreeMap<&'a Path, &'a Import> {
    let mut found: BTreeMap<&Path, &Import> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(file) = next.pop_front() {
        for (to, import) in graph.get(file).into_iter().flatten() {
            if !found.contains_key(to) {
                found.insert(to, import);
                next.push_back(to);
            }
        }
    }
    found
}

/// Returns the imports of a shortest way from a file back to itself.
fn way_round<'a>(graph: &Graph<'a>, start: &Path) -> Option<Vec<&'a Import>> {
    let found = reachable(graph, start);
    let mut way = vec![*found.get(start)?];
    while let Some(first) = way.last()
        && first.from != start
    {
        way.push(*found.get(first.from.as_path())?);
    }
    way.reverse();
    Some(way)
}
