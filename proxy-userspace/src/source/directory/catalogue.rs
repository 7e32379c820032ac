//! The objects of all files, and the copy that counts if several files have the same object.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::kinds::Manifests;
use super::manifest::{Foreign, Manifest, parse};
use crate::source::feed::Fault;
use crate::source::policies::STANDS_IN;

/// The objects of the files. The copy in the first file by name counts.
#[derive(Debug)]
pub struct FilesOf<F: Manifests> {
    files: BTreeMap<Arc<Path>, FileState<F>>,
    holders: BTreeMap<F::Key, BTreeSet<Arc<Path>>>,
    told: BTreeMap<F::Key, Told<F::Object>>,
    /// Files that are missing, but not long enough to forget them.
    missing: BTreeSet<Arc<Path>>,
    /// Files with a part that was never readable.
    unread: BTreeSet<Arc<Path>>,
    /// Objects of other kinds that were not reported yet, by kind and file.
    foreign: BTreeMap<String, BTreeMap<Arc<Path>, Foreign>>,
    /// Other kinds that another source reads.
    read_elsewhere: &'static [&'static str],
    events: Vec<F::Event>,
}

// The derived one would ask for more.
impl<F: Manifests> Default for FilesOf<F> {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            holders: BTreeMap::new(),
            told: BTreeMap::new(),
            missing: BTreeSet::new(),
            unread: BTreeSet::new(),
            foreign: BTreeMap::new(),
            read_elsewhere: &[],
            events: Vec::new(),
        }
    }
}

#[derive(Debug)]
struct FileState<F: Manifests> {
    objects: BTreeMap<F::Key, Arc<F::Object>>,
    /// The objects in the place of ones that were never readable.
    stand_ins: BTreeSet<F::Key>,
    problems: Vec<F::Problem>,
    foreign: BTreeMap<String, Foreign>,
}

// The derived one would ask for more.
impl<F: Manifests> Default for FileState<F> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            stand_ins: BTreeSet::new(),
            problems: Vec::new(),
            foreign: BTreeMap::new(),
        }
    }
}

#[derive(Debug)]
struct Told<O> {
    file: Arc<Path>,
    object: Arc<O>,
    /// Files with a copy that does not count.
    ignored: BTreeSet<Arc<Path>>,
}

