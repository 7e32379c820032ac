//! The directory on disk: which files there are, and what of them must be read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inotify::{EventMask, WatchDescriptor};

use super::catalogue::{Catalogue, warning};
use super::tree::{Found, Tree, identity, is_followed, is_manifest};
use crate::model::Severity;
use crate::source::{Listing, SourceEvent, Unread};

/// How long a file must be gone before its objects are. Editors that remove and write anew, and a directory
/// that is removed file by file, must not take services away.
const GRACE: Duration = Duration::from_millis(250);
/// How long a file must stay as it is before it is read, where no event says that its writer is done: it was
/// linked into place, or what a link leads to has changed.
const SETTLE: Duration = Duration::from_secs(1);
/// The same for a file that was written to and not closed, as far as events tell: its writer may be at it, and what it has emptied is a
/// manifest, too, of nothing. Events of files on a network's file system, or of ones that were lost, never come.
const IN_PLACE: Duration = Duration::from_secs(30);

/// Something happened to a name in a watched folder, or, without a name, to the folder itself.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    pub folder: WatchDescriptor,
    pub name: Option<OsString>,
    pub mask: EventMask,
}

/// When a file that has changed is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    Settled,
}

/// A directory of manifests.
#[derive(Debug, Default)]
pub(super) struct Folder {
    path: PathBuf,
    tree: Tree,
    catalogue: Catalogue,
    stamps: BTreeMap<Arc<Path>, Stamp>,
    /// Files that are gone, and since when.
    leaving: BTreeMap<Arc<Path>, Instant>,
    /// Files that have changed, perhaps not for the last time, and since when they are as they are.
    unsettled: BTreeMap<Arc<Path>, Unsettled>,
    /// Folders that can't be read, or not be watched, and what was said of them.
    troubles: BTreeMap<PathBuf, String>,
    unread: BTreeSet<PathBuf>,
    rescan_interval: Duration,
    rescan_at: Option<Instant>,
    lost: bool,
    events: Vec<SourceEvent>,
}

