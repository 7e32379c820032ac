//! Manifests in a directory, followed as they change.
//!
//! A changed file is read when its writer closes it or when it takes its name, so that half a file is never
//! seen; a removed one is forgotten after a short time in which it may come back. Directories that Kubernetes
//! mounts from a ConfigMap swap all their files at once through a link named `..data`.

mod catalogue;
mod folder;
mod manifest;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask, Watches};
use tokio::sync::mpsc::Sender;
use tokio::task::spawn_blocking;

pub use self::catalogue::Catalogue;
use self::folder::{Folder, Scope};
use super::{Batch, Listing, SourceError, SourceEvent};

/// How often it is asked whether the path still leads to the directory that is watched: a link or mount that
/// changes on the way there makes no event.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(1);
/// Room for a few hundred events.
const EVENT_BUFFER: usize = 16 * 1024;

/// Tells `events` of every object in the `.yaml`, `.yml` and `.json` files of the directory `path`, then
/// follows the files until the receiver is dropped.
///
/// Fails only where it can't begin; a directory that disappears later is a [`SourceEvent::Problem`], its
/// last state is kept, and it is taken up again when it returns.
pub async fn watch(path: PathBuf, events: Sender<Batch>) -> Result<(), SourceError> {
    let inotify = Inotify::init().map_err(SourceError::Inotify)?;
    let mut watcher = Watcher {
        watches: inotify.watches(),
        stream: inotify.into_event_stream(vec![0; EVENT_BUFFER]).map_err(SourceError::Inotify)?,
        watched: None,
        path: path.clone(),
    };
    fs::read_dir(&path).map_err(|error| SourceError::Directory { path: path.clone(), error })?;
    // Watched before its files are read: what changes in between makes an event.
    watcher.begin().map_err(SourceError::Inotify)?;
    let mut folder = Folder::new(path);
    let mut found = look(&mut folder, Scope::Everything).await;
    let mut listing = folder.listing();
    found.push(SourceEvent::Listed(listing.clone()));
    loop {
        if !found.is_empty() && events.send(found).await.is_err() {
            return Ok(());
        }
        let scope = tokio::select! {
            // What was written is read before what was removed is forgotten.
            biased;
            scope = watcher.changed() => Some(scope.map_err(SourceError::Inotify)?),
            () = expiry(&folder) => None,
            () = tokio::time::sleep(IDENTITY_INTERVAL) => {
                let moved = watcher.follow_path();
                Some(if moved || folder.is_lost() { Scope::Everything } else { Scope::Files(BTreeSet::new()) })
            }
            () = events.closed() => return Ok(()),
        };
        found = match scope {
            Some(scope) => look(&mut folder, scope).await,
            None => blocking(&mut folder, Folder::expire).await,
        };
        let now = folder.listing();
        if listing != Listing::Complete && now != listing {
            found.push(SourceEvent::Listed(now.clone()));
            listing = now;
        }
    }
}

/// The watch on the directory.
struct Watcher {
    watches: Watches,
    stream: EventStream<Vec<u8>>,
    /// Device and inode of the directory that is watched.
    watched: Option<(u64, u64)>,
    path: PathBuf,
}

impl Watcher {
    fn begin(&mut self) -> io::Result<()> {
        let mask = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        self.watches.add(&self.path, mask)?;
        let metadata = fs::metadata(&self.path)?;
        self.watched = Some((metadata.dev(), metadata.ino()));
        Ok(())
    }
    /// Watches the directory that the path leads to now; whether that is another one than before.
    fn follow_path(&mut self) -> bool {
        let identity = fs::metadata(&self.path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if identity.is_none() {
            self.watched = None;
        }
        identity.is_some() && identity != self.watched && self.begin().is_ok()
    }
    /// Waits for events and says what to look at.
    async fn changed(&mut self) -> io::Result<Scope> {
        let mut names = BTreeSet::new();
        let mut everything = false;
        let mut next = self.stream.next().await;
        while let Some(event) = next {
            match concern(event?, &self.path) {
                Concern::Nothing => {}
                Concern::File(name) => {
                    names.insert(name);
                }
                Concern::Everything => everything = true,
            }
            next = self.stream.next().now_or_never().flatten();
        }
        if everything {
            self.follow_path();
        }
        Ok(if everything { Scope::Everything } else { Scope::Files(names) })
    }
}

enum Concern {
    Nothing,
    File(OsString),
    Everything,
}

fn concern(event: EventOwned, directory: &Path) -> Concern {
    match event.name {
        // The directory itself, or events were lost.
        None => Concern::Everything,
        Some(name) if name.as_bytes().starts_with(b"..") => Concern::Everything,
        Some(name) if !folder::is_manifest(&name) || event.mask.contains(EventMask::ISDIR) => {
            Concern::Nothing
        }
        // A new file is empty; closing it makes another event. A link is whole from the start.
        Some(name) if event.mask.contains(EventMask::CREATE) && is_new_file(&directory.join(&name)) => {
            Concern::Nothing
        }
        Some(name) => Concern::File(name),
    }
}

fn is_new_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}

async fn expiry(folder: &Folder) {
    match folder.next_expiry() {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

async fn look(folder: &mut Folder, scope: Scope) -> Vec<SourceEvent> {
    blocking(folder, move |folder| folder.look(&scope)).await
}

/// Reads files where waiting for the disk disturbs nobody.
async fn blocking(
    folder: &mut Folder,
    work: impl FnOnce(&mut Folder) -> Vec<SourceEvent> + Send + 'static,
) -> Vec<SourceEvent> {
    let mut taken = std::mem::replace(folder, Folder::new(PathBuf::new()));
    let done = spawn_blocking(move || {
        let events = work(&mut taken);
        (taken, events)
    });
    match done.await {
        Ok((returned, events)) => {
            *folder = returned;
            events
        }
        // Not a panic: the runtime is being shut down.
        Err(error) => {
            error.try_into_panic().map_or_else(|_| Vec::new(), |panic| std::panic::resume_unwind(panic))
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
