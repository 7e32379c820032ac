//! The objects of all files, and the copy that counts if several files have the same object.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::manifest::{Foreign, Manifest, TAKES, parse};
use crate::model::{Change, Object, ObjectKey, Problem, Severity, Topic};
use crate::source::SourceEvent;

/// The objects of the files. The copy in the first file by name counts.
#[derive(Debug, Default)]
pub struct Catalogue {
    files: BTreeMap<Arc<Path>, FileState>,
    holders: BTreeMap<ObjectKey, BTreeSet<Arc<Path>>>,
    told: BTreeMap<ObjectKey, Told>,
    /// Files that are missing, but not long enough to forget them.
    missing: BTreeSet<Arc<Path>>,
    /// Files with a part that was never readable.
    unread: BTreeSet<Arc<Path>>,
    /// Objects of other kinds that were not reported yet, by kind and file.
    foreign: BTreeMap<String, BTreeMap<Arc<Path>, Foreign>>,
    events: Vec<SourceEvent>,
}

#[derive(Debug, Default)]
struct FileState {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    problems: Vec<Problem>,
    foreign: BTreeMap<String, Foreign>,
}

#[derive(Debug)]
struct Told {
    file: Arc<Path>,
    object: Arc<Object>,
    /// Files with a copy that does not count.
    ignored: BTreeSet<Arc<Path>>,
}

impl Catalogue {
    /// Stores a file's text, or the error of reading it. An unreadable file keeps its former
    /// objects.
    pub fn update(&mut self, file: &Arc<Path>, text: std::io::Result<Vec<u8>>) {
        self.missing.remove(file);
        let parsed = match text {
            Ok(text) => parse(file, &text),
            Err(error) => Err(format!("can't be read: {error}")),
        };
        match parsed {
            Ok(manifest) => self.replace(file, manifest),
            Err(message) => {
                if !self.files.contains_key(file) {
                    self.unread.insert(file.clone());
                }
                let consequence = if self.unread.contains(file) {
                    "its objects are unknown until it can be read"
                } else {
                    "its last readable contents stay in force"
                };
                let message = format!("{message}; {consequence}");
                self.report(file, vec![warning(file, None, message)]);
            }
        }
    }
    /// Marks a file as missing. Its objects stay, and a second file with one of them is no mistake:
    /// the file may have been renamed.
    pub fn mark_missing(&mut self, file: &Arc<Path>) {
        self.missing.insert(file.clone());
    }
    /// Forgets a file.
    pub fn remove(&mut self, file: &Arc<Path>) {
        self.missing.remove(file);
        self.unread.remove(file);
        let state = self.files.remove(file).unwrap_or_default();
        for key in state.objects.into_keys() {
            self.send_change(&key, file);
        }
    }
    /// Returns the known files.
    pub fn files(&self) -> impl Iterator<Item = &Arc<Path>> {
        self.files.keys()
    }
    /// Returns whether a file is known.
    #[must_use]
    pub fn contains(&self, file: &Path) -> bool {
        self.files.contains_key(file)
    }
    /// Returns the files with a part that was never readable.
    pub(super) const fn unread(&self) -> &BTreeSet<Arc<Path>> {
        &self.unread
    }
    /// Returns the events since the last call.
    pub fn take_events(&mut self) -> Vec<SourceEvent> {
        let foreign = std::mem::take(&mut self.foreign);
        let problems = foreign.iter().filter_map(|(kind, files)| not_read(kind, files));
        self.events.extend(problems.map(SourceEvent::Problem));
        std::mem::take(&mut self.events)
    }

