//! Taking over from an agent with another map layout, while its programs serve.
//!
//! Layouts 2 to 4 only added maps, and meaning to bytes that were zero: the maps of the former ones live on as they are,
//! flows and ids included. Layout 4 has room for more reasons: COUNTERS, which is too small then, begins anew. Any other layout's maps are left alone until ours are filled; then each of its links is given our program in one step, and the rest goes.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::bpffs::{entries, remove_tree};
use super::error::OpenError;
use super::inventory;
use super::layout::Layout;
use super::settings::Sizes;
use super::sys;

/// The layouts whose maps this one goes on with, the latest first.
const FORMER: [u32; 3] = [3, 2, 1];
/// Maps that layout 4 has in another shape, and that are as good when they begin anew: who was told something by ICMP a moment ago.
const ANEW: [&str; 2] = ["ICMP_SOURCES", "ICMP_TOTAL"];

/// What former layouts left, now pinned below our own directory too.
#[derive(Debug)]
pub struct Former {
    roots: Vec<PathBuf>,
}

impl Former {
    /// Pins the maps and links of former layouts, if there are any, below our own directory. An agent that is killed on
    /// the way goes on with what is left when it starts again.
    pub fn adopt(layout: &Layout) -> Result<Option<Self>, OpenError> {
        let roots = FORMER.map(|version| layout.root_of(version));
        let roots: Vec<PathBuf> = roots.into_iter().filter(|root| root.exists()).collect();
        for root in &roots {
            adopt_root(root, layout)?;
            info!(from = %root.display(), "maps and links of the former layout are taken over");
        }
        Ok((!roots.is_empty()).then_some(Self { roots }))
    }

    /// Removes the pins of former layouts. What they pinned stays, by our own.
    pub fn remove(self) -> Result<(), OpenError> {
        self.roots.iter().try_for_each(|root| remove_tree(root, &mut Vec::new()))
    }
}

fn adopt_root(root: &Path, layout: &Layout) -> Result<(), OpenError> {
    for (name, _) in inventory::maps(&Sizes::default()).into_iter().filter(|(name, _)| !ANEW.contains(name)) {
        adopt_pin(&root.join("maps").join(name), &layout.maps().join(name))?;
    }
    for path in entries(&root.join("links"))? {
        let Some(name) = path.file_name() else { continue };
        adopt_pin(&path, &layout.links().join(name))?;
    }
    Ok(())
}

/// Pins an object a second time. A directory stands for a filter, and is made again.
fn adopt_pin(from: &Path, to: &Path) -> Result<(), OpenError> {
    if to.exists() || !from.exists() {
        return Ok(());
    }
    if from.is_dir() {
        return fs::create_dir(to).map_err(|error| failed(to, error));
    }
    let object = sys::obj_get(from).map_err(|error| failed(from, error))?;
    sys::obj_pin(object.as_fd(), to).map_err(|error| failed(to, error))
}

/// The directories of all layouts but ours and those whose maps ours goes on with.
pub fn foreign(layout: &Layout) -> Result<Vec<PathBuf>, OpenError> {
    let known = FORMER.map(|version| layout.root_of(version));
    let mut foreign = entries(&layout.top())?;
    foreign.retain(|path| path.is_dir() && *path != layout.root() && !known.contains(path));
    for path in &foreign {
        warn!(path = %path.display(), "another version's maps can't be taken over; its connections end when ours serve");
    }
    Ok(foreign)
}

fn failed(path: &Path, error: io::Error) -> OpenError {
    OpenError::File { path: path.to_owned(), error }
}
