//! The directory on disk: its files, and the ones that must be read again.

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

use super::catalogue::FilesOf;
use super::kinds::Manifests;
use super::tree::{Found, Tree, identity, is_followed, is_manifest};
use crate::model::Severity;
use crate::source::feed::Fault;
use crate::source::{Listing, Unread};

/// Time between the disappearance of a file and of its objects.
///
/// Editors remove a file and write it anew, and a directory may be removed file by file. Neither
/// may remove Services.
const GRACE: Duration = Duration::from_millis(250);
/// Time without a change before a file is read that no event declares complete: it was linked into
/// place, or the target of a link changed.
const QUIET: Duration = Duration::from_secs(1);
/// The same for a file that was written in place without an event that it was closed.
///
/// Its writer may be at work, and an emptied file is a valid manifest without objects. Files on a
/// network file system send no such events, and events may be lost.
const QUIET_IN_PLACE: Duration = Duration::from_secs(30);

/// An event about a name in a watched folder, or, without a name, about the folder itself.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    pub folder: WatchDescriptor,
    pub name: Option<OsString>,
    pub mask: EventMask,
}

/// The time at which a changed file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    Quiet,
}

/// A directory of manifests.
#[derive(Debug)]
pub(super) struct Folder<F: Manifests> {
    path: PathBuf,
    tree: Tree,
    catalogue: FilesOf<F>,
    stamps: BTreeMap<Arc<Path>, Stamp>,
    /// Files that are missing, and since when.
    missing: BTreeMap<Arc<Path>, Instant>,
    /// Files that may still be changing.
    changing: BTreeMap<Arc<Path>, Changing>,
    /// Folders that can't be read or watched, with the reported messages.
    troubles: BTreeMap<PathBuf, String>,
    unread: BTreeSet<PathBuf>,
    rescan_interval: Duration,
    rescan_at: Option<Instant>,
    lost: bool,
    events: Vec<F::Event>,
}

// The derived one would ask for more.
impl<F: Manifests> Default for Folder<F> {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            tree: Tree::default(),
            catalogue: FilesOf::default(),
            stamps: BTreeMap::new(),
            missing: BTreeMap::new(),
            changing: BTreeMap::new(),
            troubles: BTreeMap::new(),
            unread: BTreeSet::new(),
            rescan_interval: Duration::ZERO,
            rescan_at: None,
            lost: false,
            events: Vec::new(),
        }
    }
}

/// A file that may still be changing.
#[derive(Clone, Copy, Debug)]
struct Changing {
    stamp: Stamp,
    since: Instant,
    /// Time without a change before it is read.
    wait: Duration,
}

