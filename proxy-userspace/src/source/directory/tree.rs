//! The folders of the directory. Each is watched before it is read, so that no change is missed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use inotify::{WatchDescriptor, WatchMask, Watches};

/// The deepest level of folders. A deeper tree is a mistake, such as a mount of `/`.
const MAX_DEPTH: usize = 16;
/// The most folders. Each takes an inotify watch, and a user has some thousands.
const MAX_FOLDERS: usize = 1_000;

/// The known folders.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// `None` in tests, and in a placeholder while the tree is in use elsewhere.
    watches: Option<Watches>,
    folders: BTreeMap<PathBuf, Watched>,
    paths: BTreeMap<WatchDescriptor, PathBuf>,
}

/// Device and inode.
pub(super) type Identity = (u64, u64);

#[derive(Debug)]
struct Watched {
    identity: Identity,
    watch: Option<WatchDescriptor>,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub files: Vec<PathBuf>,
    /// Folders that could not be read, with the error. Files below them may still exist.
    pub unread: BTreeMap<PathBuf, String>,
    /// Folders that are read but not watched, with the error.
    pub unwatched: BTreeMap<PathBuf, String>,
    visited: BTreeSet<PathBuf>,
    /// Links to folders that are yet to be visited, with their depth.
    links: BTreeMap<PathBuf, usize>,
}

impl Found {
    /// Returns the result for one folder that could not be read.
    pub fn of_unread(folder: &Path, error: &io::Error) -> Self {
        Self { unread: [(folder.to_owned(), error.to_string())].into(), ..Self::default() }
    }
}

impl Tree {
    pub fn new(watches: Watches) -> Self {
        Self { watches: Some(watches), ..Self::default() }
    }
    /// Returns the folder of a watch.
    pub fn path_of(&self, watch: &WatchDescriptor) -> Option<&Path> {
        self.paths.get(watch).map(PathBuf::as_path)
    }
    /// Returns the identity of a folder when it was last read.
    pub fn identity(&self, folder: &Path) -> Option<Identity> {
        self.folders.get(folder).map(|watched| watched.identity)
    }
    /// Returns the number of folders.
    pub fn len(&self) -> usize {
        self.folders.len()
    }
    /// Forgets a folder and those below it.
    pub fn forget(&mut self, folder: &Path) {
        self.retain(|path| !path.starts_with(folder));
    }
    /// Finds the manifests at or below a folder. Fails if that folder itself can't be read.
    pub fn walk(&mut self, root: &Path, folder: &Path) -> io::Result<Found> {
        let depth = folder.strip_prefix(root).map_or(0, |below| below.components().count());
        let mut found = Found::default();
        self.visit(folder, depth, &mut found)?;
        // Links come last: a folder is known by its real path, so that a removed link takes no
        // files away.
        while let Some((path, depth)) = found.links.pop_first() {
            self.visit_below(path, depth, &mut found);
        }
        let keeps = |path: &Path| {
            !path.starts_with(folder)
                || found.visited.contains(path)
                || found.unread.keys().any(|unread| path.starts_with(unread))
        };
        self.retain(keeps);
        Ok(found)
    }

    fn visit(&mut self, folder: &Path, depth: usize, found: &mut Found) -> io::Result<()> {
        let identity = identity(folder)?;
        // A link to a folder that is read under another path, or to a parent.
        let same = |(path, watched): (&PathBuf, &Watched)| path != folder && watched.identity == identity;
        let others: Vec<PathBuf> =
            self.folders.iter().filter(|entry| same(*entry)).map(|(path, _)| path.clone()).collect();
        if others.iter().any(|other| self::identity(other).is_ok_and(|other| other == identity)) {
            return Ok(());
        }
        self.watch(folder, identity, found);
        found.visited.insert(folder.to_owned());
        let mut folders = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), entry.path());
            let kind = entry.file_type()?;
            let is_folder = kind.is_dir() || (kind.is_symlink() && path.is_dir());
            if is_folder && is_followed(&name) && kind.is_symlink() {
                found.links.insert(path, depth + 1);
            } else if is_folder && is_followed(&name) {
                folders.push(path);
            } else if !is_folder && is_manifest(&name) {
                found.files.push(path);
            }
        }
        folders.sort();
        for path in folders {
            self.visit_below(path, depth + 1, found);
        }
        Ok(())
    }

    fn visit_below(&mut self, path: PathBuf, depth: usize, found: &mut Found) {
        let done = if depth > MAX_DEPTH {
            Err(io::Error::other(format!("lies deeper than {MAX_DEPTH} folders; not read")))
        } else if self.folders.len() >= MAX_FOLDERS && !self.folders.contains_key(&path) {
            Err(io::Error::other(format!("there are more than {MAX_FOLDERS} folders; not read")))
        } else {
            self.visit(&path, depth, found)
        };
        match done {
            // The folder is gone again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                found.unread.insert(path, error.to_string());
            }
            Ok(()) => {}
        }
    }

    fn watch(&mut self, folder: &Path, identity: Identity, found: &mut Found) {
        let known = self.folders.get(folder);
        if known.is_some_and(|known| known.identity == identity && known.watch.is_some()) {
            return;
        }
        self.retain(|path| path != folder);
        let watch = match self.watches.as_mut().map(|watches| watches.add(folder, mask())) {
            Some(Ok(watch)) => {
                self.paths.insert(watch.clone(), folder.to_owned());
                Some(watch)
            }
            Some(Err(error)) => {
                found.unwatched.insert(folder.to_owned(), error.to_string());
                None
            }
            None => None,
        };
        self.folders.insert(folder.to_owned(), Watched { identity, watch });
    }

    fn retain(&mut self, keeps: impl Fn(&Path) -> bool) {
        for (path, watched) in self.folders.extract_if(.., |path, _| !keeps(path)) {
            let Some(watch) = watched.watch else { continue };
            // A folder that was moved keeps its watch under its new name.
            if self.paths.get(&watch).is_some_and(|now| *now == path) {
                self.paths.remove(&watch);
                if let Some(watches) = &mut self.watches {
                    // The kernel removes the watch of a deleted folder.
                    let _ = watches.remove(watch);
                }
            }
        }
    }
}

fn mask() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::CLOSE_WRITE
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR
}

/// Returns the identity of the folder or file that a path leads to now.
pub(super) fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Returns whether a name is that of a manifest.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().map(OsStrExt::as_bytes);
    is_followed(name) && matches!(extension, Some(b"yaml" | b"yml" | b"json"))
}

/// Returns whether a name is followed. Names with a dot in front belong to editors, version control
/// and Kubernetes.
pub(super) fn is_followed(name: &OsStr) -> bool {
    !name.as_bytes().starts_with(b".")
}
