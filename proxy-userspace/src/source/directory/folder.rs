//! The directory on disk: which files there are, and what of them must be read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::catalogue::{Catalogue, warning};
use crate::model::Severity;
use crate::source::{Listing, SourceEvent, Unread};

/// How long a file must be gone before its objects are. Editors that remove and write anew, and a directory
/// that is removed file by file, must not take services away.
const GRACE: Duration = Duration::from_millis(250);

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Files of these names.
    Files(BTreeSet<OsString>),
    /// Every file whose stamp is another.
    Everything,
}

/// A directory of manifests.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    catalogue: Catalogue,
    stamps: BTreeMap<Arc<Path>, Stamp>,
    /// Files that are gone, and since when.
    leaving: BTreeMap<Arc<Path>, Instant>,
    lost: bool,
    events: Vec<SourceEvent>,
}

/// Changes whenever a file does, or another takes its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Folder {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            catalogue: Catalogue::default(),
            stamps: BTreeMap::new(),
            leaving: BTreeMap::new(),
            lost: false,
            events: Vec::new(),
        }
    }
    /// Whether the directory is gone and its last state is kept.
    pub fn is_lost(&self) -> bool {
        self.lost
    }
    /// Whether everything in the directory was read once.
    pub fn listing(&self) -> Listing {
        let lost = self.lost.then(|| self.path.as_path().into());
        let files = self.catalogue.unread().iter().cloned().chain(lost);
        let unread: BTreeSet<Unread> = files.map(Unread::File).collect();
        if unread.is_empty() { Listing::Complete } else { Listing::Without(unread) }
    }
    /// When [`expire`](Self::expire) has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.leaving.values().min().map(|since| *since + GRACE)
    }
    /// Which directory the path leads to at present.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        fs::metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()))
    }
    /// Looks at files, and returns what became different.
    pub fn look(&mut self, scope: &Scope) -> Vec<SourceEvent> {
        let done = match scope {
            Scope::Files(names) => self.look_at_files(names),
            Scope::Everything => self.look_at_everything(),
        };
        self.note_directory(done.err());
        self.take_events()
    }
    /// Forgets files that have been gone for long enough, if the directory itself is still there.
    pub fn expire(&mut self) -> Vec<SourceEvent> {
        let due: Vec<_> = self
            .leaving
            .iter()
            .filter(|(_, since)| since.elapsed() >= GRACE)
            .map(|(file, _)| file.clone())
            .collect();
        let identity = self.identity();
        if identity.is_ok() {
            for file in due {
                self.expire_file(&file);
            }
        }
        self.note_directory(identity.err());
        self.take_events()
    }

    fn expire_file(&mut self, file: &Arc<Path>) {
        match stamp(file) {
            // It is back, and nobody has written to it for as long as we waited.
            Some(stamp) if self.stamps.get(file) == Some(&stamp) => self.read(file, stamp),
            Some(stamp) => {
                self.stamps.insert(file.clone(), stamp);
                self.leaving.insert(file.clone(), Instant::now());
            }
            None => {
                self.leaving.remove(file);
                self.stamps.remove(file);
                self.catalogue.remove(file);
            }
        }
    }

    fn look_at_files(&mut self, names: &BTreeSet<OsString>) -> io::Result<()> {
        // Names are said to be gone only where there is a directory for them to be gone from.
        self.identity()?;
        for name in names.iter().filter(|name| is_manifest(name)) {
            let file: Arc<Path> = self.path.join(name).into();
            match stamp(&file) {
                Some(stamp) => self.read(&file, stamp),
                None => self.leave(file),
            }
        }
        Ok(())
    }

    fn look_at_everything(&mut self) -> io::Result<()> {
        let mut present = BTreeSet::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let file: Arc<Path> = self.path.join(&name).into();
            let Some(stamp) = is_manifest(&name).then(|| stamp(&file)).flatten() else { continue };
            if self.stamps.get(&file) != Some(&stamp) || self.leaving.contains_key(&file) {
                self.read(&file, stamp);
            }
            present.insert(file);
        }
        let gone: Vec<_> = self.catalogue.files().filter(|file| !present.contains(*file)).cloned().collect();
        for file in gone {
            self.leave(file);
        }
        Ok(())
    }

    fn read(&mut self, file: &Arc<Path>, stamp: Stamp) {
        self.leaving.remove(file);
        self.stamps.insert(file.clone(), stamp);
        self.catalogue.update(file, fs::read(file));
    }

    fn leave(&mut self, file: Arc<Path>) {
        if self.catalogue.contains(&file) {
            self.catalogue.leave(&file);
            self.leaving.entry(file).or_insert_with(Instant::now);
        }
    }

    /// Tells of a directory that disappeared, once, and of its return.
    fn note_directory(&mut self, error: Option<io::Error>) {
        let lost = error.is_some();
        if lost == self.lost {
            return;
        }
        self.lost = lost;
        let path: Arc<Path> = self.path.as_path().into();
        let mut problem = match error {
            Some(error) => {
                // A file that went with its directory is not a file that was removed.
                self.leaving.clear();
                warning(&path, None, format!("{error}; the directory's last state is kept until it returns"))
            }
            None => warning(&path, None, "the directory is back".to_owned()),
        };
        if !lost {
            problem.severity = Severity::Info;
        }
        self.events.push(SourceEvent::Problem(problem));
    }

    fn take_events(&mut self) -> Vec<SourceEvent> {
        let mut events = std::mem::take(&mut self.events);
        events.append(&mut self.catalogue.take_events());
        events
    }
}

/// Whether a name is that of a manifest. Names that begin with a dot are editors' and Kubernetes' own.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().map(OsStrExt::as_bytes);
    !name.as_bytes().starts_with(b".") && matches!(extension, Some(b"yaml" | b"yml" | b"json"))
}

/// `None` where there is no file that could be read without waiting.
fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
    Some(Stamp {
        inode: (metadata.dev(), metadata.ino()),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}