/// Differs whenever a file has changed, or another one has taken its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl<F: Manifests> Folder<F> {
    /// Returns a directory that is scanned as a whole whenever `rescan_interval` has passed.
    ///
    /// A change behind a link that leads elsewhere sends no event.
    pub fn new(path: PathBuf, tree: Tree, rescan_interval: Duration) -> Self {
        Self { path, tree, rescan_interval, ..Self::default() }
    }
    /// Leaves kinds that another source reads without a word.
    pub const fn leave(&mut self, kinds: &'static [&'static str]) {
        self.catalogue.leave(kinds);
    }
    /// Returns whether everything in the directory was read once.
    pub fn listing(&self) -> Listing {
        let lost = self.lost.then(|| self.path.as_path().into());
        let folders = self.unread.iter().map(|folder| folder.as_path().into());
        let files = self.catalogue.unread().iter().cloned().chain(folders).chain(lost);
        let unread: BTreeSet<Unread> = files.map(Unread::File).collect();
        if unread.is_empty() { Listing::Complete } else { Listing::Without(unread) }
    }
    /// Returns the time at which [`expire`](Self::expire) is due.
    pub fn next_expiry(&self) -> Option<Instant> {
        let missing = self.missing.values().map(|since| *since + GRACE);
        missing.chain(self.changing.values().map(|file| file.since + file.wait)).min()
    }
    /// Reads all changed files. Returns the events.
    pub fn look(&mut self) -> Vec<F::Event> {
        let path = self.path.clone();
        let done = self.look_below(&path, When::Now);
        self.report_directory(done.err());
        self.take_events()
    }
    /// Reads the files that the notices are about. Returns the events.
    pub fn follow(&mut self, notices: &[Notice]) -> Vec<F::Event> {
        let done = self.follow_notices(notices);
        self.report_directory(done.err());
        self.take_events()
    }
    /// Looks for changes that send no event. Returns the events.
    ///
    /// A link or mount on the way to the directory may have changed. All files are scanned now and
    /// then.
    pub fn tick(&mut self) -> Vec<F::Event> {
        let path = self.path.clone();
        let done = identity(&path).and_then(|identity| {
            if self.lost || self.tree.identity(&path) != Some(identity) {
                return self.look_below(&path, When::Now);
            }
            if self.rescan_at.is_none_or(|at| at <= Instant::now()) {
                return self.look_below(&path, When::Quiet);
            }
            Ok(())
        });
        self.report_directory(done.err());
        self.take_events()
    }
    /// Forgets files that have been missing long enough, if the directory itself exists, and reads
    /// files that have been unchanged long enough. Returns the events.
    pub fn expire(&mut self) -> Vec<F::Event> {
        let due = |since: Instant, wait: Duration| since.elapsed() >= wait;
        let left: Vec<_> = self
            .missing
            .iter()
            .filter(|(_, since)| due(**since, GRACE))
            .map(|(file, _)| file.clone())
            .collect();
        let quiet = self.changing.iter().filter(|(_, file)| due(file.since, file.wait));
        let quiet: Vec<_> = quiet.map(|(file, _)| file.clone()).collect();
        let identity = identity(&self.path);
        if identity.is_ok() {
            for file in left {
                self.expire_file(&file);
            }
            for file in quiet {
                self.read_if_quiet(&file);
            }
        }
        self.report_directory(identity.err());
        self.take_events()
    }

    fn expire_file(&mut self, file: &Arc<Path>) {
        match stamp(file) {
            // The file is back, and was unchanged for the whole wait.
            Some(stamp) if self.stamps.get(file) == Some(&stamp) => self.read(file, stamp),
            Some(stamp) => {
                self.stamps.insert(file.clone(), stamp);
                self.missing.insert(file.clone(), Instant::now());
            }
            None => {
                self.missing.remove(file);
                self.stamps.remove(file);
                self.catalogue.remove(file);
            }
        }
    }

    fn read_if_quiet(&mut self, file: &Arc<Path>) {
        let Some(before) = self.changing.remove(file) else { return };
        match stamp(file) {
            Some(stamp) if before.stamp == stamp => self.read(file, stamp),
            Some(stamp) => self.wait_for(file.clone(), stamp, before.wait),
            None => self.mark_missing(file.clone()),
        }
    }

    fn follow_notices(&mut self, notices: &[Notice]) -> io::Result<()> {
        // A file can be missing only if its directory exists.
        let is_same = self.tree.identity(&self.path) == Some(identity(&self.path)?);
        let mut present = BTreeMap::new();
        for notice in notices {
            let Some(folder) = self.tree.path_of(&notice.folder).map(Path::to_owned) else {
                if notice.mask.contains(EventMask::Q_OVERFLOW) {
                    present.insert(self.path.clone(), When::Quiet);
                }
                continue;
            };
            let (path, when) = match &notice.name {
                None => (self.path.clone(), if is_same { When::Quiet } else { When::Now }),
                Some(name) if name.as_bytes().starts_with(b"..") => (folder, When::Now),
                Some(name) if is_followed(name) => {
                    let path = folder.join(name);
                    let when = readiness(&path, notice.mask);
                    (path, when)
                }
                Some(_) => continue,
            };
            // The last event counts: a file that was removed and is being written again is not
            // complete.
            present.insert(path, when);
        }
        // Missing files come first, so that a renamed file does not count as a second copy.
        let folders = self.tree.len();
        present.retain(|path, _| path.exists() || self.mark_missing_below(path));
        if self.tree.len() < folders {
            // Another link may lead to the folder whose name is gone.
            present.entry(self.path.clone()).or_insert(When::Quiet);
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
                    self.mark_missing_below(&path);
                    Ok(())
                }
                Err(error) if path != self.path => {
                    self.report_folders(&path, &Found::of_unread(&path, &error));
                    Ok(())
                }
                done => done,
            };
        }
        let file: Arc<Path> = path.into();
        match stamp(&file) {
            Some(_) if !file.file_name().is_some_and(is_manifest) => {}
            Some(stamp) if when == When::Now => self.read(&file, stamp),
            Some(stamp) => self.wait_for(file, stamp, QUIET),
            None => self.mark_missing(file),
        }
        Ok(())
    }

    /// Marks the files at or below a path as missing. Returns `false`, because the path does not
    /// exist.
    fn mark_missing_below(&mut self, path: &Path) -> bool {
        // A file that moved is read under its new name first.
        let is_folder = self.tree.identity(path).is_some();
        let since = if is_folder { Instant::now() + QUIET } else { Instant::now() };
        self.tree.forget(path);
        let files: Vec<_> = self.catalogue.files().filter(|file| file.starts_with(path)).cloned().collect();
        for file in files {
            self.mark_missing_since(file, since);
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
            let is_known = self.stamps.get(&file) == Some(&stamp) && !self.missing.contains_key(&file);
            match when {
                _ if is_known => {}
                When::Now => self.read(&file, stamp),
                When::Quiet => self.wait_for(file.clone(), stamp, self.wait_of(&file, stamp)),
            }
            present.insert(file);
        }
        let is_gone = |file: &&Arc<Path>| {
            file.starts_with(folder)
                && !present.contains(*file)
                && !found.unread.keys().any(|unread| file.starts_with(unread))
        };
        let gone: Vec<_> = self.catalogue.files().filter(is_gone).cloned().collect();
        // A file that moved is read under its new name first.
        let since = match when {
            When::Now => Instant::now(),
            When::Quiet => Instant::now() + QUIET,
        };
        for file in gone {
            self.mark_missing_since(file, since);
        }
        self.report_folders(folder, &found);
        Ok(())
    }

    fn read(&mut self, file: &Arc<Path>, stamp: Stamp) {
        let text = super::manifest::read(file);
        if text.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return self.mark_missing(file.clone());
        }
        self.changing.remove(file);
        self.missing.remove(file);
        self.stamps.insert(file.clone(), stamp);
        self.catalogue.update(file, text);
    }

    /// Returns the time without a change for a file without an event.
    fn wait_of(&self, file: &Arc<Path>, stamp: Stamp) -> Duration {
        let is_same = self.stamps.get(file).is_some_and(|before| before.inode == stamp.inode);
        let is_link = fs::symlink_metadata(file).is_ok_and(|metadata| metadata.is_symlink());
        if is_same && !is_link { QUIET_IN_PLACE } else { QUIET }
    }

    fn wait_for(&mut self, file: Arc<Path>, stamp: Stamp, wait: Duration) {
        let before = self.changing.get(&file).filter(|before| before.stamp == stamp);
        let since = before.map_or_else(Instant::now, |before| before.since);
        self.changing.insert(file, Changing { stamp, since, wait });
    }

    fn mark_missing(&mut self, file: Arc<Path>) {
        self.mark_missing_since(file, Instant::now());
    }

    fn mark_missing_since(&mut self, file: Arc<Path>, since: Instant) {
        self.changing.remove(&file);
        if self.catalogue.contains(&file) {
            self.catalogue.mark_missing(&file);
            self.missing.entry(file).or_insert(since);
        }
    }

    /// Reports folders that can't be read or watched, each once.
    fn report_folders(&mut self, walked: &Path, found: &Found) {
        self.unread.retain(|folder| !folder.starts_with(walked));
        self.unread.extend(found.unread.keys().cloned());
        let mut troubles: BTreeMap<PathBuf, String> = BTreeMap::new();
        for (folder, error) in &found.unwatched {
            let consequence = format!("its changes are seen every {} s only", self.rescan_interval.as_secs());
            troubles.insert(folder.clone(), format!("inotify: {error}; {consequence}"));
        }
        for (folder, error) in &found.unread {
            troubles.insert(folder.clone(), format!("{error}; the last state of its files stays in force"));
        }
        for (folder, message) in &troubles {
            if self.troubles.get(folder) != Some(message) {
                let folder: Arc<Path> = folder.as_path().into();
                self.events.push(F::report(F::problem(Fault::of(&folder, None, message.clone()))));
            }
        }
        self.troubles.retain(|folder, _| !folder.starts_with(walked));
        self.troubles.append(&mut troubles);
    }

    /// Reports once that the directory disappeared, and that it came back.
    fn report_directory(&mut self, error: Option<io::Error>) {
        let lost = error.is_some();
        if lost == self.lost {
            return;
        }
        self.lost = lost;
        let path: Arc<Path> = self.path.as_path().into();
        let mut fault = match error {
            Some(error) => {
                // A file that disappeared with its directory does not count as removed.
                self.missing.clear();
                self.changing.clear();
                self.tree.forget(&path);
                Fault::of(
                    &path,
                    None,
                    format!("{error}; the directory's last state is kept until it returns"),
                )
            }
            None => Fault::of(&path, None, "the directory is back".to_owned()),
        };
        if !lost {
            fault.severity = Severity::Info;
        }
        self.events.push(F::report(F::problem(fault)));
    }

    fn take_events(&mut self) -> Vec<F::Event> {
        let mut events = std::mem::take(&mut self.events);
        events.append(&mut self.catalogue.take_events());
        events
    }
}

