//! Our directory in the BPF file system, its lock and its removal.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::error::OpenError;
use super::layout::{Layout, NAMESPACES};
use super::lock_owner;

/// The lock of an agent, or of `cleanup`, on a directory. It ends with the process in any case.
#[derive(Debug)]
pub struct Lock {
    directory: Flock<File>,
}

impl Lock {
    /// Whether the directory with this path is the locked one. A removed directory stays locked, and a new one with
    /// its path is not.
    pub fn is_of(&self, root: &Path) -> bool {
        let identity = |found: io::Result<Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
        let locked = identity(self.directory.metadata());
        locked.is_some() && locked == identity(fs::metadata(root))
    }
}

/// Creates the directories in a BPF file system and locks them with those of all other layout
/// versions.
pub fn prepare(layout: &Layout) -> Result<Lock, OpenError> {
    make_dir(&layout.top())?;
    let lock = lock(&layout.top())?;
    let namespace = namespace()?.to_string();
    for root in entries(&layout.top())? {
        let known = entries(&root.join(NAMESPACES))?;
        if let Some(path) = known.into_iter().find(|path| !path.ends_with(&namespace)) {
            return Err(OpenError::OtherNamespace { path });
        }
    }
    let namespace = layout.namespaces().join(namespace);
    for directory in [layout.maps(), layout.links(), layout.programs(), namespace] {
        make_dir(&directory)?;
    }
    Ok(lock)
}

/// Returns whether the pins below a root belong to this network namespace, or to no named one.
pub fn is_of_this_namespace(root: &Path) -> Result<bool, OpenError> {
    let namespace = namespace()?.to_string();
    Ok(entries(&root.join(NAMESPACES))?.iter().all(|path| path.ends_with(&namespace)))
}

/// Returns the inode of this thread's network namespace. An interface index is valid in one
/// namespace only.
pub fn namespace() -> Result<u64, OpenError> {
    let path = Path::new("/proc/thread-self/ns/net");
    fs::metadata(path).map(|metadata| metadata.ino()).map_err(|error| file_error(path, error))
}

/// Locks an existing directory.
pub fn lock(root: &Path) -> Result<Lock, OpenError> {
    let directory = File::open(root).map_err(|error| file_error(root, error))?;
    match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
        Ok(directory) => Ok(Lock { directory }),
        Err((directory, nix::Error::EWOULDBLOCK)) => {
            Err(OpenError::InUse { path: root.to_owned(), process: lock_owner::of_file(&directory) })
        }
        Err((_, error)) => Err(file_error(root, error.into())),
    }
}

/// Returns the entries of a directory, sorted; none if the directory is missing.
pub fn entries(directory: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let listing = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing.map_err(|error| file_error(directory, error))?,
    };
    let mut paths = Vec::new();
    for entry in listing {
        paths.push(entry.map_err(|error| file_error(directory, error))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Whether a pin in a directory of programs is one of a program. Names of maps have upper-case letters.
pub fn is_program(pin: &Path) -> bool {
    let name = pin.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with(|letter: char| letter.is_ascii_lowercase())
}

/// Removes a directory and everything below it, and adds the removed files to `removed`. The
/// removal of a link's pin detaches the program.
pub fn remove_tree(directory: &Path, removed: &mut Vec<PathBuf>) -> Result<(), OpenError> {
    for path in entries(directory)? {
        if path.is_dir() {
            remove_tree(&path, removed)?;
        } else {
            fs::remove_file(&path).map_err(|error| file_error(&path, error))?;
            removed.push(path);
        }
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error(directory, error)),
        _ => Ok(()),
    }
}

fn make_dir(path: &Path) -> Result<(), OpenError> {
    fs::create_dir_all(path).map_err(|error| file_error(path, error))
}

fn file_error(path: &Path, error: io::Error) -> OpenError {
    OpenError::File { path: path.to_owned(), error }
}