/// A file that may change further.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    stamp: Stamp,
    since: Instant,
    /// How long it must stay as it is.
    wait: Duration,
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
    /// A directory that is looked at as a whole whenever `rescan_interval` has passed: a change elsewhere, to which
    /// a link leads, makes no event.
    pub fn new(path: PathBuf, tree: Tree, rescan_interval: Duration) -> Self {
        Self { path, tree, rescan_interval, ..Self::default() }
    }
    /// Whether everything in the directory was read once.
    pub fn listing(&self) -> Listing {
        let lost = self.lost.then(|| self.path.as_path().into());
        let folders = self.unread.iter().map(|folder| folder.as_path().into());
        let files = self.catalogue.unread().iter().cloned().chain(folders).chain(lost);
        let unread: BTreeSet<Unread> = files.map(Unread::File).collect();
        if unread.is_empty() { Listing::Complete } else { Listing::Without(unread) }
    }
    /// When [`expire`](Self::expire) has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        let leaving = self.leaving.values().map(|since| *since + GRACE);
        leaving.chain(self.unsettled.values().map(|file| file.since + file.wait)).min()
    }
    /// Reads everything that has changed; returns what became different.
    pub fn look(&mut self) -> Vec<SourceEvent> {
        let path = self.path.clone();
        let done = self.look_below(&path, When::Now);
        self.note_directory(done.err());
        self.take_events()
    }
    /// Looks at what events are about.
    pub fn follow(&mut self, notices: &[Notice]) -> Vec<SourceEvent> {
        let done = self.follow_notices(notices);
        self.note_directory(done.err());
        self.take_events()
    }
    /// Looks after what makes no event: a link or mount that changes on the way to the directory, and now and
    /// then everything.
    pub fn tick(&mut self) -> Vec<SourceEvent> {
        let path = self.path.clone();
        let done = identity(&path).and_then(|identity| {
            if self.lost || self.tree.identity(&path) != Some(identity) {
                return self.look_below(&path, When::Now);
            }
            if self.rescan_at.is_none_or(|at| at <= Instant::now()) {
                return self.look_below(&path, When::Settled);
            }
            Ok(())
        });
        self.note_directory(done.err());
        self.take_events()
    }
    /// Forgets files that have been gone for long enough, if the directory itself is still there, and reads
    /// those that nobody has written to for as long as we wait.
    pub fn expire(&mut self) -> Vec<SourceEvent> {
        let due = |since: Instant, wait: Duration| since.elapsed() >= wait;
        let left: Vec<_> = self
            .leaving
            .iter()
            .filter(|(_, since)| due(**since, GRACE))
            .map(|(file, _)| file.clone())
            .collect();
        let settled = self.unsettled.iter().filter(|(_, file)| due(file.since, file.wait));
        let settled: Vec<_> = settled.map(|(file, _)| file.clone()).collect();
        let identity = identity(&self.path);
        if identity.is_ok() {
            for file in left {
                self.expire_file(&file);
            }
            for file in settled {
                self.settle_file(&file);
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

    fn settle_file(&mut self, file: &Arc<Path>) {
        let Some(before) = self.unsettled.remove(file) else { return };
        match stamp(file) {
            Some(stamp) if before.stamp == stamp => self.read(file, stamp),
            Some(stamp) => self.wait_for(file.clone(), stamp, before.wait),
            None => self.leave(file.clone()),
        }
    }

    fn follow_notices(&mut self, notices: &[Notice]) -> io::Result<()> {
        // Names are said to be gone only where there is a directory for them to be gone from.
        let is_same = self.tree.identity(&self.path) == Some(identity(&self.path)?);
        let mut present = BTreeMap::new();
        for notice in notices {
            let Some(folder) = self.tree.path_of(&notice.folder).map(Path::to_owned) else {
                if notice.mask.contains(EventMask::Q_OVERFLOW) {
                    present.insert(self.path.clone(), When::Settled);
                }
                continue;
            };
            let (path, when) = match &notice.name {
                None => (self.path.clone(), if is_same { When::Settled } else { When::Now }),
                Some(name) if name.as_bytes().starts_with(b"..") => (folder, When::Now),
                Some(name) if is_followed(name) => {
                    let path = folder.join(name);
                    let when = readiness(&path, notice.mask);
                    (path, when)
                }
                Some(_) => continue,
            };
            // The last event counts: a file that was removed and is written again is not whole.
            present.insert(path, when);
        }
        // First what is gone: what was renamed is no second copy of itself.
        let folders = self.tree.len();
        present.retain(|path, _| path.exists() || self.leave_below(path));
        if self.tree.len() < folders {
            // Another link may lead to the folder that is gone under this name.
            present.entry(self.path.clone()).or_insert(When::Settled);
        }
        for (path, when) in present {
            self.look_at(path, when)?;
        }
        Ok(())
    }

    fn look_at(&mut self, path: PathBuf, when: When) -> io::Result<()> {
        if path.is_dir() {
            return match self.look_below(&path, when) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && path != self.path => {
                    self.leave_below(&path);
                    Ok(())
                }
                Err(error) if path != self.path => {
                    self.note_folders(&path, &Found::of_unread(&path, &error));
                    Ok(())
                }
                done => done,
            };
        }
        let file: Arc<Path> = path.into();
        match stamp(&file) {
            Some(_) if !file.file_name().is_some_and(is_manifest) => {}
            Some(stamp) if when == When::Now => self.read(&file, stamp),
            Some(stamp) => self.wait_for(file, stamp, SETTLE),
            None => self.leave(file),
        }
        Ok(())
    }

    /// Takes leave of a path and of all below it; `false`, for it is not present.
    fn leave_below(&mut self, path: &Path) -> bool {
        // Files that are there under another name are read first.
        let is_folder = self.tree.identity(path).is_some();
        let since = if is_folder { Instant::now() + SETTLE } else { Instant::now() };
        self.tree.forget(path);
        let files: Vec<_> = self.catalogue.files().filter(|file| file.starts_with(path)).cloned().collect();
        for file in files {
            self.leave_since(file, since);
        }
        false
    }

    fn look_below(&mut self, folder: &Path, when: When) -> io::Result<()> {
        if folder == self.path {
            self.rescan_at = Some(Instant::now() + self.rescan_interval);
        }
        let found = self.tree.walk(&self.path, folder)?;
        let mut present = BTreeSet::new();
        for path in &found.files {
            let file: Arc<Path> = path.as_path().into();
            let Some(stamp) = stamp(&file) else { continue };
            let is_known = self.stamps.get(&file) == Some(&stamp) && !self.leaving.contains_key(&file);
            match when {
                _ if is_known => {}
                When::Now => self.read(&file, stamp),
                When::Settled => self.wait_for(file.clone(), stamp, self.wait_of(&file, stamp)),
            }
            present.insert(file);
        }
        let is_gone = |file: &&Arc<Path>| {
            file.starts_with(folder)
                && !present.contains(*file)
                && !found.unread.keys().any(|unread| file.starts_with(unread))
        };
        let gone: Vec<_> = self.catalogue.files().filter(is_gone).cloned().collect();
        // What has another name now is read first.
        let since = match when {
            When::Now => Instant::now(),
            When::Settled => Instant::now() + SETTLE,
        };
        for file in gone {
            self.leave_since(file, since);
        }
        self.note_folders(folder, &found);
        Ok(())
    }

    fn read(&mut self, file: &Arc<Path>, stamp: Stamp) {
        let text = super::manifest::read(file);
        if text.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return self.leave(file.clone());
        }
        self.unsettled.remove(file);
        self.leaving.remove(file);
        self.stamps.insert(file.clone(), stamp);
        self.catalogue.update(file, text);
    }

    /// How long a file that no event was about must stay as it is.
    fn wait_of(&self, file: &Arc<Path>, stamp: Stamp) -> Duration {
        let is_same = self.stamps.get(file).is_some_and(|before| before.inode == stamp.inode);
        let is_link = fs::symlink_metadata(file).is_ok_and(|metadata| metadata.is_symlink());
        if is_same && !is_link { IN_PLACE } else { SETTLE }
    }

    fn wait_for(&mut self, file: Arc<Path>, stamp: Stamp, wait: Duration) {
        let before = self.unsettled.get(&file).filter(|before| before.stamp == stamp);
        let since = before.map_or_else(Instant::now, |before| before.since);
        self.unsettled.insert(file, Unsettled { stamp, since, wait });
    }

    fn leave(&mut self, file: Arc<Path>) {
        self.leave_since(file, Instant::now());
    }

    fn leave_since(&mut self, file: Arc<Path>, since: Instant) {
        self.unsettled.remove(&file);
        if self.catalogue.contains(&file) {
            self.catalogue.leave(&file);
            self.leaving.entry(file).or_insert(since);
        }
    }

    /// Tells of folders below that can't be read or watched, each once.
    fn note_folders(&mut self, walked: &Path, found: &Found) {
        self.unread.retain(|folder| !folder.starts_with(walked));
        self.unread.extend(found.unread.keys().cloned());
        let mut troubles: BTreeMap<PathBuf, String> = BTreeMap::new();
        for (folder, error) in &found.unwatched {
            let consequence = format!("its changes are seen every {} s only", self.rescan_interval.as_secs());
            troubles.insert(folder.clone(), format!("inotify: {error}; {consequence}"));
        }
        for (folder, error) in &found.unread {
            troubles.insert(folder.clone(), format!("{error}; what it said before stays in force"));
        }
        for (folder, message) in &troubles {
            if self.troubles.get(folder) != Some(message) {
                let folder: Arc<Path> = folder.as_path().into();
                self.events.push(SourceEvent::Problem(warning(&folder, None, message.clone())));
            }
        }
        self.troubles.retain(|folder, _| !folder.starts_with(walked));
        self.troubles.append(&mut troubles);
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
                self.unsettled.clear();
                self.tree.forget(&path);
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

/// When to read what an event is about. Closing a new file makes another event, but one that was linked into
/// place makes no other; a new folder is filled. A link is whole from the start.
fn readiness(path: &Path, mask: EventMask) -> When {
    if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
        return When::Now;
    }
    let is_whole =
        |metadata: fs::Metadata| metadata.is_symlink() || (metadata.is_file() && metadata.nlink() > 1);
    let is_new = mask.contains(EventMask::CREATE);
    if is_new && fs::symlink_metadata(path).is_ok_and(is_whole) { When::Now } else { When::Settled }
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::thread::sleep;

    use super::super::tests::{Directory, text};
    use super::*;

    #[test]
    fn a_file_that_its_writer_has_emptied_is_not_read_by_a_look_at_everything() {
        let directory = Directory::new("emptied");
        directory.write("a.yaml", &[("web", 80)]);
        let mut folder = Folder::new(directory.0.clone(), Tree::default(), Duration::ZERO);
        assert_eq!(folder.look().len(), 1);
        let mut writer = File::create(directory.0.join("a.yaml")).unwrap();
        assert!(folder.tick().is_empty());
        sleep(SETTLE + SETTLE / 10);
        assert!(folder.tick().is_empty() && folder.expire().is_empty(), "its Services stay");
        writer.write_all(text(&[("web", 81)]).as_bytes()).unwrap();
        drop(writer);
        assert_eq!(folder.look().len(), 1, "as the event of its closing would have it");
    }
}