/// Returns when to read a file after an event.
///
/// A new file sends another event when it is closed, but a file that was linked into place does
/// not. A new folder is still being filled. A link is complete at once.
fn readiness(path: &Path, mask: EventMask) -> When {
    if mask.intersects(EventMask::CLOSE_WRITE | EventMask::MOVED_TO) {
        return When::Now;
    }
    let is_whole =
        |metadata: fs::Metadata| metadata.is_symlink() || (metadata.is_file() && metadata.nlink() > 1);
    let is_new = mask.contains(EventMask::CREATE);
    if is_new && fs::symlink_metadata(path).is_ok_and(is_whole) { When::Now } else { When::Quiet }
}

/// Returns `None` if no regular file is there, which could be read without waiting.
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
    use crate::source::feed::Services;

    #[test]
    fn a_file_that_its_writer_has_emptied_is_not_read_by_a_look_at_everything() {
        let directory = Directory::new("emptied");
        directory.write("a.yaml", &[("web", 80)]);
        let mut folder = Folder::<Services>::new(directory.0.clone(), Tree::default(), Duration::ZERO);
        assert_eq!(folder.look().len(), 1);
        let mut writer = File::create(directory.0.join("a.yaml")).unwrap();
        assert!(folder.tick().is_empty());
        sleep(QUIET + QUIET / 10);
        assert!(folder.tick().is_empty() && folder.expire().is_empty(), "its Services stay");
        writer.write_all(text(&[("web", 81)]).as_bytes()).unwrap();
        drop(writer);
        assert_eq!(folder.look().len(), 1, "as the event of its closing would have it");
    }
}