impl<F: Manifests> FilesOf<F> {
    /// Leaves kinds that another source reads without a word.
    pub(super) const fn leave(&mut self, kinds: &'static [&'static str]) {
        self.read_elsewhere = kinds;
    }
    /// Stores a file's text, or the error of reading it. An unreadable file keeps its former
    /// objects.
    pub fn update(&mut self, file: &Arc<Path>, text: std::io::Result<Vec<u8>>) {
        self.missing.remove(file);
        let parsed = match text {
            Ok(text) => parse::<F>(file, &text),
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
                self.report(file, vec![F::problem(Fault::of(file, None, message))]);
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
    pub fn take_events(&mut self) -> Vec<F::Event> {
        let foreign = std::mem::take(&mut self.foreign);
        let problems = foreign.iter().filter_map(|(kind, files)| not_read::<F>(kind, files));
        self.events.extend(problems.map(F::report));
        std::mem::take(&mut self.events)
    }

    fn replace(&mut self, file: &Arc<Path>, manifest: Manifest<F>) {
        let mut old = self.files.remove(file).unwrap_or_default();
        let mut problems = manifest.problems;
        let mut objects = BTreeMap::new();
        for object in manifest.objects {
            let key = F::key_of(&object);
            match objects.entry(key) {
                Entry::Vacant(free) => {
                    free.insert(Arc::new(object));
                }
                Entry::Occupied(taken) => {
                    let message = "is in this file twice; the first copy counts".to_owned();
                    problems.push(F::problem(Fault::of(file, Some(taken.key().clone()), message)));
                }
            }
        }
        self.unread.remove(file);
        let mut stand_ins = BTreeSet::new();
        for (key, stand_in) in manifest.broken {
            let readable = old.objects.get(&key).filter(|_| !old.stand_ins.contains(&key));
            if let Some(object) = readable {
                objects.entry(key).or_insert_with(|| object.clone());
                continue;
            }
            self.unread.insert(file.clone());
            if let (Some(stand_in), Entry::Vacant(free)) = (stand_in, objects.entry(key)) {
                problems.push(F::problem(Fault::of(file, Some(free.key().clone()), STANDS_IN.to_owned())));
                stand_ins.insert(free.key().clone());
                free.insert(Arc::new(stand_in));
            }
        }
        let is_told = |kind: &str| F::REPORTS_OTHERS && !self.read_elsewhere.contains(&kind);
        for (kind, foreign) in manifest.foreign.iter().filter(|(kind, _)| is_told(kind)) {
            if old.foreign.get(kind) != Some(foreign) {
                self.foreign.entry(kind.clone()).or_default().insert(file.clone(), foreign.clone());
            }
        }
        let mut keys: BTreeSet<F::Key> = objects.keys().cloned().collect();
        keys.extend(std::mem::take(&mut old.objects).into_keys());
        let (problems_before, foreign) = (old.problems, manifest.foreign);
        self.files.insert(file.clone(), FileState { objects, stand_ins, problems: problems_before, foreign });
        self.report(file, problems);
        for key in keys {
            self.send_change(&key, file);
        }
    }

    /// Reports the new problems of a file, each once: an object may be in it a hundred times.
    fn report(&mut self, file: &Arc<Path>, mut problems: Vec<F::Problem>) {
        let mut seen = BTreeSet::new();
        problems.retain(|problem| seen.insert(problem.clone()));
        let state = self.files.entry(file.clone()).or_default();
        let fresh = problems.iter().filter(|problem| !state.problems.contains(problem)).cloned();
        self.events.extend(fresh.map(F::report));
        state.problems = problems;
    }

    /// Sends the change of an object after a change of `file`.
    fn send_change(&mut self, key: &F::Key, file: &Arc<Path>) {
        let holders = self.holders.entry(key.clone()).or_default();
        if self.files.get(file).is_some_and(|state| state.objects.contains_key(key)) {
            holders.insert(file.clone());
        } else {
            holders.remove(file);
        }
        let Some(first) = holders.first().cloned() else {
            self.holders.remove(key);
            if self.told.remove(key).is_some() {
                self.events.push(F::delete(key.clone()));
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
            self.events.push(F::upsert(F::Object::clone(&object), Some(first.clone())));
        }
        let known = |file: &Arc<Path>| old.is_some_and(|old| old.file == first && old.ignored.contains(file));
        for file in ignored.iter().filter(|file| !known(file)) {
            let message =
                format!("is in {} too, which comes first by name; this copy is ignored", first.display());
            self.events.push(F::report(F::problem(Fault::of(file, Some(key.clone()), message))));
        }
        self.told.insert(key.clone(), Told { file: first, object, ignored });
    }
}

/// Returns the problem for the objects of one kind that is not read: one line for all of them.
fn not_read<F: Manifests>(kind: &str, files: &BTreeMap<Arc<Path>, Foreign>) -> Option<F::Problem> {
    let (file, Foreign { name, place, .. }) = files.first_key_value()?;
    let count: usize = files.values().map(|foreign| foreign.count).sum();
    let takes = F::TAKES;
    let mut fault = Fault::of(file, None, format!("{kind} {name:?} is not read; {takes}"));
    fault.field.clone_from(place);
    if count > 1 {
        let others = match files.len() {
            1 => format!("{} more of this kind", count - 1),
            number => format!("{} more of this kind, in {number} files,", count - 1),
        };
        fault.message = format!("{kind} {name:?} and {others} are not read; {takes}");
    }
    Some(F::problem(fault))
}