    fn replace(&mut self, file: &Arc<Path>, manifest: Manifest) {
        let mut old = self.files.remove(file).unwrap_or_default();
        let mut problems = manifest.problems;
        let mut objects = BTreeMap::new();
        for object in manifest.objects {
            let key = object.key();
            match objects.entry(key) {
                Entry::Vacant(free) => {
                    free.insert(Arc::new(object));
                }
                Entry::Occupied(taken) => {
                    let message = "is in this file twice; the first copy counts".to_owned();
                    problems.push(warning(file, Some(taken.key().clone()), message));
                }
            }
        }
        self.unread.remove(file);
        for key in manifest.broken {
            if let Some(object) = old.objects.get(&key) {
                objects.entry(key).or_insert_with(|| object.clone());
            } else {
                self.unread.insert(file.clone());
            }
        }
        for (kind, foreign) in &manifest.foreign {
            if old.foreign.get(kind) != Some(foreign) {
                self.foreign.entry(kind.clone()).or_default().insert(file.clone(), foreign.clone());
            }
        }
        let mut keys: BTreeSet<ObjectKey> = objects.keys().cloned().collect();
        keys.extend(std::mem::take(&mut old.objects).into_keys());
        self.files
            .insert(file.clone(), FileState { objects, problems: old.problems, foreign: manifest.foreign });
        self.report(file, problems);
        for key in keys {
            self.send_change(&key, file);
        }
    }

    /// Reports the new problems of a file, each once: an object may be in it a hundred times.
    fn report(&mut self, file: &Arc<Path>, mut problems: Vec<Problem>) {
        let mut seen = BTreeSet::new();
        problems.retain(|problem| seen.insert(problem.clone()));
        let state = self.files.entry(file.clone()).or_default();
        let fresh = problems.iter().filter(|problem| !state.problems.contains(problem)).cloned();
        self.events.extend(fresh.map(SourceEvent::Problem));
        state.problems = problems;
    }

    /// Sends the change of an object after a change of `file`.
    fn send_change(&mut self, key: &ObjectKey, file: &Arc<Path>) {
        let holders = self.holders.entry(key.clone()).or_default();
        if self.files.get(file).is_some_and(|state| state.objects.contains_key(key)) {
            holders.insert(file.clone());
        } else {
            holders.remove(file);
        }
        let Some(first) = holders.first().cloned() else {
            self.holders.remove(key);
            if self.told.remove(key).is_some() {
                self.events.push(SourceEvent::Change(Change::Delete(key.clone())));
            }
            return;
        };
        let mistaken = |file: &&Arc<Path>| !self.missing.contains(&first) && !self.missing.contains(*file);
        let ignored: BTreeSet<_> = holders.iter().skip(1).filter(mistaken).cloned().collect();
        let Some(object) = self.files.get(&first).and_then(|state| state.objects.get(key)).cloned() else {
            return;
        };
        let old = self.told.get(key);
        if old.is_none_or(|old| old.file != first || old.object != object) {
            let (object, file) = (Object::clone(&object), Some(first.clone()));
            self.events.push(SourceEvent::Change(Change::Upsert { object, file }));
        }
        let known = |file: &Arc<Path>| old.is_some_and(|old| old.file == first && old.ignored.contains(file));
        for file in ignored.iter().filter(|file| !known(file)) {
            let message =
                format!("is in {} too, which comes first by name; this copy is ignored", first.display());
            self.events.push(SourceEvent::Problem(warning(file, Some(key.clone()), message)));
        }
        self.told.insert(key.clone(), Told { file: first, object, ignored });
    }
}

/// Returns the problem for the objects of one kind that is not read: one line for all of them.
fn not_read(kind: &str, files: &BTreeMap<Arc<Path>, Foreign>) -> Option<Problem> {
    let (file, Foreign { name, place, .. }) = files.first_key_value()?;
    let count: usize = files.values().map(|foreign| foreign.count).sum();
    let mut problem = warning(file, None, format!("{kind} {name:?} is not read; {TAKES}"));
    problem.field.clone_from(place);
    if count > 1 {
        let others = match files.len() {
            1 => format!("{} more of this kind", count - 1),
            number => format!("{} more of this kind, in {number} files,", count - 1),
        };
        problem.message = format!("{kind} {name:?} and {others} are not read; {TAKES}");
    }
    Some(problem)
}

/// Returns a problem of a whole file or a whole object.
pub(super) fn warning(file: &Arc<Path>, object: Option<ObjectKey>, message: String) -> Problem {
    Problem {
        file: Some(file.clone()),
        object,
        field: String::new(),
        message,
        severity: Severity::Warning,
        topic: Topic::Field,
        service: None,
    }
}
