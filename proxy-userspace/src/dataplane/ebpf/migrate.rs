//! The agent takes over from an agent with another map layout while the programs of that agent
//! serve.
//!
//! Layouts 2 to 9 only added maps, and gave a meaning to bytes that were zero. So the maps of
//! earlier ones stay in use, with flows and ids. Layout 4 has room for more reasons, so COUNTERS is
//! too small and starts anew. Layout 5 has ADDRESS_FILTER in the place of VIP_FILTER. Layout
//! 6 adds FRONTEND_INDEX, which is filled anew. Layout 7 adds the figures of Services and endpoints, and the
//! recorder of events. In layout 8 the wish of `millrace monitor` names Services by bits, and lasts three seconds.
//! In layout 9 FLOWS evicts no entries, hash maps take their memory when entries come, and AGENT has two more
//! words; later builds add DEVICE_MACS and ANNOUNCED. Once no link runs a program of the former layout,
//! [`Resize`](super::resize::Resize) replaces those maps.
//!
//! The maps of any other layout stay untouched until ours are filled. Then each of its links gets
//! our program in one step, and the rest is removed.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use proxy_common::config::AGENT_WORDS;
use tracing::{info, warn};

use super::bpffs::{entries, remove_tree};
use super::error::OpenError;
use super::inventory;
use super::layout::Layout;
use super::map;
use super::mapped::{Access, MappedArray};
use super::settings::Sizes;
use super::sys;

/// The layouts with maps that this layout continues to use, the latest first.
const FORMER: [u32; 8] = [8, 7, 6, 5, 4, 3, 2, 1];
/// Maps with another shape in layout 4. They may start anew, because they only limit ICMP messages
/// of the last moments.
const ANEW: [&str; 2] = ["ICMP_SOURCES", "ICMP_TOTAL"];

/// The pins of former layouts, now also below our own directory.
#[derive(Debug)]
pub struct Former {
    roots: Vec<PathBuf>,
    /// The words of an AGENT with too little room for ours.
    agent: Vec<u64>,
}

impl Former {
    /// Pins the maps and links of former layouts, if there are any, below our own directory. An
    /// agent killed on the way continues with the rest at its next start.
    pub fn adopt(layout: &Layout) -> Result<Option<Self>, OpenError> {
        let roots = FORMER.map(|version| layout.root_of(version));
        let roots: Vec<PathBuf> = roots.into_iter().filter(|root| root.exists()).collect();
        let mut agent = Vec::new();
        for root in &roots {
            // An agent that was killed before it had restored them leaves zeros.
            if agent.is_empty() && words(&layout.maps()).iter().all(|word| *word == 0) {
                agent = short_agent(root);
            }
            adopt_root(root, layout)?;
            info!(path = %root.display(), "took over maps and links of the former layout");
        }
        Ok((!roots.is_empty()).then_some(Self { roots, agent }))
    }

    /// Writes the words of a former AGENT into ours.
    pub fn restore_agent(&self, agent: &MappedArray) {
        for (index, word) in (0..).zip(&self.agent) {
            // Ours has more room.
            let _ = agent.store(index, *word);
        }
    }

    /// Removes the pins of former layouts. Our own pins keep the objects.
    pub fn remove(self) -> Result<(), OpenError> {
        self.roots.iter().try_for_each(|root| remove_tree(root, &mut Vec::new()))
    }
}

/// Returns the words of a layout's AGENT if it has fewer than ours.
fn short_agent(root: &Path) -> Vec<u64> {
    let words = words(&root.join("maps"));
    if words.len() < AGENT_WORDS as usize { words } else { Vec::new() }
}

/// Returns the words of the AGENT in a directory of maps; none if there is none.
fn words(maps: &Path) -> Vec<u64> {
    let agent = map::mapped(maps, "AGENT", Access::Read).ok();
    agent.map_or_else(Vec::new, |agent| agent.all().collect())
}

fn adopt_root(root: &Path, layout: &Layout) -> Result<(), OpenError> {
    let has_short_agent = !short_agent(root).is_empty();
    let is_kept = |name: &str| !(ANEW.contains(&name) || has_short_agent && name == "AGENT");
    for (name, _) in inventory::maps(&Sizes::default()).into_iter().filter(|(name, _)| is_kept(name)) {
        adopt_pin(&root.join("maps").join(name), &layout.maps().join(name))?;
    }
    for path in entries(&root.join("links"))? {
        let Some(name) = path.file_name() else { continue };
        adopt_pin(&path, &layout.links().join(name))?;
    }
    Ok(())
}

/// Pins an object a second time. A directory marks a filter and is created again.
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

/// Returns the directories of all layouts whose maps ours does not continue.
pub fn foreign(layout: &Layout) -> Result<Vec<PathBuf>, OpenError> {
    let known = FORMER.map(|version| layout.root_of(version));
    let mut foreign = entries(&layout.top())?;
    foreign.retain(|path| path.is_dir() && *path != layout.root() && !known.contains(path));
    for path in &foreign {
        warn!(path = %path.display(), "maps of another version can't be taken over; their connections end later");
    }
    Ok(foreign)
}

fn failed(path: &Path, error: io::Error) -> OpenError {
    OpenError::File { path: path.to_owned(), error }
}
