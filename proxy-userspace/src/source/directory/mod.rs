//! Follows the manifests in a directory and in the folders below it.
//!
//! A changed file is read when its writer closes it, or when it gets its name, so that half a file
//! is never read. A file that was linked into place, or is the target of a link, is read after a
//! second without a change. A removed file is forgotten after a short time in which it may come
//! back. Directories that Kubernetes mounts from a ConfigMap exchange all files at once by a link
//! named `..data`.

mod catalogue;
mod depth;
mod folder;
mod kinds;
mod manifest;
mod objects;
mod policies;
mod tree;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use inotify::{EventOwned, EventStream, Inotify};
use tokio::sync::mpsc::Sender;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use self::catalogue::FilesOf;
use self::folder::{Folder, Notice};
use self::kinds::Manifests;
pub use self::policies::{PolicyObjects, read_policies};
use self::tree::Tree;
use super::feed::Services;
use super::policies::Policies;
use super::{Batch, Listing, PolicyBatch, SourceError};

/// The Services, EndpointSlices and Nodes of all files.
pub type Catalogue = FilesOf<Services>;

/// Time between two checks that the path still leads to the watched directory: a changed link or
/// mount on the way sends no event.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two scans of all files.
const RESCAN_INTERVAL: Duration = Duration::from_secs(30);
/// Room for a few hundred inotify events.
const EVENT_BUFFER: usize = 16 * 1024;

/// A directory that can be read and followed.
pub struct Opened {
    path: PathBuf,
    tree: Tree,
    stream: EventStream<Vec<u8>>,
    read_elsewhere: &'static [&'static str],
}

impl Opened {
    /// Says that [`watch_policies`] reads the same directory: [`watch`] then does not report its kinds as unread.
    #[must_use]
    pub const fn beside_policies(mut self) -> Self {
        self.read_elsewhere = &["v1 Namespace", "v1 Pod", "networking.k8s.io/v1 NetworkPolicy"];
        self
    }
}

/// Opens the directory `path`. Fails if it can't be read. Needs a tokio runtime.
pub fn open(path: PathBuf) -> Result<Opened, SourceError> {
    let inotify = Inotify::init().map_err(SourceError::Inotify)?;
    let tree = Tree::new(inotify.watches());
    let stream = inotify.into_event_stream(vec![0; EVENT_BUFFER]).map_err(SourceError::Inotify)?;
    match fs::read_dir(&path) {
        Ok(_) => Ok(Opened { path, tree, stream, read_elsewhere: &[] }),
        Err(error) => Err(SourceError::Directory { path, error }),
    }
}

/// Sends every object in the `.yaml`, `.yml` and `.json` files at or below the directory to `events`,
/// then their changes, until the receiver is dropped.
///
/// A directory that disappears later is reported as a [`SourceEvent::Problem`](super::SourceEvent). Its last state is
/// kept, and it is read again when it comes back.
pub async fn watch(directory: Opened, events: Sender<Batch>) -> Result<(), SourceError> {
    watch_every::<Services>(RESCAN_INTERVAL, directory, events).await
}

/// Does the same for Namespaces, pods and NetworkPolicies. It may follow a directory beside [`watch`], with
/// a directory of its own that was opened.
///
/// [`PolicyEvent::Listed`](super::PolicyEvent::Listed) also comes if a file was unreadable, whose objects are
/// unknown then. A NetworkPolicy with a fault that was never readable is replaced by one that isolates its
/// pods and allows nothing.
pub async fn watch_policies(directory: Opened, events: Sender<PolicyBatch>) -> Result<(), SourceError> {
    watch_every::<Policies>(RESCAN_INTERVAL, directory, events).await
}

async fn watch_every<F: Manifests>(
    rescan_interval: Duration,
    directory: Opened,
    events: Sender<Vec<F::Event>>,
) -> Result<(), SourceError> {
    let Opened { path, tree, mut stream, read_elsewhere } = directory;
    let mut folder = Folder::<F>::new(path, tree, rescan_interval);
    folder.leave(read_elsewhere);
    let mut found = blocking(&mut folder, Folder::look).await;
    let mut listing = folder.listing();
    found.extend(F::listed(None, &listing));
    let mut ticks = interval(IDENTITY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if !found.is_empty() && events.send(found).await.is_err() {
            return Ok(());
        }
        found = tokio::select! {
            // Written files are read before removed ones are forgotten.
            biased;
            notices = changed(&mut stream) => {
                let notices = notices.map_err(SourceError::Inotify)?;
                blocking(&mut folder, move |folder| folder.follow(&notices)).await
            }
            () = expiry(&folder) => blocking(&mut folder, Folder::expire).await,
            _ = ticks.tick() => blocking(&mut folder, Folder::tick).await,
            () = events.closed() => return Ok(()),
        };
        let now = folder.listing();
        found.extend(F::listed(Some(&listing), &now));
        if listing != Listing::Complete {
            listing = now;
        }
    }
}

/// Waits for events, and returns all that are there.
async fn changed(stream: &mut EventStream<Vec<u8>>) -> io::Result<Vec<Notice>> {
    let mut notices = Vec::new();
    let mut next = stream.next().await;
    while let Some(event) = next {
        let EventOwned { wd, mask, name, .. } = event?;
        notices.push(Notice { folder: wd, name, mask });
        next = stream.next().now_or_never().flatten();
    }
    Ok(notices)
}

async fn expiry<F: Manifests>(folder: &Folder<F>) {
    match folder.next_expiry() {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Runs file system calls in a thread that may wait for the disk.
async fn blocking<F: Manifests>(
    folder: &mut Folder<F>,
    work: impl FnOnce(&mut Folder<F>) -> Vec<F::Event> + Send + 'static,
) -> Vec<F::Event> {
    let mut taken = std::mem::take(folder);
    let done = spawn_blocking(move || {
        let events = work(&mut taken);
        (taken, events)
    });
    match done.await {
        Ok((returned, events)) => {
            *folder = returned;
            events
        }
        // This is no panic: the runtime is shutting down.
        Err(error) => {
            error.try_into_panic().map_or_else(|_| Vec::new(), |panic| std::panic::resume_unwind(panic))
        }
    }
}

#[cfg(test)]
mod place_tests;
#[cfg(test)]
mod policy_watch_tests;
#[cfg(test)]
mod tests;
